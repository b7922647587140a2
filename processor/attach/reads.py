"""Decides what to read next of the state of a query that another program runs. Pure.

Every read ends at a batch that the other program has committed. Batches in between are skipped, never mixed: what is
published is the state as of one batch.

- Changes are read from the batch after the last one that was published as a whole. The last row of a key counts. So it
  doesn't matter if a partition of the changelog is ahead, because a publication was cut off: its keys come again.
- The whole state is compared with the changelog itself. That needs nothing of what was before.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

_CHANGES_MAX: Final = 1_000
"""More batches than this are not read as changes: the whole state is less, or they are cleaned up by then."""
_WITHOUT_CHANGES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Position:
    """Where the other program and the changelog are.

    Attributes:
        committed: the newest batch that the other program has committed; None before the first one.
        published: the last batch that every partition of the changelog has; None if none is known.
        has_changes: whether the operator has a change feed at all.
        same_partitions: whether both batches have the state in the same number of partitions.

    """

    committed: int | None
    published: int | None
    has_changes: bool = True
    same_partitions: bool = True


@dataclass(frozen=True, slots=True)
class ReadChanges:
    """Read the change feed of these batches, both included."""

    first: int
    last: int

    @property
    def batch_id(self) -> int:
        """The batch that the store is at afterwards."""
        return self.last


@dataclass(frozen=True, slots=True)
class ReadState:
    """Read all state as of a batch, and compare it with the changelog."""

    batch_id: int


Read = ReadChanges | ReadState


class ReadPlanner:
    """Chooses the reads. Some providers write no changes, which shows only when they are read: then it tries rarely."""

    def __init__(self) -> None:
        """Expect changes."""
        self._failures = 0
        self._without = 0

    def next(self, at: Position) -> Read | None:
        """Return the next read; None while there is nothing new."""
        if at.committed is None or (at.published is not None and at.committed <= at.published):
            return None
        if at.published is None or not at.has_changes or not at.same_partitions or self._without > 0:
            return ReadState(at.committed)
        if at.committed - at.published > _CHANGES_MAX:
            return ReadState(at.committed)
        return ReadChanges(at.published + 1, at.committed)

    def failed(self, read: ReadChanges) -> ReadState:
        """Changes could not be read: they are cleaned up, or were never written. Return what to read instead."""
        self._failures += 1
        # The first failure may be because the batches were cleaned up. The next read begins later.
        self._without = 0 if self._failures == 1 else min(2 ** (self._failures - 2), _WITHOUT_CHANGES_MAX)
        return ReadState(read.last)

    def done(self, read: Read) -> None:
        """A read was published."""
        if isinstance(read, ReadChanges):
            self._failures = 0
        elif self._without > 0:
            self._without -= 1


@dataclass(frozen=True, slots=True)
class Identity:
    """What a store shows: which query's state, which part of it, in which form; and when that began.

    Its text is the query id in commit records and the sink's markers. So markers of another state, of another form, or
    of an attempt that was given up, never count.

    Attributes:
        query_id: Spark's id of the query.
        form: a digest of what is read and how entries are made of it.
        beginning: is new each time that the store is made anew.

    """

    query_id: str
    form: str
    beginning: str

    def __str__(self) -> str:
        return f"{self.query_id}.{self.form}.{self.beginning}"

    @classmethod
    def parse(cls, text: str) -> Identity | None:
        """Read the text; None if it is not of this kind, but a processor's."""
        parts = text.split(".")
        return cls(*parts) if len(parts) == 3 else None


class AttachMisfit(Enum):
    """The ways in which a checkpoint and a store don't fit; the values are parts of error messages."""

    OTHER_PROGRAM = "the store was written by a processor, not by attach"
    QUERY_REPLACED = "the checkpoint is another query's than the one whose state the store has"
    ROLLED_BACK = "the checkpoint is older than the store"


@dataclass(frozen=True, slots=True)
class StoreCommit:
    """The last commit record of the store."""

    query_id: str
    batch_id: int


def misfit(
    last: StoreCommit | None, query_id: str, form: str, committed: int | None, written: int | None
) -> AttachMisfit | None:
    """Return why the store must not go on from this checkpoint; None if it may, or if it begins anew anyway.

    Args:
        last: the store's last commit record.
        query_id: the id in the checkpoint.
        form: what is to be read and how, as in `Identity`.
        committed: the newest batch in the checkpoint.
        written: the newest batch in the markers of the store's identity.

    """
    if last is None:
        return None
    before = Identity.parse(last.query_id)
    if before is None:
        return AttachMisfit.OTHER_PROGRAM
    if before.query_id != query_id:
        return AttachMisfit.QUERY_REPLACED
    newest = last.batch_id if written is None else max(last.batch_id, written)
    if before.form == form and (committed is None or committed < newest):
        return AttachMisfit.ROLLED_BACK
    return None


def continued(last: StoreCommit | None, query_id: str, form: str) -> Identity | None:
    """Return the identity that the store goes on with; None if it is made anew: its whole content is compared then."""
    before = None if last is None else Identity.parse(last.query_id)
    return before if before is not None and (before.query_id, before.form) == (query_id, form) else None
