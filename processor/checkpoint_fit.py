"""Whether a query's checkpoint fits what the query has published: decided before the query starts.

The changelog and the checkpoint are kept apart, so either can be lost, restored from a backup or taken from elsewhere.
The sink skips batches that are in the changelog by their number; a checkpoint that has forgotten one would give its
number to other events, and those would be skipped. So every batch in the changelog must stand in the checkpoint's
offset log, with the same events.

A batch is planned (offset log), written (a transaction and a marker for each changelog partition), recorded (commits
topic) and committed (Spark's commit log), in this order. A driver may die between any two of them; what it leaves fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from processor.checkpoint import CheckpointState, Offsets


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """A store's last record in the commits topic."""

    query_id: str
    batch_id: int
    source_ends: Offsets
    changelog_ends: Offsets


@dataclass(frozen=True, slots=True)
class Published:
    """What a store's topics say."""

    record: CommitRecord | None
    starts: Offsets
    """The first offset still in each partition of the changelog."""
    ends: Offsets
    """Their ends, those of open transactions included: a record's ends are past these, too."""
    written: int | None = None
    """The newest batch that the checkpoint's query has written to any partition, by its markers."""

    @property
    def is_empty(self) -> bool:
        """Whether the changelog has no records: whoever begins anew has nothing to fit."""
        return self.starts == self.ends


class Misfit(Enum):
    """How a checkpoint and a changelog don't fit, in words that go on a subject."""

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
    """Return why a query must not go on from a checkpoint, None if it may.

    A checkpoint without a committed batch is one of a query that was let start, and died in its first batch: what that
    left in the changelog may have been aborted, so that no marker tells of it.
    """
    record = published.record
    if checkpoint is None:
        return None if published.is_empty else Misfit.CHECKPOINT_LOST
    committed = -1 if checkpoint.committed is None else checkpoint.committed
    if record is None or record.query_id != checkpoint.query_id:
        if committed >= 0:  # and a batch is recorded before it is committed
            return Misfit.CHANGELOG_LOST if record is None else Misfit.CHECKPOINT_FOREIGN
        recorded = -1
    else:
        recorded = record.batch_id
        if committed > recorded or _is_shortened(record, published.ends):
            return Misfit.CHANGELOG_LOST
        if checkpoint.planned.get(recorded) != record.source_ends:
            return Misfit.CHECKPOINT_ROLLED_BACK
    newest = max(recorded, -1 if published.written is None else published.written)
    is_planned = newest <= max(checkpoint.planned, default=-1)
    return None if is_planned and committed >= recorded - 1 else Misfit.CHECKPOINT_ROLLED_BACK


def _is_shortened(record: CommitRecord, ends: Offsets) -> bool:
    """Whether a partition now ends before the end it was recorded with: it was deleted, and created again."""
    return any(ends.get(partition, 0) < end for partition, end in record.changelog_ends.items())
