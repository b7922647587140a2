"""A run of a driver that dies anywhere, and checkpoints from any time of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.run.checkpoint_fit import CommitRecord, Misfit, Published, misfit
from processor.spark.checkpoint import CheckpointState, may_be_recorded

CHANGELOG = ("changelog", 0)


class Step(Enum):
    """What happens to a batch."""

    PLANNED = auto()
    WRITTEN = auto()
    RECORDED = auto()
    COMMITTED = auto()


def steps_of(places: list[int]) -> list[tuple[Step, int]]:
    """Return the steps of batches. `places`: how many steps later than it may be each batch is recorded, but the first.

    At the latest when the next one is written, too.
    """
    steps: list[tuple[Step, int]] = []
    waiting: list[tuple[int, int]] = []
    for batch, place in enumerate(places):
        for step in (Step.PLANNED, Step.WRITTEN, Step.COMMITTED):
            steps.append((step, batch))
            if step is Step.WRITTEN:
                waiting.append((batch, place if batch else 0))
            steps += [(Step.RECORDED, each) for each, left in waiting if left <= 0]
            waiting = [(each, left - 1) for each, left in waiting if left > 0]
    return steps


@dataclass
class Run:
    """A run of a driver."""

    increments: list[int]
    planned: dict[int, dict[tuple[str, int], int]] = field(default_factory=dict)
    written: int | None = None
    record: CommitRecord | None = None
    committed: int | None = None
    read: int = 0

    def step(self, step: Step, batch: int) -> None:
        if step is Step.PLANNED:
            self.read += self.increments[batch]
            self.planned[batch] = {("events", 0): self.read}
        elif step is Step.WRITTEN:
            self.written = batch
        elif step is Step.RECORDED:
            self.record = CommitRecord("query", batch, self.planned[batch], {CHANGELOG: batch + 1})
        else:
            self.committed = batch

    def checkpoint(self) -> CheckpointState:
        known = {batch: ends for batch, ends in self.planned.items() if may_be_recorded(batch, self.committed)}
        return CheckpointState("query", self.committed, known)

    def published(self) -> Published:
        end = 0 if self.written is None else self.written + 1
        return Published(self.record, {CHANGELOG: 0}, {CHANGELOG: end}, self.written)


@pytest.mark.feature("checkpoint-doesn-t")
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), min_size=1, max_size=5), st.data())
def test_only_checkpoints_that_know_every_written_batch_fit(batches: list[tuple[int, int]], data: st.DataObject):
    run = Run([increment for increment, _ in batches])
    steps = steps_of([place for _, place in batches])
    steps = steps[: data.draw(st.integers(0, len(steps)))]
    checkpoints, states = [run.checkpoint()], [run.published()]
    for step, batch in steps:
        run.step(step, batch)
        checkpoints.append(run.checkpoint())
        states.append(run.published())
    assert misfit(checkpoints[-1], states[-1]) is None

    older = data.draw(st.integers(0, len(steps)))
    knows_all = run.written is None or run.written in checkpoints[older].planned
    assert (misfit(checkpoints[older], states[-1]) is None) == knows_all
    # The other way round, with the topics of an older day: what Spark took for committed must be there, but the last.
    record = states[older].record
    has_committed = run.committed is None or (record is not None and run.committed <= record.batch_id + 1)
    assert (misfit(checkpoints[-1], states[older]) is not Misfit.CHANGELOG_LOST) == has_committed
    assert misfit(CheckpointState("another", 7, {7: {("events", 0): 7}}), states[-1]) in {
        Misfit.CHECKPOINT_FOREIGN,
        Misfit.CHANGELOG_LOST,
    }
