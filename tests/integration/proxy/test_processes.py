"""Proxies live and die with the nodes and routers they serve."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import LOOPBACK
from tests.support.fleet import Fleet, ServerProcess, is_answered_by_active
from tests.support.polling import poll_until
from tests.support.proxy import PROXY, children_of, proxy_of
from tests.support.shared import shared_fleet


@pytest.fixture(scope="module")
def fleet(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with shared_fleet(kafka.bootstrap, tmp_path_factory, "proxied", partitions=1) as fleet:
        fleet.put({"a": "1"})
        fleet.assign(TaskAssignment("n1"))
        yield fleet


def found(process: ServerProcess) -> bool:
    try:
        return process.get("a").found
    except LookupFailure:
        return False


def test_a_killed_node_leaves_nothing_and_comes_back_on_its_port(fleet: Fleet) -> None:
    node = fleet.node("n1", proxy=PROXY)
    fleet.wait_running([node])
    assert found(node)
    proxy = proxy_of(node.pid)
    node.kill()
    node.start()
    poll_until(lambda: not Path(f"/proc/{proxy}").exists(), 10, "the proxy to end")
    poll_until(lambda: found(node), 30, "the node on its port")
    assert proxy_of(node.pid) != proxy
    assert node.stop(signal.SIGINT) == 0
    assert "ended by itself" not in node.log


def test_a_connection_over_which_nothing_comes_ends_with_its_node(fleet: Fleet) -> None:
    """So a controller knows of the end; the proxy waits for 10 s for what a caller has to say."""
    node = fleet.node("n1", proxy=PROXY)
    fleet.wait_running([node])
    with socket.create_connection((LOOPBACK, node.port)) as silent:
        silent.settimeout(8.0)
        node.kill()
        with suppress(ConnectionResetError):
            while silent.recv(4_096):
                pass


def test_a_node_does_not_go_on_without_its_proxy(fleet: Fleet) -> None:
    node = fleet.node("n1", proxy=PROXY)
    fleet.wait_running([node])
    os.kill(proxy_of(node.pid), signal.SIGKILL)
    assert node.wait() != 0
    assert "statehouse-proxy has ended by itself" in node.log


def test_a_worker_without_its_proxy_is_replaced(fleet: Fleet) -> None:
    node = fleet.node("n1", proxy="none")
    router = fleet.router(proxy=PROXY, workers=2)
    fleet.wait_running([node])
    poll_until(lambda: is_answered_by_active(router, "a"), 30, "the router to know the node")

    def proxies() -> set[int]:
        try:
            return set(map(proxy_of, children_of(router.pid)))
        except (OSError, ValueError):  # one is starting or ending
            return set()

    before = poll_until(lambda: len(proxies()) == 2 and proxies(), 30, "two workers")
    killed = min(before)
    os.kill(killed, signal.SIGKILL)
    poll_until(lambda: len(proxies() - {killed}) == 2, 30, "another worker")
    poll_until(lambda: found(router), 30, "an answer")
    assert "statehouse-proxy has ended by itself" in router.log
    assert router.stop(signal.SIGTERM) == 0


def test_a_port_that_is_taken_is_named(fleet: Fleet) -> None:
    first = fleet.router("first", proxy=PROXY)
    poll_until(lambda: "router listens" in first.log, 30, "the router")
    second = fleet.router("second", proxy=PROXY, port=first.port)
    assert second.wait() == 2
    assert f"error: can't listen on {first.target}" in second.log
    assert "another process on that port" in second.log
