"""A run of a driver that dies anywhere, and checkpoints from any time of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.run.checkpoint_fit import CommitRecord, Misfit, Published, misfit
from processor.spark.checkpoint import CheckpointState

CHANGELOG = ("changelog", 0)
STEPS_A_BATCH = 4


@dataclass
class Run:
    """One step is a plan, a write to the changelog, a commit record, or Spark's commit."""

    increments: list[int]
    steps_done: int = 0
    planned: dict[int, dict[tuple[str, int], int]] = field(default_factory=dict)
    written: int | None = None
    record: CommitRecord | None = None
    committed: int | None = None
    read: int = 0

    def step(self) -> None:
        batch_id, step = divmod(self.steps_done, STEPS_A_BATCH)
        self.steps_done += 1
        if step == 0:
            self.read += self.increments[batch_id]
            self.planned[batch_id] = {("events", 0): self.read}
        elif step == 1:
            self.written = batch_id
        elif step == 2:
            self.record = CommitRecord("query", batch_id, self.planned[batch_id], {CHANGELOG: batch_id + 1})
        else:
            self.committed = batch_id

    def checkpoint(self) -> CheckpointState:
        return CheckpointState("query", self.committed, dict(self.planned))

    def published(self) -> Published:
        end = 0 if self.written is None else self.written + 1
        return Published(self.record, {CHANGELOG: 0}, {CHANGELOG: end}, self.written)


@pytest.mark.feature("checkpoint-doesn-t")
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=5).flatmap(
        lambda batches: st.tuples(st.just(batches), st.integers(0, STEPS_A_BATCH * len(batches)))
    ),
    st.data(),
)
def test_only_checkpoints_that_know_every_written_batch_fit(run_to: tuple[list[int], int], data: st.DataObject):
    increments, steps = run_to
    run = Run(increments)
    checkpoints, states = [run.checkpoint()], [run.published()]
    for _ in range(steps):
        run.step()
        checkpoints.append(run.checkpoint())
        states.append(run.published())
    assert misfit(checkpoints[-1], states[-1]) is None

    older = data.draw(st.integers(0, steps))
    knows_all = run.written is None or run.written in checkpoints[older].planned
    assert (misfit(checkpoints[older], states[-1]) is None) == knows_all
    # The other way round, with the topics of an older day: only what Spark took for committed must be there.
    recorded = -1 if states[older].record is None else states[older].record.batch_id
    has_committed = run.committed is None or run.committed <= recorded
    assert (misfit(checkpoints[-1], states[older]) is not Misfit.CHANGELOG_LOST) == has_committed
    assert misfit(CheckpointState("another", 7, {7: {("events", 0): 7}}), states[-1]) in {
        Misfit.CHECKPOINT_FOREIGN,
        Misfit.CHANGELOG_LOST,
    }
