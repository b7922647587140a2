"""A fleet with a store of each kind, whose router serves the page and the HTTP API."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from statehouse.contract.assignment import TaskAssignment
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import LOOPBACK, free_port
from tests.support.fleet import ServerProcess, is_answered_by_active
from tests.support.polling import poll_until
from tests.support.stores_fleet import StoresFleet


@dataclass(frozen=True, slots=True)
class Served:
    """One node and one router; `http` is the address of the router's web process."""

    fleet: StoresFleet
    node: ServerProcess
    router: ServerProcess
    http: str

    def wait(self) -> None:
        """Wait until the router and its web process answer."""
        poll_until(lambda: is_answered_by_active(self.router, "ann"), 60, "the router to answer")
        poll_until(self.is_up, 60, "the web process to answer")

    def is_up(self) -> bool:
        try:
            return httpx.get(f"{self.http}/healthz", timeout=5.0).status_code == 200
        except httpx.TransportError:
            return False


@pytest.fixture(scope="package")
def served(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("web")
    with StoresFleet(kafka.bootstrap, f"web-{uuid.uuid4().hex[:8]}", directory) as fleet:
        port = free_port()
        node, router = fleet.node("n1"), fleet.router(http_port=port)
        fleet.assign(*[TaskAssignment("n1")] * fleet.partitions)
        found = Served(fleet, node, router, f"http://{LOOPBACK}:{port}")
        found.wait()
        yield found
