"""Decides, before a query starts, whether its checkpoint fits the changelog.

The changelog and the checkpoint are separate, so either can be lost, restored from a backup, or replaced by another.
The sink recognizes the batches in the changelog by number and skips them. If the checkpoint has forgotten a batch, its
number goes to other events, and the sink would skip those. So the checkpoint's offset log must have every batch in the
changelog, with the same events.

A batch is planned (offset log), and written (a transaction and a marker for each changelog partition). Then it is
recorded (commits topic) while Spark commits it (commit log) and goes on with the next one, which is recorded later.
Only a query's first batch is recorded before it is committed. If a driver dies between two steps, the two still fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from processor.spark.checkpoint import CheckpointState, Offsets


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """The last record of a store in the commits topic."""

    query_id: str
    batch_id: int
    source_ends: Offsets
    changelog_ends: Offsets


@dataclass(frozen=True, slots=True)
class Published:
    """The facts that a store's topics hold."""

    record: CommitRecord | None
    starts: Offsets
    """The first available offset in each partition of the changelog."""
    ends: Offsets
    """The end of each partition, open transactions included, because the ends in a commit record include them too."""
    written: int | None = None
    """The newest batch that the checkpoint's query has written to any partition, by its markers."""

    @property
    def is_empty(self) -> bool:
        """Whether the changelog has no records; a new query then has nothing to fit."""
        return self.starts == self.ends


class Misfit(Enum):
    """The ways in which a checkpoint and a changelog don't fit; the values are parts of error messages."""

    CHECKPOINT_LOST = "the changelog has records, but there is no checkpoint of the query that wrote them"
    CHECKPOINT_FOREIGN = "the checkpoint is another query's than the changelog"
    CHECKPOINT_ROLLED_BACK = "the checkpoint is older than the changelog"
    CHANGELOG_LOST = "the changelog is older than the checkpoint, or was deleted"


_RESET: Final = "or reset the application (`statehouse reset`), so that it begins anew"
REMEDIES: Final[Mapping[Misfit, str]] = {
    Misfit.CHECKPOINT_LOST: f"restore the checkpoint, {_RESET}; with --accept-lost-checkpoint all inputs are processed "
    "again, and entries that none of them updates stay as they are",
    Misfit.CHECKPOINT_FOREIGN: "name the directory that has this application's own checkpoint (checkpoint_dir), give "
    f"the application an id of its own, {_RESET}",
    Misfit.CHECKPOINT_ROLLED_BACK: "restore the newest checkpoint: from this one, events would be taken for written "
    f"that are not; {_RESET}",
    Misfit.CHANGELOG_LOST: "name the brokers that have the changelog (bootstrap): going on, it would lack what the "
    f"checkpoint knows as published; {_RESET}",
}


def misfit(checkpoint: CheckpointState | None, published: Published) -> Misfit | None:
    """Return why a query must not continue from a checkpoint; None if it may.

    A checkpoint without a committed batch fits: the query was allowed to start, and died in its first batch. That
    batch may have been aborted in the changelog, which then has no marker for it.
    """
    record = published.record
    if checkpoint is None:
        return None if published.is_empty else Misfit.CHECKPOINT_LOST
    committed = -1 if checkpoint.committed is None else checkpoint.committed
    if record is None or record.query_id != checkpoint.query_id:
        if committed >= 0:  # and the first batch is recorded before it is committed
            return Misfit.CHANGELOG_LOST if record is None else Misfit.CHECKPOINT_FOREIGN
        recorded = -1
    else:
        recorded = record.batch_id
        if committed > recorded + 1 or _is_shortened(record, published.ends):
            return Misfit.CHANGELOG_LOST
        if checkpoint.planned.get(recorded) != record.source_ends:
            return Misfit.CHECKPOINT_ROLLED_BACK
    newest = max(recorded, -1 if published.written is None else published.written)
    is_planned = newest <= max(checkpoint.planned, default=-1)
    return None if is_planned and committed >= recorded - 1 else Misfit.CHECKPOINT_ROLLED_BACK


def _is_shortened(record: CommitRecord, ends: Offsets) -> bool:
    """Whether a partition ends before its recorded end: then it was deleted, and created again."""
    return any(ends.get(partition, 0) < end for partition, end in record.changelog_ends.items())
