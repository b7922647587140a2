from dataclasses import replace

import pytest

from processor.run.checkpoint_fit import REMEDIES, CommitRecord, Misfit, Published, misfit
from processor.spark.checkpoint import CheckpointState

CHANGELOG = ("changelog", 0)


def ends(batch_id: int) -> dict[tuple[str, int], int]:
    return {("scores", 0): 10 * (batch_id + 1)}


def checkpoint(committed: int | None, planned: int, query_id: str = "ours") -> CheckpointState:
    return CheckpointState(query_id, committed, {batch_id: ends(batch_id) for batch_id in range(planned + 1)})


def record(batch_id: int, query_id: str = "ours") -> CommitRecord:
    return CommitRecord(query_id, batch_id, ends(batch_id), {CHANGELOG: 5})


def published(found: CommitRecord | None, *, end: int = 5, written: int | None = None) -> Published:
    return Published(found, {CHANGELOG: 0}, {CHANGELOG: end}, written)


@pytest.mark.parametrize(
    ("state", "found"),
    [
        pytest.param(None, published(None, end=0), id="never started"),
        pytest.param(None, published(record(6), end=0), id="deleted, the changelog too"),
        pytest.param(checkpoint(None, -1), published(None, end=0), id="died before the first batch"),
        pytest.param(checkpoint(None, 0), published(None, written=0), id="died while writing the first"),
        pytest.param(checkpoint(None, 0), published(None), id="died in the first, which was aborted"),
        pytest.param(checkpoint(None, 0, "new"), published(record(6)), id="began anew, and died in the first"),
        pytest.param(checkpoint(None, 0), published(record(0), written=0), id="died in the first's gap"),
        pytest.param(checkpoint(6, 6), published(record(6), written=6), id="all committed"),
        pytest.param(checkpoint(6, 7), published(record(6), written=7), id="died while writing"),
        pytest.param(checkpoint(6, 7), published(record(7), written=7), id="died in the gap"),
        pytest.param(checkpoint(6, 7), published(record(7)), id="markers have expired"),
        pytest.param(checkpoint(None, 0), published(record(6, "older"), written=0), id="began anew, and died"),
    ],
)
def test_what_a_driver_leaves_wherever_it_died_fits(state: CheckpointState | None, found: Published):
    assert misfit(state, found) is None


@pytest.mark.parametrize(
    ("state", "found", "expected"),
    [
        pytest.param(None, published(record(6)), Misfit.CHECKPOINT_LOST, id="deleted"),
        pytest.param(None, published(None), Misfit.CHECKPOINT_LOST, id="deleted after the first batch's writing"),
        pytest.param(checkpoint(6, 6, "its"), published(record(6)), Misfit.CHECKPOINT_FOREIGN, id="another's"),
        pytest.param(checkpoint(4, 4), published(record(6)), Misfit.CHECKPOINT_ROLLED_BACK, id="two batches back"),
        pytest.param(checkpoint(5, 5), published(record(6)), Misfit.CHECKPOINT_ROLLED_BACK, id="one batch back"),
        pytest.param(checkpoint(4, 6), published(record(6)), Misfit.CHECKPOINT_ROLLED_BACK, id="commit log cut"),
        pytest.param(
            checkpoint(6, 6), published(record(6), written=7), Misfit.CHECKPOINT_ROLLED_BACK, id="half written"
        ),
        pytest.param(checkpoint(6, 6), published(None, end=0), Misfit.CHANGELOG_LOST, id="all topics deleted"),
        pytest.param(checkpoint(6, 6), published(record(6), end=0), Misfit.CHANGELOG_LOST, id="changelog deleted"),
        pytest.param(checkpoint(6, 6), published(record(6), end=4), Misfit.CHANGELOG_LOST, id="changelog recreated"),
        pytest.param(checkpoint(6, 6), published(record(4)), Misfit.CHANGELOG_LOST, id="topics of a backup"),
    ],
)
def test_what_does_not_fit_is_told_apart(state: CheckpointState | None, found: Published, expected: Misfit):
    assert misfit(state, found) is expected


def test_a_batch_of_the_same_number_but_of_other_events_does_not_fit():
    other = {**checkpoint(5, 5).planned, 6: {("scores", 0): 71}}
    assert misfit(replace(checkpoint(5, 5), planned=other), published(record(6))) is Misfit.CHECKPOINT_ROLLED_BACK


def test_each_misfit_has_a_remedy():
    assert REMEDIES.keys() == set(Misfit)
