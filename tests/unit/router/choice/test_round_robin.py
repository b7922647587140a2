"""Round robin among the copies of a global store: fair for each store, whatever else is asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable

import pytest

from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.membership import GlobalReport, StorePosition
from statehouse.contract.topology import StoreSpec
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.polling import poll_until_async
from tests.unit.router.fake_nodes import Fleet
from tests.unit.router.fleets import STORE, assignment, member, report

Start = Callable[..., Awaitable[Fleet]]
GLOBAL = "settings"
KEY = types_pb2.Key(text="k")


@pytest.fixture
async def fleet(start: Start) -> Fleet:
    """Two nodes: "a" holds the ordinary store, each has a copy of the global one."""
    fleet = await start("a", "b")
    for name, node in fleet.nodes.items():
        copy = GlobalReport("running", {number: StorePosition(10, 10) for number in range(2)})
        reporting = member(name, {0: report()}, port=node.port, incarnation="1")
        fleet.router.tracker.on_member(dataclasses.replace(reporting, global_replicas={GLOBAL: copy}))
    ordinary = assignment([TaskAssignment("a")], 2)
    spec = StoreSpec(GLOBAL, "source", 2, 0, key_serde="string", value_serde="string", is_global=True)
    fleet.router.tracker.on_assignment(dataclasses.replace(ordinary, stores={**ordinary.stores, GLOBAL: spec}))
    assert await fleet.router.tables.wait_for_epoch(2, 10.0)
    return fleet


async def test_lookups(fleet: Fleet) -> None:
    for _ in range(10):
        assert await fleet.get() == "a"
        await fleet.query.Get(query_service_pb2.GetRequest(store=GLOBAL, key=KEY))
    assert [len(fleet.nodes[name].gets) for name in "ab"] == [15, 5]


async def test_batches(fleet: Fleet) -> None:
    for _ in range(10):
        for store in (STORE, GLOBAL):
            one = query_service_pb2.GetRequest(store=store, key=KEY)
            await fleet.query.BatchGet(query_service_pb2.BatchGetRequest(requests=[one, one]))
    sizes = [[len(batch) for batch in fleet.nodes[name].batches] for name in "ab"]
    assert sizes == [[2] * 15, [2] * 5]


async def test_watches(fleet: Fleet) -> None:
    calls = [fleet.query.Watch(query_service_pb2.WatchRequest(store=GLOBAL)) for _ in range(4)]
    for call in calls:
        await call.read()
    watches = [fleet.nodes[name].watches for name in "ab"]
    await poll_until_async(lambda: list(map(len, watches)) == [4, 4], 5, "both partitions of two watches at each node")
    for call in calls:
        call.cancel()
