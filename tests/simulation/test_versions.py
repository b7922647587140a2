"""Two versions of an application, each with a fleet that faults meet, and an operator who promotes and rolls back.

The record of versions stands in the first version's assignment topic, which its controllers and nodes read as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast
from unittest.mock import patch

import pytest

from router.version_core import VersionCore
from router.version_switch import VersionSwitch
from statehouse.contract.partitioning import partition_for
from statehouse.contract.version_names import FIRST
from statehouse.contract.versions import VERSIONS_KEY, VersionRefused, Versions, decode_versions, encode_versions
from statehouse.errors import LookupFailure
from statehouse.v1 import types_pb2
from tests.simulation.clients import Lookup
from tests.simulation.faults import Faults
from tests.simulation.fleet import Fleet
from tests.simulation.kafka import Follower
from tests.simulation.run import run_seed, settles, stays_settled
from tests.simulation.settings import SimulationSettings
from tests.simulation.world import Process, World

SEEDS = 2
LONG_SEEDS = 100
CAUGHT_WITHIN = 20
COMES_UP_S = 4.0
READS_EVERY_S = 0.1
CHANGES_EVERY_S = 3.0


class Core:
    """A version as the switch knows it: a fleet, and its first router, which may be restarted."""

    def __init__(self, version: str, fleet: Fleet) -> None:
        self.version, self.fleet = version, fleet
        self.left = asyncio.Event()

    @property
    def is_routed(self) -> bool:
        return self.fleet.routers[0].is_ready

    async def close(self) -> None:
        """It is never retired here."""


class SwitchingRouter(Process):
    """Follows the record of versions, and gives each call to a version's router."""

    def __init__(self, world: World, blue: Fleet, green: Fleet) -> None:
        super().__init__(world, "r0", "switching")
        self.fleets = {FIRST: blue, "v2": green}
        self.switch = VersionSwitch(self._made(FIRST), self._made, lambda _before, _after: None)
        self._newest = Versions()
        self._log = Follower(self, blue.kafka.assignments, self._record, on_contact=self._contact)

    def _made(self, version: str) -> VersionCore:
        return cast("VersionCore", Core(version, self.fleets[version]))

    def _record(self, key: bytes, value: bytes | None, _written_at: float) -> None:
        if key == VERSIONS_KEY and value is not None:
            self._newest = decode_versions(value)
            if self._log.is_caught_up:
                self.switch.take(self._newest)

    def _contact(self) -> None:
        self.switch.take(self._newest)

    async def look_up(self, number: int) -> None:
        """Look a key up, in the version that serves now, and check that the answer is of it."""
        self.switch.go_on()
        core = cast("Core", self.switch.serving)
        if not core.is_routed:
            return
        store = core.fleet.settings.stores[0]
        key = f"k{number % (core.fleet.settings.keys * store.partition_count)}"
        asked = Lookup(store.name, key, types_pb2.Freshness())
        response = await core.fleet.clients.look_up(core.fleet.routers[0], asked)
        if isinstance(response, LookupFailure):
            return  # one that nothing excuses has broken a rule already
        self.world.counts[f"answers of {core.version}"] += 1
        if response.replica.partition != partition_for(key.encode(), store.partition_count):
            self.world.break_rule("an answer is of the version that served", f"{core.version}, {key}: {response}")


async def blue_and_green(world: World) -> None:
    settings = SimulationSettings.drawn(world.rng, world.seed)
    more = tuple(replace(each, partition_count=each.partition_count + 3) for each in settings.stores)
    blue, green = Fleet(world, settings), Fleet(world, replace(settings, stores=more))
    for fleet in (blue, green):
        fleet.start()
    router = SwitchingRouter(world, blue, green)
    await asyncio.sleep(COMES_UP_S)
    versions = Versions().deployed("v2")
    write(blue, versions)
    reading = world.task(keep_doing(READS_EVERY_S, router.look_up))

    async def change(number: int) -> None:
        nonlocal versions
        try:
            if number % 2 and world.rng.random() < 0.5:
                versions = versions.rolled_back(0)
            else:
                versions = versions.promoted(world.rng.choice(versions.all), 1)
        except VersionRefused:
            return
        world.counts["versions switched"] += 1
        write(blue, versions)

    changing = world.task(keep_doing(CHANGES_EVERY_S, change))
    faults = Faults(blue), Faults(green)
    await asyncio.gather(*(each.run(settings.faults_s) for each in faults))
    changing.cancel()
    for each in faults:
        each.end()
    for fleet in (blue, green):
        fleet.stop_writing()
        await settles(world, fleet)
        await stays_settled(world, fleet)
    reading.cancel()
    if router.switch.serving.version != versions.serving:
        world.break_rule("the newest record decides who serves", f"{router.switch.serving.version} of {versions}")
    for fleet in (blue, green):
        fleet.clients.stop()


def write(blue: Fleet, versions: Versions) -> None:
    blue.kafka.assignments.append([(VERSIONS_KEY, encode_versions(versions))])


async def keep_doing(every_s: float, what: Callable[[int], Awaitable[None]]) -> None:
    number = 0
    while True:
        await asyncio.sleep(every_s)
        await what(number)
        number += 1


def check(seeds: range) -> None:
    counts: dict[str, int] = {}
    for seed in seeds:
        outcome = run_seed(seed, blue_and_green)
        assert not outcome.violation, f"seed {seed}: {outcome.violation}"
        for what, count in outcome.counts.items():
            counts[what] = counts.get(what, 0) + count
    assert min(counts["answers of v1"], counts["answers of v2"], counts["versions switched"]) >= len(seeds)


def test_the_newest_record_decides_and_disturbs_no_fleet() -> None:
    check(range(SEEDS))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_same_with_many_seeds() -> None:
    check(range(SEEDS, LONG_SEEDS))


def test_a_router_that_misses_a_record_is_caught() -> None:
    """A switch that takes records only when it begins to read."""

    def forgets(self: VersionSwitch, versions: Versions, taken: Any = VersionSwitch.take) -> None:
        if self.versions.number == 0:
            taken(self, versions)

    with patch.object(VersionSwitch, "take", forgets):
        assert any(run_seed(seed, blue_and_green).violation for seed in range(CAUGHT_WITHIN))
