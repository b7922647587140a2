"""The processor dies or stops: a standby controller takes over, and replaces a node that dies, too."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from unittest.mock import patch

import pytest

from processor.ownership.machine.takeover import Takeover
from tests.simulation.controller import SimulatedController
from tests.simulation.fleet import Fleet
from tests.simulation.run import run_seed
from tests.simulation.settings import SimulationSettings
from tests.simulation.world import World

SEEDS = 10
CAUGHT_WITHIN = 25
COMES_UP_S = 10.0


async def came_up(world: World, kind: type[Fleet]) -> Fleet:
    """A fleet with a driver and two standby controllers, some time after its start."""
    fleet = kind(world, replace(SimulationSettings.drawn(world.rng, world.seed), standby_controllers=2))
    fleet.start()
    await asyncio.sleep(COMES_UP_S)
    return fleet


def check_one_acts(fleet: Fleet) -> None:
    acting = [each for each in fleet.living_controllers() if each.producer_epoch == fleet.kafka.producer_epoch]
    if len(acting) != 1:
        fleet.world.break_rule("one standby controller acts", f"{[each.name for each in acting]}")


async def driver_and_node_die(world: World) -> None:
    fleet = await came_up(world, Fleet)
    timeout_s = fleet.settings.session_timeout_s
    fleet.controllers[0].kill()
    await asyncio.sleep(world.rng.uniform(0.0, timeout_s))
    actives = {holders.active for holders in fleet.checks.current.tasks.values()}
    lost = next(node for node in fleet.running() if node.instance_id in actives)
    lost.crash(loses_writes=False, loses_disk=False)
    await asyncio.sleep(2 * timeout_s)
    for task, holders in fleet.checks.current.tasks.items():
        if holders.active is None or holders.active == lost.instance_id:
            world.break_rule("who is lost is replaced within two session timeouts", f"{task}: {holders}")
    check_one_acts(fleet)
    taken = world.counts["taken over by a standby controller"]
    back = fleet.start_controller()
    await asyncio.sleep(timeout_s)
    if back.producer_epoch != fleet.kafka.producer_epoch or world.counts["controllers fenced"] == 0:
        world.break_rule("a processor that starts takes over again", back.name)
    await asyncio.sleep(4 * timeout_s)
    if world.counts["taken over by a standby controller"] != taken:
        world.break_rule("who is heard is left alone", "a standby controller has taken over from a processor that runs")


@pytest.mark.feature("driver-dies-then")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_standby_controller_replaces_a_lost_node(seed: int) -> None:
    outcome = run_seed(seed, driver_and_node_die)
    assert not outcome.violation
    assert outcome.counts["taken over by a standby controller"] >= 1


class SlowToTakeOver(Fleet):
    """Its standby controllers take part of a session timeout from fencing to their first record."""

    def _at_step(self, controller: SimulatedController, step: str) -> None:
        if controller.is_standby and step == "open":
            controller.freeze()
            self.world.loop.call_later(
                self.world.rng.uniform(0.1, 0.5) * self.settings.session_timeout_s, controller.thaw
            )


async def driver_stops(world: World) -> None:
    fleet = await came_up(world, SlowToTakeOver)
    timeout_s = fleet.settings.session_timeout_s
    driver = fleet.controllers[0]
    driver.stop()
    await asyncio.sleep(timeout_s / 2)
    if not world.counts["taken over by a standby controller"]:
        world.break_rule("nobody waits for a controller that has stopped", driver.name)
    await asyncio.sleep(4 * timeout_s)
    check_one_acts(fleet)
    if driver.is_alive:
        world.break_rule("who was told to stop has stopped", driver.name)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_driver_that_stops_is_not_waited_for(seed: int) -> None:
    assert not run_seed(seed, driver_stops).violation


@pytest.mark.long
@pytest.mark.timeout(300)
def test_standby_controllers_that_fence_each_other_after_a_stop_are_caught() -> None:
    """One that was fenced goes by the stop of the controller before again, though it has followed it up already."""
    with patch.object(Takeover, "__init__", lambda takeover, _before=None, known=Takeover.__init__: known(takeover)):
        violations = {run_seed(seed, driver_stops).violation.split(":")[0] for seed in range(CAUGHT_WITHIN)}
    assert violations - {""} == {"a controller that is heard is left alone"}
