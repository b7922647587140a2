"""Lookups that nobody can answer yet: which are held, for how long, and what becomes of them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.choice.hold import HoldOutcome, Holds, HoldWindow
from statehouse.errors import LookupFailure, Reason, reason_from_number
from statehouse.v1 import fleet_service_pb2, fleet_service_pb2_grpc, query_service_pb2, types_pb2
from tests.support.polling import poll_until_async
from tests.unit.router.fake_nodes import Fleet, failure_of
from tests.unit.router.fleets import STORE

Start = Callable[..., Awaitable[Fleet]]
PLACE, OTHER = ("scores", 0), ("scores", 1)


def new_holds(window_s: float = 10, most: int = 2, min_interval_s: float = 60) -> Holds:
    return Holds(window_s=window_s, most=most, min_interval_s=min_interval_s)


def verdicts(holds: Holds, *times: float, place: tuple[str, int] = PLACE) -> list[HoldOutcome]:
    return [holds.begin(place, now)[0] for now in times]


def test_without_a_window_nothing_is_held() -> None:
    assert verdicts(new_holds(window_s=0), 1) == [HoldOutcome.OFF]


def test_a_window_begins_with_the_first_lookup_and_the_next_one_later() -> None:
    holds = new_holds(most=100)
    assert verdicts(holds, 0, 9.9, 10, 69.9, 70, 79.9, 80) == [
        HoldOutcome.HELD,
        HoldOutcome.HELD,
        HoldOutcome.TOO_SOON,
        HoldOutcome.TOO_SOON,
        HoldOutcome.HELD,
        HoldOutcome.HELD,
        HoldOutcome.TOO_SOON,
    ]


def test_a_window_nobody_came_back_to_does_not_delay_the_next_one() -> None:
    holds = new_holds()
    assert verdicts(holds, 0, 1_000) == [HoldOutcome.HELD, HoldOutcome.HELD]


def test_an_answer_ends_the_window() -> None:
    holds = new_holds()
    _, window = holds.begin(PLACE, 0)
    assert window is not None
    holds.end(window, 3, is_answered=True)
    assert verdicts(holds, 4, 62.9, 63) == [HoldOutcome.TOO_SOON, HoldOutcome.TOO_SOON, HoldOutcome.HELD]


def test_the_room_is_for_all_partitions_together() -> None:
    holds = new_holds()
    assert verdicts(holds, 0, 1) + verdicts(holds, 1, place=OTHER) == [
        HoldOutcome.HELD,
        HoldOutcome.HELD,
        HoldOutcome.FULL,
    ]


@given(st.lists(st.tuples(st.floats(0, 30), st.booleans(), st.booleans()), max_size=60))
def test_the_bounds_hold_whatever_happens(steps: list[tuple[float, bool, bool]]) -> None:
    window_s, most, min_interval_s = 5, 3, 20
    holds, now, held, spans = new_holds(window_s, most, min_interval_s), 0.0, [], []
    for pause_s, ends, is_answered in steps:
        now += pause_s
        if ends and held:
            holds.end(held.pop(0), now, is_answered=is_answered)
            continue
        _, window = holds.begin(PLACE, now)
        if window is not None:
            held.append(window)
            spans.append((window, now))
        assert holds.held == len(held) <= most
    began: dict[int, HoldWindow] = {id(window): window for window, _ in spans}
    for window, at in spans:
        assert at < window.until, "nobody is held after the window"
    starts = sorted(window.until - window_s for window in began.values())
    assert all(later - earlier >= min_interval_s for earlier, later in itertools.pairwise(starts))


def _count(fleet: Fleet, outcome: str) -> int:
    name = "statehouse_router_holds_total"
    return int(fleet.router.metrics.registry.get_sample_value(name, {"outcome": outcome}) or 0)


@pytest.mark.feature("only-copy-restarts")
async def test_lookups_are_held_until_the_node_is_back(start: Start) -> None:
    fleet = await start("a", hold_window_ms=60_000, request_timeout_ms=60_000)
    await fleet.nodes["a"].kill()
    lookups = [asyncio.create_task(fleet.get(str(number))) for number in range(20)]
    await poll_until_async(lambda: _count(fleet, "held") == len(lookups), 30, "all to be held")
    await fleet.nodes["a"].restart()
    assert await asyncio.gather(*lookups) == ["a"] * 20
    assert fleet.router.metrics.registry.get_sample_value("statehouse_router_held_lookups") == 0


@pytest.mark.feature("only-copy-restarts")
async def test_when_the_window_is_over_lookups_fail_and_later_ones_at_once(start: Start) -> None:
    fleet = await start("a", hold_window_ms=300)
    await fleet.nodes["a"].kill()
    for _ in range(2):
        assert (await failure_of(fleet.get())).reason is Reason.NO_REPLICA_AVAILABLE
    assert (_count(fleet, "held"), _count(fleet, "too_soon")) == (1, 1)


async def test_who_leaves_hands_the_turn_on(start: Start) -> None:
    fleet = await start("a", hold_window_ms=60_000, request_timeout_ms=60_000)
    await fleet.nodes["a"].kill()
    first = asyncio.create_task(fleet.get())
    await poll_until_async(lambda: _count(fleet, "held") == 1, 30, "the first to be held")
    second = asyncio.create_task(fleet.get())
    await poll_until_async(lambda: _count(fleet, "held") == 2, 30, "the second to be held")
    first.cancel()
    await fleet.nodes["a"].restart()
    assert await second == "a"


@pytest.mark.feature("only-copy-restarts")
async def test_a_held_lookup_that_runs_out_of_time_says_why_nobody_could_answer(start: Start) -> None:
    fleet = await start("a", hold_window_ms=60_000)
    await fleet.nodes["a"].kill()
    failure = await failure_of(fleet.get(timeout_s=1.0))
    assert failure.reason is Reason.NO_REPLICA_AVAILABLE
    assert failure.metadata["first_reason"] == "UNREACHABLE"
    assert _count(fleet, "held") == 1


async def test_a_lookup_that_is_to_be_explained_is_not_held(start: Start) -> None:
    fleet = await start("a", hold_window_ms=60_000)
    await fleet.nodes["a"].kill()
    stub = fleet_service_pb2_grpc.FleetServiceStub(fleet.channel)
    lookup = query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text="k"))
    explained = await stub.ExplainGet(fleet_service_pb2.ExplainGetRequest(lookup=lookup))
    assert reason_from_number(explained.error.reason) is Reason.NO_REPLICA_AVAILABLE
    assert _count(fleet, "held") == 0


async def test_what_does_not_pass_by_itself_is_not_held(start: Start) -> None:
    fleet = await start("a", hold_window_ms=60_000)
    fleet.nodes["a"].failure = LookupFailure(Reason.TASK_FAILED, "disk full")
    await failure_of(fleet.get())
    assert _count(fleet, "held") == 0
