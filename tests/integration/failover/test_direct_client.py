"""A client that goes straight to real nodes, and what it does when one is killed."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import pytest

from statehouse.client import Answer, AsyncClient, Freshness, Lookup, Token
from statehouse.contract.assignment import TaskAssignment
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.metrics import scrape
from tests.support.ownership import answered
from tests.support.polling import poll_until, poll_until_async

READERS = 16


@dataclass(frozen=True)
class Cluster:
    """Two nodes, each the active of one partition and the standby of the other, and a router."""

    fleet: Fleet
    nodes: dict[str, ServerProcess]
    router: ServerProcess
    metrics_port: int
    keys: list[str]

    def client(self) -> AsyncClient:
        return AsyncClient(self.router.target, timeout=20.0)

    def routed(self) -> float:
        """Return how many lookups the router has answered."""
        return scrape(self.metrics_port).value("statehouse_router_lookups_total")

    async def settled(self, client: AsyncClient) -> None:
        """Read until all keys are read without the router."""

        async def is_straight() -> bool:
            before = await asyncio.to_thread(self.routed)
            await asyncio.gather(*(client.get(STORE, key) for key in self.keys))
            return await asyncio.to_thread(self.routed) == before

        async with asyncio.timeout(30):
            while not await is_straight():
                pass


@pytest.fixture(scope="module")
def cluster(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    name = f"direct-{uuid.uuid4().hex[:8]}"
    with Fleet(kafka.bootstrap, name, tmp_path_factory.mktemp("fleet"), partitions=2) as fleet:
        keys = [*fleet.keys_in(0, 10), *fleet.keys_in(1, 10)]
        fleet.put({key: f"v-{key}" for key in keys})
        fleet.assign(TaskAssignment("n0", ("n1",)), TaskAssignment("n1", ("n0",)))
        nodes = {name: fleet.node(name) for name in ("n0", "n1")}
        metrics_port = free_port()
        router = fleet.router(metrics_port=metrics_port)
        fleet.wait_running(nodes.values())
        poll_until(lambda: all(answered(router, key) for key in keys), 20, "the router")
        yield Cluster(fleet, nodes, router, metrics_port, keys)


@pytest.mark.feature("client-goes-straight")
async def test_reads_go_straight_and_those_that_must_wait_do_not_fail(cluster: Cluster) -> None:
    fleet, key = cluster.fleet, cluster.keys[0]
    async with cluster.client() as client:
        await cluster.settled(client)
        answer = await client.get(STORE, key)
        assert (answer.value, answer.host.instance_id, answer.role, answer.epoch) == (f"v-{key}", "n0", "ACTIVE", 1)
        assert answer.position is not None
        routed = cluster.routed()
        outcomes = await client.batch_get(Lookup(STORE, key) for key in cluster.keys)
        assert [each.value for each in outcomes if isinstance(each, Answer)] == [f"v-{key}" for key in cluster.keys]
        assert cluster.routed() == routed
        ahead = Token({(STORE, 0): answer.position + 1})
        waiting = [
            asyncio.create_task(client.get(STORE, key, at_least=ahead)),
            asyncio.create_task(client.batch_get([Lookup(STORE, key), Lookup(STORE, key, Freshness(at_least=ahead))])),
        ]
        await client.get(STORE, key)
        await asyncio.to_thread(fleet.put, {key: "later"})
        assert (await waiting[0]).value == "later"  # type: ignore[union-attr]
        assert [each.value for each in await waiting[1]][1] == "later"  # type: ignore[union-attr]
        await asyncio.to_thread(fleet.put, {key: f"v-{key}"})
        await poll_until_async(
            lambda: cluster.routed() > routed, 10, "the router to have been asked for the one that waited"
        )


class Reading:
    """Readers that go through the keys again and again. A read that fails ends the test."""

    def __init__(self, cluster: Cluster, client: AsyncClient) -> None:
        self.answers: list[Answer] = []
        self._keys, self._client = cluster.keys, client
        self._stop = asyncio.Event()
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        for number in range(READERS):
            self._group.create_task(self._read(number))
        await self.has_read("ACTIVE")
        return self

    async def __aexit__(self, *error: object) -> None:
        self._stop.set()
        await self._group.__aexit__(*error)

    async def has_read(self, role: str, epoch: int = 1) -> None:
        """Wait for answers by this role."""
        begin = len(self.answers)

        def count() -> int:
            return sum(answer.role == role and answer.epoch == epoch for answer in self.answers[begin:])

        await poll_until_async(lambda: count() > 100, 20, f"reads answered as {role}")

    async def _read(self, number: int) -> None:
        while not self._stop.is_set():
            key = self._keys[number % len(self._keys)]
            answer = await self._client.get(STORE, key)
            assert answer.value == f"v-{key}"
            self.answers.append(answer)
            number += 1


async def test_no_get_fails_while_the_active_is_frozen(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await cluster.settled(client)
        async with Reading(cluster, client) as reading:
            cluster.nodes["n0"].freeze()
            try:
                await reading.has_read("STANDBY")
            finally:
                cluster.nodes["n0"].thaw()
        await cluster.settled(client)


@pytest.mark.feature("client-goes-straight")
async def test_no_get_fails_when_the_active_is_killed(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await cluster.settled(client)
        async with Reading(cluster, client) as reading:
            cluster.nodes["n0"].kill()
            await reading.has_read("STANDBY")
            await asyncio.to_thread(cluster.fleet.assign, TaskAssignment("n1"), TaskAssignment("n1"))
            await reading.has_read("ACTIVE", epoch=2)
        await cluster.settled(client)
