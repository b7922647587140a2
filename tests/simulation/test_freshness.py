"""Lookups with a bound, at the moment when a node comes back.

One node has the only copy, so no other can answer. Each message takes a fixed time, so that nothing depends on a seed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest

from processor.ownership.declarations import StoreDeclaration
from processor.ownership.declared_settings import ownership_settings
from processor.settings import ProcessorSettings
from statehouse.errors import LookupFailure
from statehouse.v1 import query_service_pb2, types_pb2
from tests.simulation.clients import TIMEOUT_S, Lookup
from tests.simulation.fleet import Fleet
from tests.simulation.run import run_seed
from tests.simulation.settings import SimulationSettings
from tests.simulation.test_simulation import learn_nothing_after_a_silence
from tests.simulation.world import KAFKA, LONGEST_DELAY_S, Network, World

SETTINGS = SimulationSettings(
    nodes=1,
    routers=1,
    racks=("",),
    stores=(StoreDeclaration("s", "q", 1, "app-s-changelog"),),
    ownership=ownership_settings(
        ProcessorSettings(heartbeat_interval_ms=1_000, session_timeout_ms=3_000, num_standby_replicas=0)
    ),
    drain_timeout_s=3.0,
    first_records=50,
    writes_per_s=1.0,
    lookups_per_s=1.0,
    faults_s=0.0,
)
COMES_UP_S = 10.0
AWAY_S = 4.0
TO_KAFKA_S, TO_NODE_S = 0.03, 0.005
ANSWERED_S = 2 * LONGEST_DELAY_S
ASKED_AND_ANSWERED_S = SETTINGS.confirm_interval_s + ANSWERED_S
RULE = "a lookup that a replica could answer does not fail"

BOUNDS = pytest.mark.parametrize(
    ("bound", "refusal"),
    [
        (types_pb2.Freshness(max_staleness_ms=1_500), "STALENESS_EXCEEDS_BOUND"),
        (types_pb2.Freshness(max_lag=5), "LAG_EXCEEDS_BOUND"),
    ],
    ids=["max_staleness", "max_lag"],
)


@pytest.fixture(autouse=True)
def fixed_delays() -> Iterator[None]:
    def delay_s(_net: Network, *link: str) -> float:
        return TO_KAFKA_S if KAFKA in link else TO_NODE_S

    with patch.object(Network, "_delay_s", delay_s):
        yield


@dataclass
class Away:
    """A node that has been away for longer than a session, and how to have it back."""

    fleet: Fleet
    back: Callable[[], None]

    async def look_up(self, bound: types_pb2.Freshness) -> query_service_pb2.GetResponse | LookupFailure:
        return await self.fleet.clients.look_up(self.fleet.routers[0], Lookup("s", "k0", bound))


Leave = Callable[[World], Coroutine[Any, Any, Away]]


async def quiet_fleet(world: World) -> Fleet:
    fleet = Fleet(world, SETTINGS)
    fleet.start()
    fleet.clients.stop()
    fleet.stop_writing()
    await asyncio.sleep(COMES_UP_S)
    assert not fleet.unsettled()
    return fleet


async def frozen(world: World) -> Away:
    fleet = await quiet_fleet(world)
    node = fleet.nodes["n0"]
    node.freeze()
    await asyncio.sleep(AWAY_S)
    return Away(fleet, node.thaw)


async def cut_off(world: World) -> Away:
    fleet = await quiet_fleet(world)
    world.net.cut("n0", KAFKA)
    await asyncio.sleep(AWAY_S)
    return Away(fleet, lambda: world.net.heal("n0", KAFKA))


@BOUNDS
def test_a_lookup_that_comes_as_its_node_thaws_is_answered(bound: types_pb2.Freshness, refusal: str) -> None:
    answers: list[object] = []

    async def story(world: World) -> None:
        away = await frozen(world)
        away.back()
        answers.append(await away.look_up(bound))

    outcome = run_seed(0, story)
    assert not outcome.violation
    assert outcome.counts[f"refused: {refusal}"] == 1, "the lookup is there before what Kafka answers"
    assert not isinstance(answers[0], LookupFailure)


@BOUNDS
def test_a_lookup_that_has_waited_for_a_frozen_node_is_answered(bound: types_pb2.Freshness, refusal: str) -> None:
    answers: list[object] = []

    async def story(world: World) -> None:
        away = await frozen(world)
        lookup = world.task(away.look_up(bound))
        await asyncio.sleep(TIMEOUT_S / 2)
        away.back()
        answers.append(await lookup)

    outcome = run_seed(0, story)
    assert not outcome.violation
    assert outcome.counts[f"refused: {refusal}"] > 0
    assert not isinstance(answers[0], LookupFailure)


@pytest.mark.feature("clocks-jump-staleness")
@BOUNDS
@pytest.mark.parametrize(
    ("leave", "after_s"), [(frozen, ANSWERED_S), (cut_off, ASKED_AND_ANSWERED_S)], ids=["frozen", "cut off"]
)
def test_a_replica_that_is_back_may_refuse_only_until_it_must_have_been_told_the_end(
    leave: Leave, after_s: float, bound: types_pb2.Freshness, refusal: str
) -> None:
    """The rule itself: a replica that learns nothing more is excused until then, and caught from then on."""
    failed_at: list[float] = []

    async def story(world: World) -> None:
        away = await leave(world)
        away.back()
        back_at = world.now
        while world.now < back_at + 2 * after_s and not world.violation:
            began_at = world.now
            if isinstance(await away.look_up(bound), LookupFailure):
                failed_at.append(began_at - back_at)

    assert not run_seed(0, story).violation
    failed_at.clear()
    with learn_nothing_after_a_silence():
        outcome = run_seed(0, story)
    assert outcome.violation.startswith(RULE)
    assert outcome.counts[f"refused: {refusal}"] > 0
    *excused, caught = failed_at
    assert excused
    assert max(excused) < after_s <= caught
