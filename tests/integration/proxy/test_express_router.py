"""A real router and its proxy: what is said of the express way is what happens, and metrics count it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from statehouse.errors import LookupFailure, Reason
from statehouse.link.proxy import NONE
from statehouse.v1 import fleet_service_pb2, fleet_service_pb2_grpc, query_service_pb2, types_pb2
from tests.support.polling import poll_until_async
from tests.support.proxy import PROXY
from tests.unit.router.fake_nodes import Fleet, start_fleet
from tests.unit.router.fleets import STORE

OBSTACLE = fleet_service_pb2.ExpressObstacle


@asynccontextmanager
async def started(**options: Any) -> AsyncIterator[Fleet]:
    """Give a router and the nodes a, the active, and b."""
    fleet = await start_fleet(("a", "b"), **options)
    try:
        yield fleet
    finally:
        await fleet.stop()


def stub(fleet: Fleet) -> fleet_service_pb2_grpc.FleetServiceAsyncStub:
    return fleet_service_pb2_grpc.FleetServiceStub(fleet.channel)


async def obstacle_of(fleet: Fleet, **fields: Any) -> str | None:
    """Return what keeps a lookup from the express way, as the router says; None: nothing does."""
    lookup = query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text="k"), **fields)
    told = await stub(fleet).ExplainGet(fleet_service_pb2.ExplainGetRequest(lookup=lookup))
    assert told.HasField("express_obstacle")
    assert bool(told.express_detail) == bool(told.express_obstacle)
    return OBSTACLE.Name(told.express_obstacle).removeprefix("EXPRESS_OBSTACLE_") if told.express_obstacle else None


def counted(fleet: Fleet, name: str, **labels: str) -> float:
    return fleet.router.metrics.registry.get_sample_value(f"statehouse_router_{name}_total", labels) or 0.0


@pytest.mark.feature("locatekey-explainget-where")
async def test_a_lookup_takes_the_way_that_is_explained() -> None:
    async with started(proxy=str(PROXY), express=True) as fleet:

        def express() -> float:
            return counted(fleet, "express_lookups", store=STORE, role="ACTIVE")

        assert await obstacle_of(fleet) is None
        assert express() == 0, "the explained one goes through the router"
        # The proxy has the snapshot a moment after the router has made it.
        lookups = 0
        while not express():
            assert await fleet.get() == "a"
            lookups += 1
            await poll_until_async(lambda n=lookups: all_counted(fleet) >= n, 5, "the sums")
        assert await obstacle_of(fleet, freshness=types_pb2.Freshness(max_lag=9)) is None
        assert await obstacle_of(fleet, freshness=types_pb2.Freshness(active_only=True)) is None
        positions = types_pb2.Positions()
        assert await obstacle_of(fleet, freshness=types_pb2.Freshness(at_least=positions)) is None
        within = types_pb2.Freshness(at_least=positions, max_lag=9)
        assert await obstacle_of(fleet, freshness=within) == "NOT_PLAIN"
        fleet.nodes["a"].failure = LookupFailure(Reason.PARTITION_RESTORING, "at 3 of 10")
        assert await fleet.get() == "b"
        assert counted(fleet, "express_handed", reason="PARTITION_RESTORING") == 1
        fleet.router.health.failed(
            fleet.router.tables.current().nodes["a"], Reason.UNREACHABLE, "refused", float("inf")
        )
        assert await obstacle_of(fleet) is None, "the standby is well"
        assert await fleet.get() == "b"
        assert counted(fleet, "express_handed", reason="PARTITION_RESTORING") == 1
        assert (await stub(fleet).GetFleet(fleet_service_pb2.GetFleetRequest())).served_by == (
            fleet_service_pb2.SERVED_BY_PROXY_WITH_EXPRESS_WAY
        )


def all_counted(fleet: Fleet) -> float:
    return counted(fleet, "lookups", store=STORE, outcome="OK", role="ACTIVE")


@pytest.mark.parametrize(
    ("options", "obstacle", "served_by"),
    [
        ({"proxy": str(PROXY), "express": False}, "OFF", fleet_service_pb2.SERVED_BY_PROXY),
        ({"proxy": NONE}, "NO_PROXY", fleet_service_pb2.SERVED_BY_GRPCIO),
    ],
)
async def test_what_a_router_lacks_for_it_is_told(options: dict[str, Any], obstacle: str, served_by: int) -> None:
    async with started(**options) as fleet:
        assert await obstacle_of(fleet) == obstacle
        assert (await stub(fleet).GetFleet(fleet_service_pb2.GetFleetRequest())).served_by == served_by
