"""The server of /metrics bounds how many scrapes there are at once, and how long one takes."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack

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


def test_a_further_scrape_is_closed_at_once_until_another_ends(server: MetricsServer) -> None:
    with ExitStack() as held:
        scrapes = [held.enter_context(connected(server)) for _ in range(AT_ONCE)]
        assert not is_answered(server)
        with connected(server) as further:
            assert further.recv(1) == b""
        assert not any(map(is_closed, scrapes))
        scrapes[0].close()
        poll_until(lambda: is_answered(server), DEADLINE_S, "the place of the one that ended")


def test_a_scrape_that_takes_too_long_is_cut_off(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statehouse.observability.metrics, "_TAKES_AT_MOST_S", 0.2)
    with connected(server) as slow:
        poll_until(lambda: is_closed(slow), DEADLINE_S, "the end of a scrape that goes on for ever")
    assert is_answered(server)
