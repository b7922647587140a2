"""Lookups with a position to reach, through a router: whom they ask, how often, and what the failure says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from statehouse.contract.positions import Token
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import types_pb2
from tests.support.polling import poll_until_async
from tests.unit.router.fake_nodes import FakeNode, Fleet, failure_of
from tests.unit.router.fleets import STORE

Start = Callable[..., Awaitable[Fleet]]
REPORTED = 10  # by the heartbeats of these nodes
# Nothing may hang on how long an attempt takes: hedges come immediately, and attempts last.
HASTY = {"attempt_timeout_ms": 8_000, "hedge_min_ms": 1}


def at_least(position: int) -> types_pb2.Freshness:
    return types_pb2.Freshness(at_least=Token({(STORE, 0): position}).to_proto())


def behind(position: int) -> LookupFailure:
    metadata = {"position": str(position), "wanted": "20"}
    return LookupFailure(Reason.POSITION_NOT_REACHED, f"position {position} is below the wanted 20", metadata)


def behind_until(node: FakeNode, asked: int) -> Callable[[], LookupFailure | None]:
    return lambda: behind(5) if len(node.gets) < asked else None


async def test_the_nodes_are_asked_again_as_long_as_there_is_time(start: Start) -> None:
    fleet = await start("a", "b")
    fleet.nodes["a"].failure = behind(5)
    fleet.nodes["b"].failure = behind_until(fleet.nodes["b"], 5)
    assert await fleet.get(timeout_s=30.0, freshness=at_least(20)) == "b"
    assert len(fleet.nodes["a"].gets) == len(fleet.nodes["b"].gets) == 5
    assert not fleet.router.health.suspects


async def test_who_waits_for_long_is_asked_for_more_seldom(start: Start) -> None:
    fleet = await start("a", attempt_timeout_ms=2_000)
    fleet.nodes["a"].failure = behind_until(fleet.nodes["a"], 5)
    assert await fleet.get(timeout_s=60.0, freshness=at_least(20)) == "a"
    first, second, *_, last = times = [time for time in fleet.nodes["a"].times if time is not None]
    assert len(times) == 5
    # gRPC rounds a deadline up, by some milliseconds.
    assert first < 2.1
    assert 2.1 < second < 4.1 < last < 8.1


async def test_many_who_wait_for_the_same_ask_as_one(start: Start) -> None:
    fleet = await start("a", attempt_timeout_ms=2_000)
    node = fleet.nodes["a"]
    node.failure = lambda: None if is_there else behind(5)
    is_there = False
    calls = [asyncio.create_task(fleet.get(timeout_s=60.0, freshness=at_least(20))) for _ in range(50)]
    await poll_until_async(lambda: len(node.gets) >= 3, 30, "three rounds")
    assert len(node.gets) < 10
    is_there = True
    assert await asyncio.gather(*calls) == ["a"] * 50


async def test_at_the_deadline_the_failure_tells_how_far_the_furthest_is(start: Start) -> None:
    fleet = await start("a", "b")
    fleet.nodes["a"].failure, fleet.nodes["b"].failure = behind(5), behind(15)
    failure = await failure_of(fleet.get(timeout_s=0.6, freshness=at_least(20)))
    assert failure.reason is Reason.POSITION_NOT_REACHED
    assert (failure.metadata["position"], failure.metadata["wanted"]) == ("15", "20")
    assert {each.host.instance_id: each.detail for each in failure.candidates} == {
        "a": "position 5 is below the wanted 20",
        "b": "position 15 is below the wanted 20",
    }


async def test_a_node_with_too_many_who_wait_is_not_asked_again(start: Start) -> None:
    fleet = await start("a", "b")
    fleet.nodes["a"].failure = behind(5)
    fleet.nodes["b"].failure = LookupFailure(Reason.OVERLOADED, "too many wait")
    failure = await failure_of(fleet.get(timeout_s=30.0, freshness=at_least(20)))
    assert failure.reason is Reason.POSITION_NOT_REACHED
    assert [len(node.gets) for node in fleet.nodes.values()] == [1, 1]


async def test_a_node_that_waits_gets_no_hedge(start: Start) -> None:
    fleet = await start("a", "b", **HASTY)
    fleet.nodes["a"].freeze()
    lookup = asyncio.create_task(fleet.get(freshness=at_least(REPORTED + 1)))
    await poll_until_async(lambda: fleet.nodes["a"].held, 10, "the attempt")
    fleet.nodes["a"].thaws.set()
    assert await lookup == "a"
    assert not fleet.nodes["b"].gets


async def test_a_node_that_has_reported_the_position_is_hedged_as_ever(start: Start) -> None:
    fleet = await start("a", "b", **HASTY)
    fleet.nodes["a"].freeze()
    assert await fleet.get(freshness=at_least(REPORTED)) == "b"
