"""Lookups through a router in front of nodes that fail in every way a lookup can meet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from router.lookups.locate import keyed_call
from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure, Reason, reason_from_number
from statehouse.rpc.deadline import Deadline
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.polling import poll_until_async
from tests.unit.router.fake_nodes import Fleet, failure_of, wrong_owner
from tests.unit.router.fleets import STORE

Start = Callable[..., Awaitable[Fleet]]
RESTORING = LookupFailure(Reason.PARTITION_RESTORING, "at 5 of 10")
TOO_STALE = LookupFailure(Reason.STALENESS_EXCEEDS_BOUND, "staleness 4072 ms exceeds max_staleness_ms 1500")


async def _seconds(lookup: Awaitable[object]) -> float:
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    await lookup
    return loop.time() - started_at


def _reasons(failure: LookupFailure) -> dict[str, Reason]:
    return {item.host.instance_id: reason_from_number(item.reason) for item in failure.candidates}


async def test_the_active_answers_and_nobody_else_is_asked(start: Start) -> None:
    fleet = await start("a", "b")
    assert await fleet.get() == "a"
    (request,) = fleet.nodes["a"].gets
    assert (request.forwarding.hops, request.forwarding.epoch, request.key.text) == (1, 1, "k")
    assert not fleet.nodes["b"].gets


async def test_a_dead_active_costs_no_lookup(start: Start) -> None:
    fleet = await start("a", "b")
    assert await fleet.get() == "a"
    await fleet.nodes["a"].kill()
    assert [await fleet.get() for _ in range(5)] == ["b"] * 5
    assert fleet.router.health.suspects["a"].reason is Reason.UNREACHABLE


async def test_a_node_that_never_listened_costs_no_lookup(start: Start) -> None:
    fleet = await start("a", "b")
    await fleet.nodes["a"].kill()
    assert await fleet.get() == "b"


async def test_without_hedges_a_frozen_active_costs_one_attempt_and_then_nothing(start: Start) -> None:
    fleet = await start("a", "b", attempt_timeout_ms=400)
    fleet.nodes["a"].freeze()
    assert 0.35 < await _seconds(fleet.get()) < 8.0
    suspicion = fleet.router.health.suspects["a"]
    assert suspicion.reason is Reason.ATTEMPT_TIMED_OUT
    asked = len(fleet.nodes["a"].gets)
    assert [await fleet.get() for _ in range(10)] == ["b"] * 10
    assert len(fleet.nodes["a"].gets) == asked
    fleet.nodes["a"].thaws.set()
    await poll_until_async(lambda: not fleet.router.health.suspects, 10, "a probe to get through")
    assert await fleet.get() == "a"


async def test_a_new_incarnation_is_asked_in_its_turn_at_once(start: Start) -> None:
    fleet = await start("a", "b")
    await fleet.nodes["a"].kill()
    assert await fleet.get() == "b"
    await fleet.nodes["a"].restart()
    fleet.new_incarnation("a")
    fleet.heartbeat("a")
    await poll_until_async(lambda: not fleet.router.health.suspects, 10, "the suspicion to end")
    assert await fleet.get() == "a"


async def test_a_heartbeat_of_the_same_incarnation_clears_nothing(start: Start) -> None:
    fleet = await start("a", "b", attempt_timeout_ms=100)
    fleet.nodes["a"].freeze()
    assert await fleet.get() == "b"
    before = fleet.router.tables.table
    fleet.heartbeat("a")
    await poll_until_async(lambda: fleet.router.tables.table is not before, 10, "the next table")
    assert "a" in fleet.router.health.suspects


@pytest.mark.feature("dispatch-active-else")
async def test_a_newer_route_is_followed_at_once(start: Start) -> None:
    fleet = await start("a", "b")
    new = await fleet.node("new")  # the router has not heard of it
    fleet.nodes["a"].failure = wrong_owner(2, new)
    assert await fleet.get() == "new"
    assert not fleet.nodes["b"].gets, "the route's hosts come before the router's own candidates"


async def test_an_older_route_is_not_followed(start: Start) -> None:
    fleet = await start("a", "b")
    old = await fleet.node("old")
    fleet.nodes["a"].failure = wrong_owner(1, old)
    assert await fleet.get() == "b"
    assert not old.gets


async def test_active_only_follows_a_newer_route_to_its_active_alone(start: Start) -> None:
    fleet = await start("a", "b")
    new = await fleet.node("new")
    moved = wrong_owner(2, new, fleet.nodes["b"])
    fleet.nodes["a"].failure = LookupFailure(Reason.NOT_ACTIVE, "no longer", route=moved.route)
    assert await fleet.get(freshness=types_pb2.Freshness(active_only=True)) == "new"
    assert not fleet.nodes["b"].gets


async def test_a_restoring_replica_leads_to_the_next(start: Start) -> None:
    fleet = await start("a", "b")
    fleet.nodes["a"].failure = RESTORING
    assert await fleet.get() == "b"
    assert "a" not in fleet.router.health.suspects, "it answered: it is neither slow nor dead"


@pytest.mark.parametrize("passing", [RESTORING, TOO_STALE], ids=["restoring", "too stale"])
async def test_a_failure_that_passes_is_asked_for_once_more(start: Start, passing: LookupFailure) -> None:
    fleet = await start("a")
    answers: list[LookupFailure | None] = [passing, None]
    fleet.nodes["a"].failure = lambda: answers.pop(0)
    assert await fleet.get() == "a"


@pytest.mark.parametrize("refusal", [TOO_STALE, RESTORING], ids=["too stale", "restoring"])
async def test_what_a_node_says_after_a_freeze_is_its_first_word(start: Start, refusal: LookupFailure) -> None:
    fleet = await start("a", attempt_timeout_ms=100)
    node = fleet.nodes["a"]
    node.failure = lambda: refusal if len(node.gets) == 1 else None
    node.freeze()
    lookup = asyncio.create_task(fleet.get())
    await poll_until_async(lambda: node.left_held > 0, 10, "the first attempt to run out of time")
    node.thaws.set()
    assert await lookup == "a"


@pytest.mark.feature("dispatch-active-else")
async def test_a_bound_that_nobody_keeps_is_asked_for_twice(start: Start) -> None:
    fleet = await start("a", "b")
    for node in fleet.nodes.values():
        node.failure = TOO_STALE
    failure = await failure_of(fleet.get())
    assert _reasons(failure) == dict.fromkeys("ab", Reason.STALENESS_EXCEEDS_BOUND)
    assert [node.lookups for node in fleet.nodes.values()] == [2, 2]


async def test_a_later_failure_does_not_hide_the_first(start: Start) -> None:
    fleet = await start("a")
    answers = [RESTORING, LookupFailure(Reason.INTERNAL, "internal error")]
    fleet.nodes["a"].failure = lambda: answers.pop(0)
    failure = await failure_of(fleet.get())
    assert not answers
    assert _reasons(failure) == {"a": Reason.PARTITION_RESTORING}
    assert "at 5 of 10" in failure.message


async def test_a_node_ahead_of_the_router_is_met_again_at_its_epoch(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.lookups.dispatch._PAUSE_S", 0.0)  # what it waits for is the epoch
    fleet = await start("a")
    gone = LookupFailure(Reason.PARTITION_NOT_OWNED, "moved", route=wrong_owner(2, fleet.nodes["a"]).route)
    gone.route.active.Clear()  # the node knows that it lost the partition, not where to
    fleet.nodes["a"].failure = gone
    lookup = asyncio.create_task(fleet.get())
    await poll_until_async(lambda: fleet.nodes["a"].gets, 10, "the first attempt")
    await fleet.node("b")
    fleet.heartbeat("b")
    await fleet.publish(TaskAssignment("b"), epoch=2)
    assert await lookup == "b"


@pytest.mark.parametrize("is_behind", [True, False])
async def test_a_new_active_that_does_not_know_yet_is_asked_until_it_does(start: Start, is_behind: bool) -> None:
    fleet = await start("a", "b")
    await fleet.publish(TaskAssignment("b", ("a",)), epoch=2)
    route = wrong_owner(1 if is_behind else 2, fleet.nodes["a"]).route
    refusal = LookupFailure(Reason.NOT_ACTIVE, "this replica is standby", route=route)
    answers: list[LookupFailure | None] = [refusal] * 4 + [None]
    fleet.nodes["b"].failure = lambda: answers.pop(0)
    lookup = fleet.get(freshness=types_pb2.Freshness(active_only=True))
    if is_behind:
        assert await lookup == "b"
    else:
        assert _reasons(await failure_of(lookup))["b"] is Reason.NOT_ACTIVE
        assert len(answers) == 3, "two rounds, where nobody speaks of another epoch"


@pytest.mark.feature("failures-reason-list")
async def test_the_failure_names_every_candidate_and_the_first_error(start: Start) -> None:
    fleet = await start("a", "b", "c")
    await fleet.nodes["a"].kill()
    fleet.nodes["b"].failure = RESTORING
    fleet.nodes["c"].failure = LookupFailure(Reason.TASK_FAILED, "disk full")
    failure = await failure_of(fleet.get())
    assert failure.reason is Reason.NO_REPLICA_AVAILABLE
    assert _reasons(failure) == {
        "a": Reason.UNREACHABLE,
        "b": Reason.PARTITION_RESTORING,
        "c": Reason.TASK_FAILED,
    }
    assert "first failure: a: UNREACHABLE" in failure.message
    assert "disk full" in str(failure)
    assert failure.metadata["first_reason"] == "UNREACHABLE"


async def test_a_store_without_standbys_says_so(start: Start) -> None:
    fleet = await start("a")
    await fleet.nodes["a"].kill()
    failure = await failure_of(fleet.get())
    assert "no standby is configured" in failure.message
    assert _reasons(failure) == {"a": Reason.UNREACHABLE}


async def test_candidates_left_out_are_named_too(start: Start) -> None:
    fleet = await start("a", "b")
    fleet.nodes["a"].failure = LookupFailure(Reason.ACTIVE_UNCONFIRMED, "cut off")
    failure = await failure_of(fleet.get(freshness=types_pb2.Freshness(active_only=True)))
    assert _reasons(failure) == {"a": Reason.ACTIVE_UNCONFIRMED, "b": Reason.NOT_ACTIVE}
    assert not fleet.nodes["b"].gets


async def test_a_final_failure_is_passed_through_at_once(start: Start) -> None:
    fleet = await start("a", "b")
    fleet.nodes["a"].failure = LookupFailure(Reason.VALUE_UNDECODABLE, "not JSON", {"key": "k"})
    failure = await failure_of(fleet.get())
    assert (failure.reason, failure.message, failure.metadata) == (
        Reason.VALUE_UNDECODABLE,
        "not JSON",
        {"key": "k"},
    )
    assert not fleet.nodes["b"].gets


@pytest.mark.feature("overload-bounded-queues")
async def test_overload_is_never_sent_again_to_the_same_node(start: Start) -> None:
    fleet = await start("a", "b")
    for node in fleet.nodes.values():
        node.failure = LookupFailure(Reason.OVERLOADED, "queue full")
    failure = await failure_of(fleet.get())
    assert failure.reason is Reason.OVERLOADED
    assert [len(node.gets) for node in fleet.nodes.values()] == [1, 1]
    fleet.nodes["b"].failure = None
    assert await fleet.get() == "b"


async def test_a_slow_fleet_is_given_more_time_with_each_round(start: Start) -> None:
    fleet = await start("a", "b", attempt_timeout_ms=50, hedge_min_ms=50)
    for node in fleet.nodes.values():
        node.delay_s = 0.3
    assert await fleet.get(timeout_s=30.0) in {"a", "b"}


async def test_a_slow_node_is_asked_again_an_overloaded_one_is_not(start: Start) -> None:
    fleet = await start("a", "b", attempt_timeout_ms=50, hedge_min_ms=50)
    fleet.nodes["a"].delay_s = 0.3
    fleet.nodes["b"].failure = LookupFailure(Reason.OVERLOADED, "queue full")
    assert await fleet.get(timeout_s=30.0) == "a"
    assert len(fleet.nodes["b"].gets) == 1


@pytest.mark.feature("dispatch-active-else")
async def test_the_callers_deadline_is_kept_and_the_failure_still_tells_why(start: Start) -> None:
    fleet = await start("a", "b", attempt_timeout_ms=5_000)
    for node in fleet.nodes.values():
        node.freeze()
    seconds = await _seconds(failure_of(fleet.get(timeout_s=0.6)))
    assert seconds < 4.5, "no attempt has come to its end"
    failure = await failure_of(fleet.get(timeout_s=0.6))
    assert failure.reason is Reason.DEADLINE_EXCEEDED
    assert _reasons(failure) == {"a": Reason.ATTEMPT_TIMED_OUT, "b": Reason.ATTEMPT_TIMED_OUT}


async def test_nobody_is_asked_for_a_caller_who_has_given_up(start: Start) -> None:
    fleet = await start("a", "b")
    request = query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text="k"))
    call = keyed_call(fleet.router.tables.current(), "Get", request.SerializeToString())
    with pytest.raises(LookupFailure) as caught:
        await fleet.router.first.lookups.keys.answer(call, Deadline.after(0.0))
    assert caught.value.reason is Reason.DEADLINE_EXCEEDED
    assert not fleet.nodes["a"].gets


async def test_a_short_deadline_leaves_the_standby_its_turn(start: Start) -> None:
    fleet = await start("a", "b", attempt_timeout_ms=5_000)
    fleet.nodes["a"].freeze()
    assert await fleet.get(timeout_s=2.0) == "b"


async def test_a_late_answer_is_not_given_twice(start: Start) -> None:
    fleet = await start("a", "b", attempt_timeout_ms=1_000)
    fleet.nodes["a"].freeze()
    lookups = [asyncio.create_task(fleet.get(str(number))) for number in range(20)]
    assert await asyncio.gather(*lookups) == ["b"] * 20
    fleet.nodes["a"].thaws.set()
    await poll_until_async(lambda: not fleet.router.health.suspects, 10, "a probe to get through")
    assert fleet.nodes["b"].lookups == 20, "each lookup was answered by one node, once"
    count = "statehouse_router_lookups_total"
    registry = fleet.router.metrics.registry
    assert registry.get_sample_value(count, {"store": STORE, "outcome": "OK", "role": "STANDBY"}) == 20


async def test_an_active_reported_restoring_is_still_asked_when_nothing_else_is_left(start: Start) -> None:
    fleet = await start("a")
    before = fleet.router.tables.table
    fleet.heartbeat("a", state="restoring")
    await poll_until_async(lambda: fleet.router.tables.table is not before, 10, "the next table")
    assert await fleet.get() == "a"


async def test_a_request_from_another_router_is_refused(start: Start) -> None:
    fleet = await start("a")
    failure = await failure_of(fleet.get(forwarding=types_pb2.Forwarding(hops=1)))
    assert failure.reason is Reason.HOP_LIMIT
    assert not fleet.nodes["a"].gets


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (query_service_pb2.GetRequest(store="nope", key=types_pb2.Key(text="k")), Reason.UNKNOWN_STORE),
        (query_service_pb2.GetRequest(store=STORE), Reason.INVALID_KEY),
        (
            query_service_pb2.GetRequest(
                store=STORE, key=types_pb2.Key(text="k"), freshness=types_pb2.Freshness(max_lag=-1)
            ),
            Reason.INVALID_REQUEST,
        ),
    ],
)
async def test_a_request_that_cannot_be_routed_is_refused(
    start: Start, request_: query_service_pb2.GetRequest, reason: Reason
) -> None:
    fleet = await start("a")
    assert (await failure_of(fleet.query.Get(request_))).reason is reason


async def test_bytes_that_are_no_request_are_refused(start: Start) -> None:
    fleet = await start("a")
    call = fleet.channel.unary_unary("/statehouse.v1.QueryService/Get")
    assert (await failure_of(call(b"\xff\xff"))).reason is Reason.INVALID_REQUEST


async def test_a_store_new_to_a_node_leads_to_the_next(start: Start) -> None:
    fleet = await start("a", "b")
    fleet.nodes["a"].failure = LookupFailure(Reason.UNKNOWN_STORE, "not in my assignment")
    assert await fleet.get() == "b"


async def test_before_the_first_table_lookups_are_told_to_come_back() -> None:
    fleet = Fleet()
    await fleet.router.start()
    try:
        failure = await failure_of(fleet.get())
        assert failure.reason is Reason.ROUTING_NOT_READY
    finally:
        await fleet.stop()


NOT_BUILT = LookupFailure(Reason.STORE_NOT_BUILT, "nothing has been committed into store scores yet")


async def test_a_store_that_no_node_knows_a_batch_of_fails_with_that_reason(start: Start) -> None:
    fleet = await start("a", "b")
    fleet.nodes["a"].failure = fleet.nodes["b"].failure = NOT_BUILT
    failure = await failure_of(fleet.get())
    assert failure.reason is Reason.STORE_NOT_BUILT
    assert set(_reasons(failure).values()) == {Reason.STORE_NOT_BUILT}
    assert "standby" not in failure.message, "another copy would change nothing"


async def test_a_node_that_has_heard_of_the_first_batch_answers(start: Start) -> None:
    fleet = await start("a", "b")
    fleet.nodes["a"].failure = NOT_BUILT
    assert await fleet.get() == "b"
    fleet.nodes["b"].failure = RESTORING
    failure = await failure_of(fleet.get())
    assert failure.reason is Reason.NO_REPLICA_AVAILABLE, "it might answer once it is restored"


async def test_lookups_are_held_until_the_first_batch(start: Start) -> None:
    fleet = await start("a", hold_window_ms=20_000)
    fleet.nodes["a"].failure = NOT_BUILT
    lookup = asyncio.ensure_future(fleet.get())
    await poll_until_async(lambda: len(fleet.nodes["a"].gets) > 4, 10, "more tries than without a hold")
    fleet.nodes["a"].failure = None
    assert await lookup == "a"
