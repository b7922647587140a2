"""The server of /metrics bounds how many scrapes there are at the same time, and how long one takes."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import statehouse.observability.metrics
from statehouse.local.ports import LOOPBACK
from statehouse.observability.metrics import MetricsServer, new_registry
from statehouse.settings import RouterSettings
from tests.support.polling import poll_until

AT_ONCE = 16
DEADLINE_S = 10.0


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    server = MetricsServer(new_registry(), LOOPBACK, 0, RouterSettings(application_id="tests"), None)
    yield server
    server.close()


def connected(server: MetricsServer) -> socket.socket:
    """Open a connection, over which nothing is asked yet."""
    return socket.create_connection((LOOPBACK, server.port), DEADLINE_S)


def is_answered(server: MetricsServer) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, server.port, timeout=DEADLINE_S)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def is_closed(connection: socket.socket) -> bool:
    """Send a byte, and say whether the server has closed the connection. It doesn't answer half a request."""
    try:
        connection.sendall(b"G")
        connection.setblocking(False)
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_idle_connections_keep_nobody_out_the_oldest_gives_way(server: MetricsServer) -> None:
    with ExitStack() as held:
        idle = [held.enter_context(connected(server)) for _ in range(AT_ONCE)]
        assert is_answered(server)
        assert idle[0].recv(1) == b""
        assert not any(map(is_closed, idle[1:]))


def test_a_further_connection_is_closed_at_once_while_all_are_being_answered() -> None:
    may_end, asked = threading.Event(), threading.Semaphore(0)

    def slow() -> str:
        asked.release()
        may_end.wait(DEADLINE_S)
        return ""

    settings = RouterSettings(application_id="tests")
    server = MetricsServer(new_registry(), LOOPBACK, 0, settings, None, {"/livez": slow})
    try:
        with ExitStack() as held:
            for _ in range(AT_ONCE):
                held.enter_context(connected(server)).sendall(b"GET /livez HTTP/1.0\r\n\r\n")
            assert all(asked.acquire(timeout=DEADLINE_S) for _ in range(AT_ONCE))
            with connected(server) as further:
                assert further.recv(1) == b""
            may_end.set()
            poll_until(lambda: is_answered(server), DEADLINE_S, "the place of one that ended")
    finally:
        may_end.set()
        server.close()


def test_a_scrape_that_takes_too_long_is_cut_off(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statehouse.observability.metrics, "_TAKES_AT_MOST_S", 0.2)
    with connected(server) as slow:
        poll_until(lambda: is_closed(slow), DEADLINE_S, "the end of a scrape that goes on for ever")
    assert is_answered(server)


def answered(server: MetricsServer, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(LOOPBACK, server.port, timeout=DEADLINE_S)
    connection.request("GET", path)
    response = connection.getresponse()
    told = response.status, response.read().decode().strip()
    connection.close()
    return told


def test_probes_are_answered_beside_the_metrics_by_the_right_for_health() -> None:
    asked: list[str] = []

    class Gate:
        async def reload_if_changed(self) -> None: ...

        def admit(self, method: str, *_: object) -> None:
            asked.append(method)

    probes = {"/livez": lambda: "", "/readyz": lambda: "query scores is RESTARTING"}
    settings, gate = RouterSettings(application_id="tests"), Gate()
    guarded: Any = gate
    server = MetricsServer(new_registry(), LOOPBACK, 0, settings, guarded, probes)
    try:
        assert answered(server, "/livez") == (200, "ok")
        assert answered(server, "/readyz") == (503, "query scores is RESTARTING")
        assert answered(server, "/metrics")[0] == 200
    finally:
        server.close()
    assert asked == ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Check", "metrics"]


def test_a_probe_has_its_own_answer_or_none() -> None:
    probes = {"/livez": lambda: "", "/readyz": lambda: "not now"}
    server = MetricsServer(new_registry(), LOOPBACK, 0, RouterSettings(application_id="tests"), None, probes)
    try:
        for request_line, status in {
            b"GET /readyz HTTP/1.0": 503,
            b"GET /readyz HTTP/1.1": 503,
            b"HEAD /readyz HTTP/1.1": 503,
            b"GET /readyz?a=b HTTP/1.1": 503,
            b"GET http://box:1/readyz HTTP/1.1": 503,
            b"GET http://box:1/livez HTTP/1.1": 200,
            b"GET http://box:1/metrics HTTP/1.1": 200,
            b"GET /metrics HTTP/1.0": 200,
            b"GET / HTTP/1.0": 200,
            b"GET /readyz/ HTTP/1.0": 404,
            b"GET /healthz HTTP/1.0": 404,
            b"GET /readyzz HTTP/1.0": 404,
        }.items():
            with connected(server) as asking, asking.makefile("rb") as answer:
                asking.sendall(request_line + b"\r\nHost: router.prod.svc\r\n\r\n")
                assert int(answer.readline().split()[1]) == status, request_line
                while answer.readline() != b"\r\n":
                    pass
                body = answer.read()
                assert not (request_line.startswith(b"HEAD") and body)
    finally:
        server.close()
