"""A watch's steps from batch to batch: how far it may send changes, and where it marks which batch. Pure.

Changes are sent up to the end of the next batch that the commits topic has named, never beyond: nobody knows before to
which batch they belong. What comes after it stays in the log meanwhile. An end that is too late is known by a record of
a later batch before it. Then that batch is left out: its changes are a part of the next one that is marked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from statehouse.contract.committed_moments import KnownMoments
from statehouse.contract.moments import NONE, Asked, MomentBound, MomentToken, began_anew
from statehouse.v1 import types_pb2


@dataclass(frozen=True, slots=True)
class Step:
    """The next batch that is marked, and where it ends in the partition."""

    batch_id: int
    end: int


class BatchSteps:
    """The steps of a watch of one partition. Every call has what is known of the store's batches now."""

    def __init__(self, store: str, partition: int, after: types_pb2.Moment | None) -> None:
        """Begin after a batch, None: after any."""
        self._store, self._partition = store, partition
        self._query_id = None if after is None else after.query_id
        self._after = NONE if after is None else after.batch_id
        self._newest = NONE
        self._step: Step | None = None

    @property
    def shows(self) -> int:
        """The batch that what is sent next belongs to, or a later one than it."""
        return self._after if self._step is None else self._step.batch_id

    def is_other_query(self, known: KnownMoments) -> bool:
        """Whether the watch has been on another query's batches."""
        return self._query_id not in {None, known.query_id}

    def has_heard(self, known: KnownMoments) -> bool:
        """Whether the batch that the watch goes on after, or a later one, is known to be committed.

        If it is the query's, and a node that has read all of the commits topic hasn't heard of it, its ids began anew.
        """
        return self.is_other_query(known) or self._after <= known.committed

    def bound(self, asked: MomentBound) -> MomentBound:
        """Return the bound of current values: none before what has been marked; before that, what the caller asks."""
        if self._after == NONE or self._query_id is None:
            return asked
        return MomentBound(Asked.AT_LEAST, MomentToken({self._query_id: self._after}))

    def begin(self, query_id: str, batch_id: int) -> None:
        """Note that the caller has everything up to a batch's end."""
        self._query_id, self._after, self._step, self._newest = query_id, batch_id, None, batch_id

    def due(self, known: KnownMoments, position: int) -> Step | None:
        """Return the next batch that is marked, given the next offset to look at; None if none is known yet.

        Raises:
            LookupFailure: MOMENT_GONE, the batches began anew.

        """
        if self.is_other_query(known) or known.newest < self._newest:
            raise began_anew(self._store)
        self._query_id, self._newest = known.query_id, known.newest
        if self._step is None:
            found = known.following(self._after, position, self._partition)
            self._step = None if found is None else Step(*found)
        return self._step

    def refuse(self, step: Step, records: Sequence[int]) -> bool:
        """Leave a batch out if one of these batches, which wrote the records before its end, is a later one."""
        newest = max(records, default=NONE)
        if newest <= step.batch_id:
            return False
        self._after, self._step = newest - 1, None
        return True

    def reached(self, position: int) -> bool:
        """Note the next offset to look at; return whether a batch ends there."""
        if self._step is None or position < self._step.end:
            return False
        self._after, self._step = self._step.batch_id, None
        return True
