"""Lookups whose first candidate is late: a second one is asked, within the bound and the retry budget."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from router.calls.attempts import Attempts
from router.fleet.table import RoutedNode
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import fleet_service_pb2, fleet_service_pb2_grpc, query_service_pb2, types_pb2
from tests.support.polling import poll_until_async
from tests.unit.router.fake_nodes import Fleet, failure_of
from tests.unit.router.fleets import STORE

Start = Callable[..., Awaitable[Fleet]]
# Nothing in these tests may hang on how long an attempt takes: hedges come immediately, and attempts last.
HASTY = {"attempt_timeout_ms": 8_000, "hedge_min_ms": 1}
NO_BUDGET = {"retry_budget_percent": 0, "retry_budget_per_s": 0}


def _count(fleet: Fleet, metric: str, **labels: str) -> int:
    return int(fleet.router.metrics.registry.get_sample_value(f"statehouse_router_{metric}_total", labels) or 0)


def _hedges(fleet: Fleet) -> dict[str, int]:
    counts = {outcome: _count(fleet, "hedges", outcome=outcome) for outcome in ("won", "lost", "refused")}
    return {outcome: count for outcome, count in counts.items() if count}


@pytest.mark.feature("hedged-lookups-within")
async def test_the_standby_answers_for_an_active_that_is_late(start: Start) -> None:
    fleet = await start("a", "b", **HASTY)
    fleet.nodes["a"].freeze()
    assert await fleet.get() == "b"
    assert _hedges(fleet) == {"won": 1}
    assert not fleet.router.health.suspects, "one lost hedge shows nothing"
    assert _count(fleet, "attempts", reason="CANCELLED") == 1


async def test_the_active_that_answers_first_after_all_is_taken(start: Start) -> None:
    fleet = await start("a", "b", **HASTY)
    for node in fleet.nodes.values():
        node.freeze()
    lookup = asyncio.create_task(fleet.get())
    await poll_until_async(lambda: fleet.nodes["b"].held, 10, "the hedge")
    fleet.nodes["a"].thaws.set()
    assert await lookup == "a"
    assert _hedges(fleet) == {"lost": 1}


async def test_a_hedge_that_fails_leaves_the_first_its_time(start: Start) -> None:
    fleet = await start("a", "b", "c", **HASTY)
    fleet.nodes["a"].freeze()
    fleet.nodes["b"].failure = LookupFailure(Reason.PARTITION_RESTORING, "at 5 of 10")
    lookup = asyncio.create_task(fleet.get())
    await poll_until_async(lambda: fleet.nodes["b"].gets, 10, "the hedge")
    fleet.nodes["a"].thaws.set()
    assert await lookup == "a"
    assert not fleet.nodes["c"].gets, "one hedge a lookup"


async def test_a_defect_in_a_hedge_reaches_the_log_and_not_the_lookup(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = await start("a", "b", **HASTY)
    fleet.nodes["a"].freeze()
    make = Attempts.make

    async def make_or_break(attempts: Attempts, node: RoutedNode, *args: Any, **options: Any) -> Any:
        if node.instance_id == "b":
            raise ValueError("a defect in hedging")
        return await make(attempts, node, *args, **options)

    monkeypatch.setattr(Attempts, "make", make_or_break)
    lookup = asyncio.create_task(fleet.get())
    await poll_until_async(lambda: "a defect in hedging" in caplog.text, 10, "the defect")
    fleet.nodes["a"].thaws.set()
    assert await lookup == "a"


async def test_a_quick_refusal_is_no_matter_for_a_hedge(start: Start) -> None:
    fleet = await start("a", "b", attempt_timeout_ms=8_000, hedge_min_ms=8_000)
    fleet.nodes["a"].failure = LookupFailure(Reason.PARTITION_NOT_OWNED, "not here")
    assert await fleet.get() == "b"
    assert not _hedges(fleet)
    assert not _count(fleet, "retries", outcome="sent"), "and costs the budget nothing"


async def test_who_demands_the_active_gets_no_hedge(start: Start) -> None:
    fleet = await start("a", "b", **HASTY)
    fleet.nodes["a"].freeze()
    failure = await failure_of(fleet.get(timeout_s=0.5, freshness=types_pb2.Freshness(active_only=True)))
    assert failure.reason in {Reason.DEADLINE_EXCEEDED, Reason.ATTEMPT_TIMED_OUT}, "the router's word, or our own time"
    assert not fleet.nodes["b"].gets
    assert not _hedges(fleet)


@pytest.mark.feature("hedged-lookups-within")
async def test_a_replica_beyond_the_bound_gets_no_hedge(start: Start) -> None:
    fleet = await start("a", "b", **HASTY)
    before = fleet.router.tables.table
    fleet.heartbeat("b", position=1, end=10)
    await poll_until_async(lambda: fleet.router.tables.table is not before, 10, "the next table")
    fleet.nodes["a"].freeze()
    lookup = asyncio.create_task(fleet.get(freshness=types_pb2.Freshness(max_lag=5)))
    await poll_until_async(lambda: fleet.nodes["a"].held, 10, "the attempt")
    fleet.nodes["a"].thaws.set()
    assert await lookup == "a"
    assert not fleet.nodes["b"].gets


async def test_a_count_may_take_its_time(start: Start) -> None:
    fleet = await start("a", "b", attempt_timeout_ms=100, hedge_min_ms=1)
    fleet.nodes["a"].freeze()
    await fleet.query.Count(query_service_pb2.CountRequest(store=STORE, partition=0), timeout=1.0)
    assert not _hedges(fleet)


async def test_without_budget_a_retry_still_goes_to_a_replica_that_is_well(start: Start) -> None:
    fleet = await start("a", "b", attempt_timeout_ms=100, hedge_min_ms=1, **NO_BUDGET)
    fleet.nodes["a"].freeze()
    assert await fleet.get() == "b"
    assert _hedges(fleet) == {"refused": 1}
    assert fleet.router.health.suspects["a"].reason is Reason.ATTEMPT_TIMED_OUT


async def test_a_slow_fleet_without_budget_is_waited_for(start: Start) -> None:
    fleet = await start("a", "b", attempt_timeout_ms=100, hedge_min_ms=100, **NO_BUDGET)
    for node in fleet.nodes.values():
        node.freeze()
    lookup = asyncio.create_task(fleet.get())
    await poll_until_async(lambda: _count(fleet, "retries", outcome="refused") > 1, 10, "the attempt's time to run out")
    assert set(fleet.router.health.suspects) == {"a", "b"}
    fleet.nodes["b"].thaws.set()
    assert await lookup == "b"
    assert (len(fleet.nodes["a"].gets), len(fleet.nodes["b"].gets)) == (0, 1)


async def test_a_failure_tells_what_the_budget_refused(start: Start) -> None:
    fleet = await start("a", attempt_timeout_ms=200, **NO_BUDGET)
    fleet.nodes["a"].freeze()
    failure = await failure_of(fleet.get(timeout_s=1.0))
    assert failure.reason is Reason.DEADLINE_EXCEEDED
    assert failure.metadata["retry_budget_refused"] == "retry"
    assert "retry budget" in failure.message


async def test_lookups_fill_the_budget(start: Start) -> None:
    fleet = await start("a", "b", **HASTY, retry_budget_percent=50, retry_budget_per_s=0)
    for _ in range(5):
        assert await fleet.get() == "a"
    fleet.nodes["a"].freeze()
    assert await fleet.get() == "b"
    lookup = asyncio.create_task(fleet.get())
    await poll_until_async(lambda: _hedges(fleet) == {"won": 1, "refused": 1}, 10, "the refusal")
    fleet.nodes["a"].thaws.set()
    assert await lookup == "a"


async def test_a_frozen_node_costs_a_few_lookups_the_hedge_delay_and_later_ones_nothing(start: Start) -> None:
    fleet = await start("a", "b", **HASTY)
    fleet.nodes["a"].freeze()
    assert [await fleet.get() for _ in range(30)] == ["b"] * 30
    assert _hedges(fleet) == {"won": 5}
    assert fleet.router.health.suspects["a"].reason is Reason.ATTEMPT_TIMED_OUT


async def test_a_frozen_node_that_is_called_slow_is_found_silent_by_a_probe(start: Start) -> None:
    fleet = await start("a", "b", attempt_timeout_ms=200, hedge_min_ms=1)
    fleet.nodes["a"].freeze()
    assert [await fleet.get() for _ in range(5)] == ["b"] * 5
    await poll_until_async(lambda: not fleet.router.health.suspects["a"].is_slow, 10, "a probe to run out of time")
    fleet.nodes["a"].thaws.set()
    await poll_until_async(lambda: not fleet.router.health.suspects, 10, "a probe to get through")
    assert await fleet.get() == "a"


@pytest.mark.feature("slow-dead-nodes")
async def test_a_slow_node_is_asked_last_and_taken_back_once_it_is_quick(start: Start) -> None:
    fleet = await start("a", "b", **HASTY)
    fleet.nodes["a"].delay_s = 0.5
    assert [await fleet.get() for _ in range(10)] == ["b"] * 10
    assert _hedges(fleet) == {"won": 5}
    assert fleet.router.health.suspects["a"].is_slow
    located = await _locate(fleet)
    assert [item.host.instance_id for item in located.candidates] == ["b", "a"]
    assert located.candidates[1].detail.startswith("slow")
    fleet_now = await fleet_service_pb2_grpc.FleetServiceStub(fleet.channel).GetFleet(
        fleet_service_pb2.GetFleetRequest()
    )
    assert all(node.reachable for node in fleet_now.nodes), "slow is not dead"
    assert _count(fleet, "suspicions", state="slow") == 1
    fleet.nodes["a"].delay_s = 0.0
    await poll_until_async(lambda: not fleet.router.health.suspects, 10, "a quick probe")
    assert await fleet.get() == "a"


async def test_slow_answers_show_a_slow_node_where_nobody_else_may_answer(start: Start) -> None:
    fleet = await start("a", "b", **HASTY)
    fleet.nodes["a"].delay_s = 0.2
    active_only = types_pb2.Freshness(active_only=True)
    assert [await fleet.get(freshness=active_only) for _ in range(6)] == ["a"] * 6
    assert fleet.router.health.suspects["a"].is_slow, "its own late answers don't clear it"
    assert await fleet.get() == "b"


async def test_batches_learn_of_a_slow_node_and_leave_it(start: Start) -> None:
    fleet = await start("a", "b", **HASTY)
    fleet.nodes["a"].delay_s = 0.2
    assert [await _batch(fleet) for _ in range(6)] == ["a"] * 5 + ["b"]
    assert fleet.router.health.suspects["a"].is_slow


async def test_a_batch_at_a_frozen_node_is_grouped_again_and_later_ones_pass_it_over(start: Start) -> None:
    fleet = await start("a", "b", attempt_timeout_ms=1_000, hedge_min_ms=1)  # the other must not be late, too
    fleet.nodes["a"].freeze()
    assert [await _batch(fleet) for _ in range(5)] == ["b"] * 5
    assert len(fleet.nodes["b"].batches) == 5
    assert _count(fleet, "retries", outcome="sent") == 1
    assert not _hedges(fleet)


async def test_a_wait_for_a_position_is_not_held_against_a_node_that_had_not_reported_it(start: Start) -> None:
    fleet = await start("a", "b", **HASTY)
    position = types_pb2.StorePosition(store=STORE, partition=0, position=11)  # the heartbeats say 10
    freshness = types_pb2.Freshness(active_only=True, at_least=types_pb2.Positions(positions=[position]))
    fleet.nodes["a"].delay_s = 0.2
    assert [await fleet.get(freshness=freshness) for _ in range(6)] == ["a"] * 6
    assert not fleet.router.health.suspects
    freshness.active_only = False
    freshness.at_least.positions[0].position = 5
    fleet.nodes["a"].delay_s = 2.0
    assert [await fleet.get(freshness=freshness) for _ in range(6)] == ["b"] * 6
    assert _hedges(fleet) == {"won": 5}, "after which the node that was overtaken is asked last"


async def test_calls_given_up_leave_nothing_behind(start: Start, recwarn: pytest.WarningsRecorder) -> None:
    fleet = await start("a", "b", **HASTY)
    assert await fleet.get() == "a"
    tasks = len(asyncio.all_tasks())
    fleet.nodes["a"].freeze()
    lookups = [asyncio.create_task(fleet.get(str(number))) for number in range(4)]
    assert await asyncio.gather(*lookups) == ["b"] * 4
    fleet.nodes["a"].thaws.set()
    await poll_until_async(lambda: len(asyncio.all_tasks()) <= tasks, 10, "the tasks to end")
    gc.collect()
    assert not recwarn.list


async def _locate(fleet: Fleet) -> fleet_service_pb2.LocateKeyResponse:
    stub = fleet_service_pb2_grpc.FleetServiceStub(fleet.channel)
    return await stub.LocateKey(fleet_service_pb2.LocateKeyRequest(store=STORE, key=types_pb2.Key(text="k")))


async def _batch(fleet: Fleet) -> str:
    """Look two keys up in one batch; returns which node answered both."""
    requests = [query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text=key)) for key in ("k", "l")]
    answer = await fleet.query.BatchGet(query_service_pb2.BatchGetRequest(requests=requests))
    (node,) = {result.response.replica.host.instance_id for result in answer.results}
    return node
