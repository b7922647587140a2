"""How many lookups a router takes at the same time, and what it does for callers that have left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from router.lookups.overload import LookupLimit
from statehouse.contract.positions import Token
from statehouse.errors import LookupFailure, Reason, reason_from_number
from statehouse.rpc.failures import from_rpc_error
from statehouse.runtime.held_bytes import HELD_BYTES_MAX
from statehouse.v1 import fleet_service_pb2, fleet_service_pb2_grpc, query_service_pb2, types_pb2
from tests.support.polling import poll_until_async
from tests.unit.router.fake_nodes import Fleet
from tests.unit.router.fleets import STORE

Start = Callable[..., Awaitable[Fleet]]
KEY = types_pb2.Key(text="k")
GET = query_service_pb2.GetRequest(store=STORE, key=KEY)


def _open(fleet: Fleet) -> int:
    return int(fleet.router.metrics.registry.get_sample_value("statehouse_router_open_lookups") or 0)


async def _failure(lookup: Awaitable[object]) -> LookupFailure:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await lookup
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    return from_rpc_error(caught.value)


@pytest.mark.feature("overload-bounded-queues")
async def test_one_lookup_too_many_is_refused_at_once_and_costs_the_nodes_nothing(start: Start) -> None:
    fleet = await start("a", attempt_timeout_ms=8_000, max_lookups=2)
    node = fleet.nodes["a"]
    node.freeze()
    taken = [asyncio.create_task(fleet.get(key)) for key in ("first", "second")]
    await poll_until_async(lambda: _open(fleet) == 2, 10, "the router to be full")
    refused: tuple[Awaitable[object], ...] = (
        fleet.get(),
        fleet.query.BatchGet(query_service_pb2.BatchGetRequest(requests=[GET])),
        fleet.query.FetchWindows(query_service_pb2.FetchWindowsRequest(store=STORE, key=KEY)),
        fleet.query.Scan(query_service_pb2.ScanRequest(store=STORE)),
        fleet.query.ScanWindows(query_service_pb2.ScanWindowsRequest(store=STORE)),
        fleet.query.Count(query_service_pb2.CountRequest(store=STORE)),
    )
    for lookup in refused:
        failure = await _failure(lookup)
        assert failure.reason is Reason.OVERLOADED
        assert failure.metadata == {"max_lookups": "2"}
    health = health_pb2_grpc.HealthStub(fleet.channel)
    answer = await health.Check(health_pb2.HealthCheckRequest())
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    described = fleet_service_pb2_grpc.FleetServiceStub(fleet.channel)
    assert (await described.GetFleet(fleet_service_pb2.GetFleetRequest())).nodes
    explained = await described.ExplainGet(fleet_service_pb2.ExplainGetRequest(lookup=GET))
    assert reason_from_number(explained.error.reason) is Reason.OVERLOADED
    assert not explained.attempts
    node.thaws.set()
    assert await asyncio.gather(*taken) == ["a", "a"]
    assert _open(fleet) == 0
    assert await fleet.get() == "a"
    assert node.lookups == 3


async def test_a_batch_counts_by_its_lookups_and_is_taken_whole(start: Start) -> None:
    fleet = await start("a", attempt_timeout_ms=8_000, max_lookups=2)
    fleet.nodes["a"].freeze()
    batch = asyncio.ensure_future(fleet.query.BatchGet(query_service_pb2.BatchGetRequest(requests=[GET] * 5)))
    await poll_until_async(lambda: _open(fleet) == 5, 10, "the batch")
    assert (await _failure(fleet.get())).reason is Reason.OVERLOADED
    fleet.nodes["a"].thaws.set()
    assert len((await batch).results) == 5
    assert _open(fleet) == 0


@pytest.mark.feature("callers-ask-bounded")
async def test_a_batch_of_too_many_lookups_is_refused_before_any_is_looked_at(start: Start) -> None:
    fleet = await start("a", router_max_batch_entries=1_000)
    taken = await fleet.query.BatchGet(query_service_pb2.BatchGetRequest(requests=[GET] * 1_000))
    assert len(taken.results) == 1_000
    before = fleet.nodes["a"].lookups
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await fleet.query.BatchGet(query_service_pb2.BatchGetRequest(requests=[GET] * 1_001))
    failure = from_rpc_error(caught.value)
    assert failure.reason is Reason.INVALID_REQUEST
    assert "1001 lookups in a batch, at most 1000 are taken: split it" in failure.message
    assert fleet.nodes["a"].lookups == before


@pytest.mark.feature("callers-ask-bounded")
async def test_no_deadline_is_longer_than_the_longest(start: Start) -> None:
    """An endless wait occupies a place that others need."""
    fleet = await start("a", max_timeout_ms=1_000)
    waiting = fleet_service_pb2.AwaitInputRequest(
        store=STORE, records=[fleet_service_pb2.InputRecord(topic="t", partition=0, offset=10**12)]
    )
    stub = fleet_service_pb2_grpc.FleetServiceStub(fleet.channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.AwaitInput(waiting, timeout=1_000_000)
    assert from_rpc_error(caught.value).reason is Reason.INPUT_NOT_PROCESSED


async def test_who_leaves_takes_his_lookups_along(start: Start) -> None:
    fleet = await start("a", attempt_timeout_ms=8_000)
    node = fleet.nodes["a"]
    node.freeze()
    calls = [
        asyncio.ensure_future(fleet.query.Get(GET)),
        asyncio.ensure_future(fleet.query.BatchGet(query_service_pb2.BatchGetRequest(requests=[GET]))),
        asyncio.ensure_future(fleet.query.FetchWindows(query_service_pb2.FetchWindowsRequest(store=STORE, key=KEY))),
        asyncio.ensure_future(fleet.query.Count(query_service_pb2.CountRequest(store=STORE))),
    ]
    await poll_until_async(lambda: node.held == len(calls), 10, "the node to be asked")
    for call in calls:
        call.cancel()
    await poll_until_async(lambda: node.left_held == len(calls), 10, "the node to be told")
    await poll_until_async(lambda: not _open(fleet), 10, "the router to be done with them")


def test_lookups_that_wait_for_positions_leave_room_for_others() -> None:
    limit = LookupLimit(4)
    with limit.admitted(1, 100) as batch:  # of any size, as long as there is room
        batch.wait_for_positions(1, 100)
        assert limit.under_way == 100
        with limit.admitted(1) as another:
            with pytest.raises(LookupFailure, match="wait for positions") as caught:
                another.wait_for_positions(1)
            assert caught.value.reason is Reason.OVERLOADED
            assert limit.under_way == 101
        with limit.admitted(1, 4), pytest.raises(LookupFailure, match="under way"), limit.admitted(1):
            pass
    assert limit.under_way == 0
    with limit.admitted(1) as place:
        place.wait_for_positions(1)


def test_large_requests_fill_a_router_as_many_do() -> None:
    limit, of_waiting, of_others = LookupLimit(1_000), HELD_BYTES_MAX, 4 * HELD_BYTES_MAX
    with limit.admitted(of_waiting + 1, 10) as batch, limit.admitted(1) as another:
        batch.wait_for_positions(of_waiting, 9)
        with pytest.raises(LookupFailure, match=r"9 lookups wait for positions.* 16,777,216 bytes") as caught:
            another.wait_for_positions(1)
        assert caught.value.reason is Reason.OVERLOADED
        with (
            limit.admitted(of_others),
            pytest.raises(LookupFailure, match=r"3 lookups are under way.* 67,108,866 bytes") as caught,
        ):
            limit.admitted(1).__enter__()
        assert caught.value.reason is Reason.OVERLOADED
    with limit.admitted(of_others) as place:
        place.wait_for_positions(of_others)
        with limit.admitted(of_others):
            pass


async def test_large_lookups_that_wait_are_refused_and_those_of_others_are_not(start: Start) -> None:
    fleet = await start("a", attempt_timeout_ms=8_000)
    node = fleet.nodes["a"]
    node.freeze()
    at_least = types_pb2.Freshness(at_least=Token({(STORE, 0): 1}).to_proto())
    large = "x" * 1_000_000
    waiting = [asyncio.create_task(fleet.get(large, freshness=at_least)) for _ in range(17)]
    await poll_until_async(lambda: _open(fleet) == 17, 10, "the router to have them")
    assert (await _failure(fleet.get(large, freshness=at_least))).reason is Reason.OVERLOADED
    scan = query_service_pb2.ScanRequest(store=STORE, freshness=at_least)
    assert (await _failure(fleet.query.Scan(scan))).reason is Reason.OVERLOADED
    batch = query_service_pb2.BatchGetRequest(requests=[GET])
    batch.requests[0].freshness.CopyFrom(at_least)
    assert (await _failure(fleet.query.BatchGet(batch))).reason is Reason.OVERLOADED
    others = [
        asyncio.create_task(fleet.get("k")),
        asyncio.ensure_future(fleet.query.BatchGet(query_service_pb2.BatchGetRequest(requests=[GET]))),
    ]
    await poll_until_async(lambda: _open(fleet) == 19, 10, "the others")
    node.thaws.set()
    await asyncio.gather(*waiting, *others)
    assert await fleet.get(freshness=at_least) == "a"
