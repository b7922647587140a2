"""Reads of a moment: all parts of an answer show one batch, though nobody tells nodes which."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence

import pytest

from router.lookups import walks
from statehouse.contract.agreement import ROUNDS
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.moments import Asked, MomentBound, MomentToken
from statehouse.contract.partitioning import partition_for
from statehouse.errors import LookupFailure, Reason, reason_from_number
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.polling import poll_until_async
from tests.unit.router.fake_nodes import Fleet, failure_of
from tests.unit.router.fleets import STORE

Start = Callable[..., Awaitable[Fleet]]
PARTITIONS = 3
KEYS = sorted(f"key-{number:02}" for number in range(20))
NEWEST = MomentBound()


def of(bound: MomentBound = NEWEST) -> types_pb2.Freshness:
    return types_pb2.Freshness(moment=bound.to_proto())


def at_least(batch_id: int, query_id: str = "q") -> MomentBound:
    return MomentBound(Asked.AT_LEAST, MomentToken({query_id: batch_id}))


def exactly(batch_id: int, query_id: str = "q") -> MomentBound:
    return MomentBound(Asked.EXACTLY, MomentToken({query_id: batch_id}))


async def spread(start: Start, a: object, b: object, attempt_timeout_ms: int = 1_000) -> Fleet:
    """Partitions 0 and 2 on a, 1 on b; none has a standby. `a`, `b`: the batches that they show."""
    fleet = await start("a", "b", attempt_timeout_ms=attempt_timeout_ms)
    await fleet.publish(TaskAssignment("a"), TaskAssignment("b"), TaskAssignment("a"), epoch=2)
    for name, kept in (("a", a), ("b", b)):
        node = fleet.nodes[name]
        node.kept = kept  # type: ignore[assignment]
        fleet.heartbeat(name, PARTITIONS)
        for key in KEYS:
            node.data.setdefault(partition_for(key.encode(), PARTITIONS), {})[key.encode()] = b"1"
    while len(fleet.router.tables.current().stores[STORE].partitions[2].callable) < 1:
        await fleet.router.tables.wait_for_epoch(3, 0.02)
    return fleet


async def batch_of(
    fleet: Fleet, bounds: Sequence[MomentBound | None], keys: Sequence[str] = KEYS, timeout_s: float = 5.0
) -> list[query_service_pb2.BatchGetResult]:
    requests = [
        query_service_pb2.GetRequest(
            store=STORE, key=types_pb2.Key(text=key), freshness=None if bound is None else of(bound)
        )
        for key, bound in zip(keys, bounds, strict=True)
    ]
    response = await fleet.query.BatchGet(query_service_pb2.BatchGetRequest(requests=requests), timeout=timeout_s)
    return list(response.results)


def shown(results: Sequence[query_service_pb2.BatchGetResult]) -> set[tuple[str, int]]:
    assert all(each.HasField("response") for each in results), results
    return {(each.response.replica.moment.query_id, each.response.replica.moment.batch_id) for each in results}


async def scan(fleet: Fleet, **fields: object) -> query_service_pb2.ScanResponse:
    request = query_service_pb2.ScanRequest(store=STORE, **fields)  # type: ignore[arg-type]
    return await fleet.query.Scan(request, timeout=5.0)


def of_pages(page: query_service_pb2.ScanResponse | query_service_pb2.CountResponse) -> dict[int, int]:
    return {stamp.partition: stamp.moment.batch_id for stamp in page.replicas}


async def get(fleet: Fleet, bound: MomentBound, timeout_s: float = 5.0) -> query_service_pb2.GetResponse:
    request = query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text="k"), freshness=of(bound))
    return await fleet.query.Get(request, timeout=timeout_s)


async def test_a_lookup_is_of_the_batch_that_its_node_shows(start: Start) -> None:
    fleet = await start("a")
    fleet.nodes["a"].kept = [4, 5]
    assert (await get(fleet, NEWEST)).replica.moment == types_pb2.Moment(query_id="q", batch_id=5)
    assert (await get(fleet, exactly(4))).replica.moment.batch_id == 4
    assert fleet.nodes["a"].asked_for == [NEWEST, exactly(4)]


async def test_a_node_of_an_earlier_version_answers_nothing_where_a_moment_is_asked_for(start: Start) -> None:
    fleet = await start("a", "b")
    fleet.nodes["b"].kept = [5]
    assert (await get(fleet, NEWEST)).replica.host.instance_id == "b"
    assert len(fleet.nodes["a"].gets) == 1
    fleet.nodes["b"].kept = None
    failure = await failure_of(get(fleet, NEWEST))
    assert failure.reason is Reason.MOMENTS_UNAVAILABLE
    assert [each.detail for each in failure.candidates] == [
        f"node {name} is of an earlier version, and shows store {STORE} only as it is: upgrade it" for name in "ab"
    ]
    assert await fleet.get() == "a"


async def test_a_batch_that_no_replica_keeps_is_gone(start: Start) -> None:
    fleet = await start("a", "b")
    fleet.nodes["a"].kept = [7]
    fleet.nodes["b"].kept = [6, 7]
    assert (await get(fleet, exactly(6))).replica.host.instance_id == "b"
    fleet.nodes["b"].kept = [8]
    assert (await failure_of(get(fleet, exactly(6)))).reason is Reason.MOMENT_GONE
    assert len(fleet.nodes["a"].gets) == 2
    fleet.nodes["b"].kept = None
    assert (await failure_of(get(fleet, exactly(6)))).reason is Reason.MOMENT_GONE
    fleet.nodes["b"].failure = LookupFailure(Reason.TASK_FAILED, "disk full")
    assert (await failure_of(get(fleet, exactly(6)))).reason is Reason.NO_REPLICA_AVAILABLE


async def test_replicas_are_asked_until_one_has_reached_the_batch(start: Start) -> None:
    fleet = await start("a", "b")
    fleet.nodes["a"].kept, fleet.nodes["b"].kept = [], [3]

    def goes_on() -> LookupFailure | None:
        fleet.nodes["b"].kept = [3, len(fleet.nodes["b"].gets)]
        return None

    fleet.nodes["b"].failure = goes_on
    assert (await get(fleet, at_least(5))).replica.moment.batch_id == 5
    assert len(fleet.nodes["a"].gets) == 5
    # A node is given less time than the caller has, so that it says in time that it has not reached the batch.
    assert max(seconds or 9.0 for seconds in fleet.nodes["a"].times) < 4.5


async def test_a_batch_that_does_not_come_fails_with_what_there_is(start: Start) -> None:
    fleet = await start("a", "b")
    fleet.nodes["a"].kept, fleet.nodes["b"].kept = [3], None
    failure = await failure_of(get(fleet, at_least(5), timeout_s=0.5))
    assert failure.reason is Reason.MOMENT_NOT_REACHED
    assert failure.metadata["newest"] == "3"
    assert failure.metadata["query_id"] == "q"


async def test_a_late_read_of_a_given_batch_is_not_hedged(start: Start) -> None:
    fleet = await start("a", "b", hedge_min_ms=10)
    for node in fleet.nodes.values():
        node.kept = [5]
    fleet.nodes["a"].delay_s = 0.2
    assert (await get(fleet, exactly(5))).replica.host.instance_id == "a"
    assert (await get(fleet, NEWEST)).replica.host.instance_id == "b"


async def test_a_hedge_at_a_node_of_an_earlier_version_does_not_end_the_race(start: Start) -> None:
    fleet = await start("a", "b", hedge_min_ms=10)
    fleet.nodes["a"].kept, fleet.nodes["a"].delay_s = [5], 0.2
    assert (await get(fleet, NEWEST)).replica.host.instance_id == "a"
    assert len(fleet.nodes["b"].gets) == 1


async def test_the_entries_of_a_batch_show_one_batch(start: Start) -> None:
    fleet = await spread(start, [5, 6, 7], [5, 6])
    assert shown(await batch_of(fleet, [NEWEST] * len(KEYS))) == {("q", 6)}
    a, b = fleet.nodes["a"], fleet.nodes["b"]
    assert len(b.batches) == 1
    assert len(a.batches) == 2
    assert set(a.asked_for) == {NEWEST, exactly(6)}
    assert set(b.asked_for) == {NEWEST}


async def test_entries_without_a_moment_are_left_as_they_are(start: Start) -> None:
    fleet = await spread(start, [5, 6, 7], [5, 6])
    results = await batch_of(fleet, [None, *[NEWEST] * (len(KEYS) - 1)])
    assert not results[0].response.replica.HasField("moment")
    assert shown(results[1:]) == {("q", 6)}


@pytest.mark.parametrize("kept", [[40], [40, 41, 42]])
async def test_a_node_that_no_longer_keeps_the_earliest_has_the_others_wait_for_it(
    start: Start, kept: list[int]
) -> None:
    """It is far ahead, or has restored since."""
    fleet = await spread(start, kept, [5])

    def goes_on() -> None:
        fleet.nodes["b"].kept = [5, *kept]

    fleet.nodes["b"].on_shown = goes_on
    assert shown(await batch_of(fleet, [NEWEST] * len(KEYS))) == {("q", max(kept))}
    assert at_least(max(kept)) in fleet.nodes["b"].asked_for


async def test_what_never_agrees_says_what_each_had(start: Start) -> None:
    fleet = await spread(start, [1], [1])
    forget_what_was_shown(fleet)
    results = await batch_of(fleet, [NEWEST] * len(KEYS))
    failures = [LookupFailure.from_proto(each.error) for each in results]
    assert {failure.reason for failure in failures} == {Reason.MOMENT_NOT_REACHED}
    assert "partition 1 showed" in failures[0].message
    assert all(len(node.batches) <= ROUNDS for node in fleet.nodes.values())


def forget_what_was_shown(fleet: Fleet) -> None:
    """Have nodes keep only a batch that none has shown yet."""
    newer = itertools.count(2)

    def go_on() -> None:
        batch_id = next(newer)
        for node in fleet.nodes.values():
            node.kept = [batch_id]

    for node in fleet.nodes.values():
        node.on_shown = go_on


async def test_entries_that_want_at_least_a_batch_get_it_though_others_show_an_earlier_one(start: Start) -> None:
    fleet = await spread(start, [5, 6, 7], [5])

    def goes_on() -> None:
        fleet.nodes["b"].kept = [5, 6, 7]

    fleet.nodes["b"].on_shown = goes_on
    of_a = [partition_for(key.encode(), PARTITIONS) != 1 for key in KEYS]
    results = await batch_of(fleet, [at_least(7) if is_a else NEWEST for is_a in of_a])
    assert shown(results) == {("q", 7)}


async def test_each_query_has_its_own_batch_and_a_given_one_stays(start: Start) -> None:
    fleet = await spread(start, [5, 6, 7], [5, 6])
    for node in fleet.nodes.values():
        node.query_of = dict.fromkeys(KEYS[10:], "other")
    results = await batch_of(fleet, [exactly(5), *[NEWEST] * (len(KEYS) - 1)])
    assert shown(results[:1]) == {("q", 5)}
    for query_id, its in (("q", range(1, 10)), ("other", range(10, len(KEYS)))):
        is_at_b = any(partition_for(KEYS[each].encode(), PARTITIONS) == 1 for each in its)
        assert shown([results[each] for each in its]) == {(query_id, 6 if is_at_b else 7)}


async def test_an_entry_that_fails_does_so_alone(start: Start) -> None:
    fleet = await spread(start, [5, 6, 7], [5, 6])
    unfit = LookupFailure(Reason.VALUE_UNDECODABLE, "no json")
    for node in fleet.nodes.values():
        node.failures = {KEYS[0]: unfit}
    results = await batch_of(fleet, [NEWEST] * len(KEYS))
    assert reason_from_number(results[0].error.reason) is Reason.VALUE_UNDECODABLE
    assert shown(results[1:]) == {("q", 6)}


async def test_an_entry_that_must_wait_does_so_alone(start: Start) -> None:
    fleet = await spread(start, [5], [5])
    fleet.nodes["a"].lets_wait = True
    assert shown(await batch_of(fleet, [NEWEST] * len(KEYS))) == {("q", 5)}
    assert fleet.nodes["a"].gets


async def test_nodes_of_an_earlier_version_answer_no_entry_with_a_moment(start: Start) -> None:
    fleet = await spread(start, None, [5])
    results = await batch_of(fleet, [NEWEST] * len(KEYS))
    for key, result in zip(KEYS, results, strict=True):
        if partition_for(key.encode(), PARTITIONS) == 1:
            assert shown([result]) == {("q", 5)}
        else:
            assert reason_from_number(result.error.reason) is Reason.MOMENTS_UNAVAILABLE


async def test_a_page_shows_one_batch_of_all_partitions(start: Start) -> None:
    fleet = await spread(start, {0: [5, 6], 2: [6, 7, 8]}, [5, 6, 7])
    page = await scan(fleet, freshness=of())
    assert of_pages(page) == {0: 6, 1: 6, 2: 6}
    assert [entry.key.text for entry in page.entries] == KEYS
    # What a node says of several partitions is read again as a whole.
    assert [list(request.partitions) for request in fleet.nodes["a"].scans] == [[0, 2], [0, 2]]


async def test_all_pages_of_a_walk_show_the_batch_of_the_first(start: Start) -> None:
    fleet = await spread(start, [5, 6, 7], [5, 6])
    first = await scan(fleet, freshness=of(), page_size=3)
    for node in fleet.nodes.values():
        node.kept = [5, 6, 7, 8, 9]
    second = await scan(fleet, freshness=of(), page_size=3, page_token=first.next_page_token)
    third = await scan(fleet, page_size=3, page_token=second.next_page_token)
    assert [set(of_pages(page).values()) for page in (first, second, third)] == [{6}] * 3
    assert [entry.key.text for page in (first, second, third) for entry in page.entries] == KEYS[:9]
    fleet.nodes["b"].kept = [8, 9]
    gone = await failure_of(scan(fleet, freshness=of(), page_size=3, page_token=third.next_page_token))
    assert gone.reason is Reason.MOMENT_GONE
    assert gone.metadata["partition"] == "1"


async def test_the_moment_of_a_walk_is_read_at_all_replicas_as_long_as_pages_come(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = await spread(start, [5, 6], [5, 6])
    await fleet.publish(TaskAssignment("a", ("b",)), TaskAssignment("b"), TaskAssignment("a"), epoch=3)
    fleet.nodes["b"].data[0] = fleet.nodes["a"].data[0]
    fleet.heartbeat("b", PARTITIONS)
    routes = fleet.router.tables.current
    await poll_until_async(lambda: len(routes().stores[STORE].partitions[0].restored) == 2, 10, "the standby")
    monkeypatch.setattr(walks, "RENEW_S", 0.0)

    async def page(partition: int, token: str = "") -> query_service_pb2.ScanResponse:
        return await scan(fleet, freshness=of(exactly(5)), page_size=3, partition=partition, page_token=token)

    def asked_by_the_router(node: str) -> list[list[int]]:
        """Which partitions a node was asked for one entry."""
        mine = [each for each in fleet.nodes[node].scans if each.page_size == 1]
        assert {MomentBound.from_proto(each.freshness.moment) for each in mine} <= {exactly(5)}
        return [list(each.partitions) or [each.partition] for each in mine]

    first = await page(0)
    assert not asked_by_the_router("a"), "most walks are of one page"
    await page(0, first.next_page_token)
    await poll_until_async(lambda: asked_by_the_router("a") and asked_by_the_router("b"), 10, "all replicas")
    assert (asked_by_the_router("a"), asked_by_the_router("b")) == ([[0, 2]], [[0, 1]])
    del fleet.nodes["b"].data[0]  # one partition that it can't read keeps it from no other
    await page(2)
    await poll_until_async(lambda: len(asked_by_the_router("b")) == 4, 10, "each by itself")
    assert asked_by_the_router("b")[1:] == [[0, 1], [0], [1]]
    monkeypatch.setattr(walks, "RENEW_S", 60.0)
    await page(2)
    await scan(fleet, page_size=3)
    assert len(asked_by_the_router("a")) == 2


async def test_a_page_waits_for_a_partition_that_is_far_behind(start: Start) -> None:
    fleet = await spread(start, [40, 41], [5])

    def goes_on() -> None:
        fleet.nodes["b"].kept = [5, 41, 42]

    fleet.nodes["b"].on_shown = goes_on
    assert set(of_pages(await scan(fleet, freshness=of())).values()) == {41}


async def test_a_page_that_never_agrees_fails(start: Start) -> None:
    fleet = await spread(start, [1], [1])
    forget_what_was_shown(fleet)
    failure = await failure_of(scan(fleet, freshness=of()))
    assert failure.reason is Reason.MOMENT_NOT_REACHED


async def test_a_page_of_nodes_of_an_earlier_version_is_none(start: Start) -> None:
    fleet = await spread(start, None, [5])
    failure = await failure_of(scan(fleet, freshness=of()))
    assert failure.reason is Reason.MOMENTS_UNAVAILABLE
    assert failure.metadata["partition"] in {"0", "2"}
    assert len((await scan(fleet)).entries) == len(KEYS)


async def test_a_count_is_of_one_batch(start: Start) -> None:
    fleet = await spread(start, [5, 6, 7], [5, 6])
    request = query_service_pb2.CountRequest(store=STORE, freshness=of())
    counted = await fleet.query.Count(request, timeout=5.0)
    assert counted.count == len(KEYS)
    assert of_pages(counted) == {0: 6, 1: 6, 2: 6}


async def test_a_watch_is_of_no_moment(start: Start) -> None:
    fleet = await start("a")
    watch = fleet.query.Watch(query_service_pb2.WatchRequest(store=STORE, freshness=of()))
    assert (await failure_of(watch.read())).reason is Reason.INVALID_REQUEST


async def test_a_moment_that_names_nothing_is_refused(start: Start) -> None:
    fleet = await start("a")
    request = query_service_pb2.GetRequest(
        store=STORE, key=types_pb2.Key(text="k"), freshness=types_pb2.Freshness(moment=types_pb2.MomentBound())
    )
    assert (await failure_of(fleet.query.Get(request))).reason is Reason.INVALID_REQUEST
