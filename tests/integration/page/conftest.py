"""A browser, and a fleet whose router serves the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser

from statehouse.contract.assignment import TaskAssignment
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import LOOPBACK, free_port
from tests.support.browser import Reader, chromium, reader
from tests.support.fleet import Fleet, ServerProcess
from tests.support.polling import poll_until
from tests.support.shared import shared_fleet


@dataclass
class PagedFleet:
    """A fleet with two nodes, each active for one of two partitions and standby for the other, and its page."""

    fleet: Fleet
    nodes: dict[str, ServerProcess]
    router: ServerProcess
    base: str

    def place(self, *actives: str, reason: str = "test") -> int:
        """Publish an epoch in which these are the actives, and the other nodes standbys."""
        holders = [
            TaskAssignment(active, tuple(name for name in self.nodes if name != active), reason=reason)
            for active in actives
        ]
        return self.fleet.assign(*holders, reason=reason)


def paged_fleet(fleet: Fleet, **router: Any) -> PagedFleet:
    """Start nodes and a router with its page."""
    fleet.put({"alice": "1", "<b>bob</b>": '<script>alert("x")</script>', "carol": "3"})
    nodes = {name: fleet.node(name) for name in ("n1", "n2")}
    port = free_port()
    found = PagedFleet(fleet, nodes, fleet.router(http_port=port, **router), f"http://{LOOPBACK}:{port}")
    found.place("n1", "n2", reason="start")
    fleet.wait_running(nodes.values(), 90)
    poll_until(lambda: _is_shown(found.base), 60, "the page to know the fleet")
    return found


def _is_shown(base: str) -> bool:
    try:
        return '"answers"' in httpx.get(f"{base}/nodes.json", timeout=30).text
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def paged(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagedFleet]:
    """Serve a fleet that the tests of a file share: they leave its nodes alive."""
    with shared_fleet(kafka.bootstrap, tmp_path_factory, "page") as fleet:
        yield paged_fleet(fleet)


@pytest.fixture
def own_paged(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagedFleet]:
    """Serve a fleet that ends with the test."""
    with shared_fleet(kafka.bootstrap, tmp_path_factory, "page") as fleet:
        yield paged_fleet(fleet)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def open_window(browser: Browser) -> Iterator[Callable[..., Reader]]:
    """Open windows that end with the test, and in which the browser must have had nothing to complain of."""
    with ExitStack() as held:
        opened: list[Reader] = []

        def start(base: str, **options: Any) -> Reader:
            opened.append(held.enter_context(reader(browser, base, **options)))
            return opened[-1]

        yield start
        assert [complaint for each in opened for complaint in each.complaints] == []
