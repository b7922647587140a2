"""Nodes that leave and come back one after the other, in fleets of any size: no active moves for nothing."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import strategies as st

from processor.ownership.planning.model import PlannerSettings
from statehouse.contract.topology import TaskId
from tests.property.ownership.fleets import SimulatedFleet
from tests.robustness.history import EpochRecord, FaultRecord
from tests.support.examples import given_many
from tests.upgrades.moves import most_moves, moves, restless


class Restarts:
    """A fleet whose epochs are recorded; the time is the number of plans."""

    def __init__(self, fleet: SimulatedFleet, rng: Random) -> None:
        self.fleet, self._rng = fleet, rng
        self.plans = 0
        self.epochs = [self._recorded()]
        self.updates: list[FaultRecord] = []

    def _recorded(self) -> EpochRecord:
        held = [self.fleet.current[task] for task in self.fleet.tasks]
        actives = tuple(str(task.active) for task in held)
        return EpochRecord(self.plans, self.plans, actives, tuple(task.replicas for task in held))

    def plan(self, *, restores: bool) -> bool:
        """Put a plan in force; return whether it changes anything."""
        self.plans += 1
        before, outcome = self.fleet.step()
        if restores:
            self.fleet.restore()
        self.epochs.append(self._recorded())
        return outcome.tasks != before.current

    def settle(self) -> None:
        """Plan until nothing changes; now and then copies take longer than the next plan."""
        for _ in range(400):
            restores = self._rng.random() < 0.75
            if not self.plan(restores=restores) and restores and not self.plan(restores=True):
                return
        raise AssertionError("not settled after 400 plans")

    def restart(self, node: str) -> None:
        """A node is drained, ends, and comes back with what it kept, or with nothing."""
        began_at = self.plans + 1
        self.fleet.leaving.add(node)
        self.settle()
        assert node not in self.epochs[-1].actives
        self.fleet.die(node)
        if self._rng.random() < 0.5:
            self.settle()
        if self._rng.random() < 0.5:
            self.fleet.disks[node] = {}
        self.fleet.join(node)
        self.settle()
        self.updates.append(FaultRecord("restart", node, began_at, self.plans))


@pytest.mark.feature("balanced-when-quiet")
@given_many(st.integers(1, 20), st.integers(2, 6), st.integers(0, 3), st.integers(1, 4), st.integers(0, 2**32))
def test_a_rolling_restart_moves_actives_from_and_to_its_node_and_to_even_them_out(
    partitions: int, nodes: int, standbys: int, budget: int, seed: int
) -> None:
    settings = PlannerSettings(standbys, 10_000, budget)
    fleet = SimulatedFleet([TaskId(0, part) for part in range(partitions)], settings)
    names = [f"n{number}" for number in range(nodes)]
    for name in names:
        fleet.join(name)
    fleet.settle()
    restarts = Restarts(fleet, Random(seed))
    for name in names:
        restarts.restart(name)
    moved = list(moves(restarts.epochs, restarts.updates))
    assert [move for move in moved if not move.is_needed] == []
    assert restless(moved, most_moves(partitions, nodes)) == {}
