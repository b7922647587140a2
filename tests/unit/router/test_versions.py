"""Versions of an application at a router: each call is answered by one, and names which."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from router.version_switch import until_left
from statehouse.contract.positions import Token
from statehouse.contract.version_names import FIRST
from statehouse.contract.versions import Versions
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import fleet_service_pb2, fleet_service_pb2_grpc, query_service_pb2, types_pb2
from tests.support.polling import poll_until_async
from tests.support.two_versions import DEPLOYED, KEYS, Callers, two_versions, versions_in
from tests.unit.router.commits import CLICKS, commit
from tests.unit.router.fake_nodes import Fleet, failure_of
from tests.unit.router.fleets import STORE

PROMOTED = DEPLOYED.promoted("v2", 2**40)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    started = await two_versions()
    yield started
    await started.stop()


def get(key: str = "k", store: str = STORE, **bounds: Any) -> query_service_pb2.GetRequest:
    return query_service_pb2.GetRequest(
        store=store, key=types_pb2.Key(text=key), freshness=types_pb2.Freshness(**bounds) if bounds else None
    )


async def serving(fleet: Fleet) -> str:
    return (await fleet.query.Get(get())).replica.version or FIRST


async def test_the_version_that_the_record_names_answers(fleet: Fleet) -> None:
    assert await serving(fleet) == FIRST
    fleet.router.versions.take(PROMOTED)
    assert await serving(fleet) == "v2"
    fleet.router.versions.take(PROMOTED.rolled_back(0))
    assert await serving(fleet) == FIRST


async def test_callers_see_one_version_in_each_answer_and_none_fails(fleet: Fleet) -> None:
    callers = Callers(fleet.channel)
    running = asyncio.create_task(callers.run())
    versions = DEPLOYED
    for turn in range(20):
        versions = versions.promoted("v2" if turn % 2 == 0 else FIRST, 2**40)
        fleet.router.versions.take(versions)
        expected = callers.answers.get(versions.serving, 0) + 20
        await poll_until_async(lambda n=expected, v=versions.serving: callers.answers.get(v, 0) >= n, 20, "answers")
    callers.stop()
    await running
    assert callers.failed == []
    assert callers.mixed == []


async def test_a_version_is_read_by_its_name_whichever_serves(fleet: Fleet) -> None:
    for store, version in ((f"{STORE}@v2", "v2"), (f"{STORE}@v1", FIRST), (STORE, FIRST)):
        assert versions_in([(await fleet.query.Get(get(store=store))).replica]) == {version}
        page = await fleet.query.Scan(query_service_pb2.ScanRequest(store=store, page_size=100))
        assert versions_in(page.replicas) == {version}
        assert {entry.value.text for entry in page.entries} == {version}
    batch = query_service_pb2.BatchGetRequest(requests=[get("a@b"), get("x", f"{STORE}@v2"), get("y", f"{STORE}@v9")])
    results = (await fleet.query.BatchGet(batch)).results
    assert [each.response.replica.version for each in results[:2]] == ["", "v2"]
    assert LookupFailure.from_proto(results[2].error).reason is Reason.UNKNOWN_VERSION
    assert (await failure_of(fleet.query.Get(get(store=f"{STORE}@v9")))).reason is Reason.UNKNOWN_VERSION
    assert (await fleet.query.Get(get("a@b"))).replica.version == ""


async def test_a_walk_ends_with_a_reason_when_another_version_serves(fleet: Fleet) -> None:
    first = await fleet.query.Scan(query_service_pb2.ScanRequest(store=STORE, page_size=5))
    fleet.router.versions.take(PROMOTED)
    following = query_service_pb2.ScanRequest(store=STORE, page_size=5, page_token=first.next_page_token)
    failure = await failure_of(fleet.query.Scan(following))
    assert failure.reason is Reason.VERSION_CHANGED
    assert failure.metadata == {"version": FIRST, "serving": "v2"}
    following.store = f"{STORE}@v1"
    assert len((await fleet.query.Scan(following)).entries) == 5, "it goes on where it began"
    second = await fleet.query.Scan(query_service_pb2.ScanRequest(store=STORE, page_size=5))
    following = query_service_pb2.ScanRequest(store=STORE, page_size=100, page_token=second.next_page_token)
    assert [each.key.text for each in (await fleet.query.Scan(following)).entries] == sorted(KEYS)[5:]
    fleet.router.versions.take(PROMOTED.rolled_back(0))
    assert (await failure_of(fleet.query.Scan(following))).reason is Reason.VERSION_CHANGED


async def test_a_position_is_of_its_version(fleet: Fleet) -> None:
    seen = {version: Token({(f"{STORE}{at}", 0): 3}).to_proto() for version, at in ((FIRST, ""), ("v2", "@v2"))}
    assert (await fleet.query.Get(get(at_least=seen[FIRST]))).found
    assert (await failure_of(fleet.query.Get(get(at_least=seen["v2"])))).reason is Reason.VERSION_CHANGED
    fleet.router.versions.take(PROMOTED)
    assert (await failure_of(fleet.query.Get(get(at_least=seen[FIRST])))).reason is Reason.VERSION_CHANGED
    assert (await fleet.query.Get(get(at_least=seen["v2"]))).found


async def test_a_watch_goes_on_at_the_version_that_serves(fleet: Fleet) -> None:
    event = query_service_pb2.WatchEvent(key=types_pb2.Key(text="k"), value=types_pb2.Value(text="1"), offset=4)
    for name in ("a", "b", "c", "d"):
        fleet.nodes[name].feed_all = [
            query_service_pb2.WatchResponse(current=True, begins=True, position=4),
            query_service_pb2.WatchResponse(events=[event], position=5),
        ]
    call: Any = fleet.query.Watch(query_service_pb2.WatchRequest(store=STORE))
    heard: list[query_service_pb2.WatchResponse] = []

    async def hear(version: str, partitions: int) -> None:
        while len([each for each in heard if each.replica.version == version and each.events]) < partitions:
            heard.append(await asyncio.wait_for(call.read(), 10))

    await hear("", 2)
    fleet.router.versions.take(PROMOTED)
    heard.clear()
    await hear("v2", 5)
    assert [each.begins for each in heard if each.HasField("position") and not each.events] == [True] * 5
    assert all(not each.resume for name in ("c", "d") for each in fleet.nodes[name].watches)
    fleet.router.versions.take(PROMOTED.rolled_back(0))
    heard.clear()
    await hear("", 2)
    gone = [each.replica.partition for each in heard if each.begins and not each.HasField("position")]
    assert gone == [2, 3, 4], "partitions that this version doesn't have hold nothing any more"
    resumed = query_service_pb2.WatchRequest(store=STORE)
    resumed.resume.add(partition=4, position=9, version="v2")
    resumed.resume.add(partition=1, position=5)
    again: Any = fleet.query.Watch(resumed)
    await asyncio.wait_for(again.read(), 10)
    call.cancel()
    again.cancel()


@pytest.mark.parametrize("by_batch", [False, True])
async def test_a_watch_that_comes_back_at_another_version_begins_with_no_older_values(
    fleet: Fleet, by_batch: bool
) -> None:
    (beside,) = [core for core in fleet.router.versions if core.version == "v2"]
    for core, position, count, query in ((fleet.router.first, 5, 2, "q"), (beside, 9, 5, "q@v2")):
        ends = dict.fromkeys(range(count), position)
        core.inputs.on_commit(commit(3, {CLICKS: 10}, ends, query, is_moment=True))
    fleet.router.versions.take(PROMOTED)
    for name in ("c", "d"):
        begins = query_service_pb2.WatchResponse(current=True, begins=True, position=9)
        begins.moment.query_id, begins.moment.batch_id = "q@v2", 3
        fleet.nodes[name].feed_all = [begins]
    request = query_service_pb2.WatchRequest(store=STORE, mark_moments=by_batch)
    for partition in range(2):
        request.resume.add(partition=partition, position=4)
    call: Any = fleet.query.Watch(request)
    watches = [fleet.nodes[name].watches for name in ("c", "d")]
    await poll_until_async(lambda: len({each.partition for seen in watches for each in seen}) == 5, 10, "watches")
    for seen in watches:
        for each in seen:
            assert {position.position for position in each.freshness.at_least.positions} == (set() if by_batch else {9})
            moments = [(moment.query_id, moment.batch_id) for moment in each.freshness.moment.at_least.moments]
            assert moments == [("q@v2", 3)] * by_batch
            assert not each.resume
    call.cancel()


async def test_a_watch_waits_no_longer_for_a_version_that_serves_no_more(fleet: Fleet) -> None:
    (beside,) = [core for core in fleet.router.versions if core.version == "v2"]
    fleet.router.first.inputs.on_commit(commit(3, {CLICKS: 10}, dict.fromkeys(range(2), 5), "q", is_moment=True))
    beside.inputs.on_commit(commit(3, {CLICKS: 9}, dict.fromkeys(range(5), 9), "q@v2", is_moment=True))
    for name in ("a", "b"):
        fleet.nodes[name].feed_all = [query_service_pb2.WatchResponse(current=True, begins=True, position=5)]
    call: Any = fleet.query.Watch(query_service_pb2.WatchRequest(store=STORE))

    async def hear() -> None:
        heard: set[int] = set()
        async with asyncio.timeout(10):
            while heard != {0, 1}:
                response = await call.read()
                heard |= {response.replica.partition} if response.position == 5 else set()

    await hear()
    fleet.router.versions.take(PROMOTED)
    await poll_until_async(lambda: beside.inputs.waiting, 10, "the watch to wait for the other version")
    fleet.router.versions.take(PROMOTED.rolled_back(0))
    await hear()
    assert beside.inputs.waiting == 0
    assert not any(fleet.nodes[name].watches for name in ("c", "d")), "it never had what was passed on"
    call.cancel()


async def test_what_fails_while_its_caller_leaves_is_looked_at(fleet: Fleet) -> None:
    core, begun = fleet.router.versions.serving, asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise LookupFailure(Reason.UNKNOWN_STORE, "just then")

    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    call = asyncio.create_task(until_left(core, work()))
    await begun.wait()
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()
    del call
    gc.collect()
    assert not unheard


async def test_the_fleet_is_described_by_version(fleet: Fleet) -> None:
    stub: Any = fleet_service_pb2_grpc.FleetServiceStub(fleet.channel)
    watched = stub.WatchFleet(fleet_service_pb2.WatchFleetRequest())
    assert (await watched.read()).fleet.version == FIRST
    beside = await stub.GetFleet(fleet_service_pb2.GetFleetRequest(version="v2"))
    assert (beside.application_id, beside.version, beside.stores[0].partition_count) == ("app--v2", "v2", 5)
    fleet.router.versions.take(PROMOTED)
    assert (await asyncio.wait_for(watched.read(), 10)).fleet.version == "v2"
    served = await stub.GetFleet(fleet_service_pb2.GetFleetRequest())
    assert served.version == "v2"
    assert list(served.versions.names) == [FIRST, "v2"]
    assert (served.versions.serving, served.versions.before, served.versions.number) == ("v2", FIRST, 2)
    parts = await stub.ListPartitions(fleet_service_pb2.ListPartitionsRequest(store=f"{STORE}@v1"))
    assert len(parts.partitions) == 2
    unknown = stub.GetFleet(fleet_service_pb2.GetFleetRequest(version="v7"))
    assert (await failure_of(unknown)).reason is Reason.UNKNOWN_VERSION
    watched.cancel()


async def test_a_router_goes_on_with_what_it_has_until_it_can_route_by_the_other_version(fleet: Fleet) -> None:
    three = DEPLOYED.deployed("v3").promoted("v3", 2**40)
    fleet.router.versions.take(three)
    assert await serving(fleet) == FIRST
    assert fleet.router.versions.describe().wanted == "v3"
    fleet.router.versions.take(three.promoted("v2", 2**40))
    assert await serving(fleet) == "v2"


async def test_a_retired_version_is_followed_no_more(fleet: Fleet) -> None:
    only = PROMOTED.retired(FIRST, 0, is_forced=True)
    fleet.router.versions.take(only)
    assert await serving(fleet) == "v2"
    assert (await failure_of(fleet.query.Get(get(store=f"{STORE}@v1")))).reason is Reason.UNKNOWN_VERSION
    three = only.deployed("v3")
    fleet.router.versions.take(three)
    assert {core.version for core in fleet.router.versions} == {FIRST, "v2", "v3"}, "the first has the record"
    fleet.router.versions.take(three.retired("v3", 0))
    assert {core.version for core in fleet.router.versions} == {FIRST, "v2"}
    assert Versions().serving == FIRST
