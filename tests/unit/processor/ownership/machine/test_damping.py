"""What damping saves: a quarter of an hour of a node that doesn't stay, with damping and without.

The clock is the test's, so that the figures are the same every time; docs/ownership.md has them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from tests.support.members import FakeMember
from tests.unit.processor.ownership.machine.test_core import SETTINGS, Bench, fleet, scores

PAGE: Final = (Path(__file__).parents[5] / "docs" / "ownership.md").read_text(encoding="utf-8")
TOTAL_S: Final = 900
STEP_S: Final = 0.5
REOPENS_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Loop:
    """How long a node is away and how long it is there, again and again."""

    words: str
    away_s: float
    there_s: float


@dataclass(slots=True)
class Figures:
    """What came of it. `without_active_s`: the time that tasks had no running active, summed over the tasks."""

    epochs: int = 0
    moves: int = 0
    copies: int = 0
    without_active_s: float = 0.0

    def row(self, damped: Figures) -> str:
        """As in the page: each figure without damping, and with it."""
        return (
            f"{self.epochs}, {damped.epochs} | {self.moves}, {damped.moves} | {self.copies}, {damped.copies} | "
            f"{self.without_active_s:.0f}, {damped.without_active_s:.0f}"
        )


LOOPS: Final = (
    Loop("away for 15 s, there for 20 s", 15.0, 20.0),
    Loop("killed every 12 s, and back before it is noticed", 0.0, 10.0),
)


def played(loop: Loop, flap_limit: int) -> Figures:
    """Let one of four nodes go through it; twelve tasks with a standby each."""
    members = fleet(4)
    unsteady, steady = members[0], members[1:]
    bench = Bench(scores(12), settings=replace(SETTINGS, flap_limit=flap_limit)).settled(*members)
    before, ends_at, figures = bench.assignment, bench.now + TOTAL_S, Figures()

    def run(seconds: float, *alive: FakeMember, serving: int, frozen: bool = False) -> None:
        names = {member.name for member in members[len(members) - serving :]}
        for _ in range(round(seconds / STEP_S)):
            bench.run(STEP_S, *alive, frozen=frozen)
            idle = sum(task.active not in names for task in bench.assignment.tasks.values())
            figures.without_active_s += STEP_S * idle

    while bench.now < ends_at:
        run(loop.away_s, *steady, serving=3)
        unsteady.restart()
        run(REOPENS_S, *members, serving=3, frozen=True)
        unsteady.state = "RUNNING"
        run(loop.there_s, *members, serving=4)
    figures.epochs = len(bench.published)
    for was, now in pairwise([before, *bench.published]):
        for task, holders in now.tasks.items():
            figures.moves += holders.active != was.tasks[task].active
            figures.copies += len(set(holders.replicas) - set(was.tasks[task].replicas))
    return figures


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.words)
def test_a_node_that_does_not_stay_costs_less_when_it_is_held_back(loop: Loop) -> None:
    damped, undamped = played(loop, SETTINGS.flap_limit), played(loop, 10_000)
    assert damped.without_active_s < undamped.without_active_s / 4
    assert f"| {loop.words} | {undamped.row(damped)} |" in PAGE
