"""What the commits topic says of batches, and which batch a replica's answer is of. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from statehouse.contract.moments import NONE, MomentBound, unavailable
from statehouse.control.v1 import commits_pb2
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import types_pb2

_KNOWN_MAX: Final = 512
# Beyond these, as many as there are leases, as long as reads that name them come.
_WALKED_MAX: Final = 16
_ASKED_WITHIN: Final = 256
# Older ones than so many batches are not tried for the newest one.
_TRIED_MAX: Final = 64


@dataclass(slots=True)
class KnownMoments:
    """The latest batches of a store's query, in order, and where each partition of its changelog ended after them.

    A walk may need an earlier one for longer. So one that reads have named lately is not forgotten.
    """

    query_id: str
    batches: deque[tuple[int, Mapping[int, int]]] = field(default_factory=deque)
    committed: int = NONE
    """The newest batch that is committed, whether it can be shown or not."""
    _walked: dict[int, Mapping[int, int]] = field(default_factory=dict)
    # How many batches there had been when reads named one the last time, and how many there have been.
    _asked_at: dict[int, int] = field(default_factory=dict)
    _count: int = 0

    @property
    def newest(self) -> int:
        """The newest batch, `NONE` if there is none."""
        return self.batches[-1][0] if self.batches else NONE

    def add(self, batch_id: int, ends: Mapping[int, int]) -> None:
        """Add a batch that is newer than all others."""
        self.batches.append((batch_id, ends))
        self._count += 1
        if len(self.batches) > _KNOWN_MAX:
            oldest, its_ends = self.batches.popleft()
            self._walked[oldest] = its_ends
            asked = sorted(self._walked, key=lambda each: self._asked_at.get(each, 0), reverse=True)
            due = self._count - _ASKED_WITHIN
            kept = [each for each in asked[:_WALKED_MAX] if self._asked_at.get(each, 0) > due]
            for each in self._walked.keys() - set(kept):
                del self._walked[each]
                self._asked_at.pop(each, None)

    def end(self, batch_id: int, partition: int) -> int | None:
        """Return where a batch ends in a partition, None if that isn't known."""
        for known, ends in reversed(self.batches):
            if known <= batch_id:
                return ends.get(partition, 0) if known == batch_id else None
        walked = self._walked.get(batch_id)
        return None if walked is None else walked.get(partition, 0)

    def end_named(self, batch_id: int, partition: int) -> int | None:
        """Do as `end` for a read that names the batch."""
        end = self.end(batch_id, partition)
        if end is not None:
            self._asked_at[batch_id] = self._count
        return end

    def end_after(self, end: int, partition: int) -> int | None:
        """Return the earliest known end of a batch in a partition that is behind another; None if there is none.

        If earlier ones are forgotten, one may have been right behind it.
        """
        if self.batches and self.batches[0][1].get(partition, 0) > end:
            return end + 1
        return min((later for _, ends in self.batches if (later := ends.get(partition, 0)) > end), default=None)

    def following(self, after: int, position: int, partition: int) -> tuple[int, int] | None:
        """Return the first batch after one that doesn't end before a position, and where; None if none is known."""
        found = None
        for batch_id, ends in reversed(self.batches):
            end = ends.get(partition, 0)
            if batch_id <= after or end < position:
                break
            found = batch_id, end
        return found


class CommittedMoments:
    """What the commits topic says of batches, by store.

    It has all that was in the topic at `read_at_s`, on the monotonic clock; None: that isn't known of any time.
    """

    def __init__(self) -> None:
        """Know of none."""
        self._of_stores: dict[str, KnownMoments] = {}
        self.read_at_s: float | None = None

    def take(self, commit: commits_pb2.Commit) -> None:
        """Take a record. One that repeats the last batch's changes nothing."""
        known = self._of_stores.get(commit.store)
        if known is None or known.query_id != commit.query_id or commit.batch_id < known.committed:
            known = self._of_stores[commit.store] = KnownMoments(commit.query_id)
        known.committed = commit.batch_id
        if commit.is_moment and commit.batch_id > known.newest:
            known.add(commit.batch_id, {each.partition: each.offset for each in commit.changelog_ends})

    def forget(self, store: str) -> None:
        """Forget a store: its application begins anew."""
        self._of_stores.pop(store, None)

    def known(self, store: str) -> KnownMoments | None:
        """Return the batches of a store, None if nothing has been committed into it."""
        return self._of_stores.get(store)

    def of(self, store: str) -> KnownMoments:
        """Return the batches of a store, at least one.

        Raises:
            LookupFailure: MOMENTS_UNAVAILABLE, none is known.

        """
        known = self._of_stores.get(store)
        if known is None:
            raise unavailable(store, "nothing has been committed into it yet, as far as this node knows")
        if not known.batches:
            raise unavailable(store, "its processor has not said yet where a batch ends; earlier versions never do")
        return known


@dataclass(frozen=True, slots=True)
class Chosen:
    """The batch that a replica shows, and where that ends in its partition."""

    query_id: str
    batch_id: int
    end: int

    def mark(self, stamp: types_pb2.ReplicaStamp) -> None:
        """Have the stamp of a replica as it is say that the answer is of the batch."""
        if stamp.HasField("lag"):
            stamp.lag += stamp.position - self.end
        stamp.position = self.end
        stamp.moment.query_id, stamp.moment.batch_id = self.query_id, self.batch_id


@dataclass(frozen=True, slots=True)
class Missed:
    """Why a replica shows no batch that the read may be of, and whether it may a little later."""

    failure: LookupFailure
    passes: bool


def chosen(
    bound: MomentBound,
    known: KnownMoments,
    store: str,
    partition: int,
    position: int,
    shows: Callable[[int, int], bool],
) -> Chosen | Missed:
    """Return which batch a replica's answer is of.

    Args:
        bound: which one the read asks for.
        known: the batches that the commits topic has named.
        store: the store, for the failure.
        partition: the replica's partition.
        position: the next offset that the replica needs.
        shows: whether the replica can show a batch, given its id and its end; asked only if the position is not before.

    """
    exactly = bound.exactly(known.query_id)
    if exactly is not None:
        end = known.end_named(exactly, partition)
        if exactly > known.newest or (end is not None and end > position):
            return Missed(not_reached(known, store, partition, exactly), passes=True)
        if end is None or not shows(exactly, end):
            return Missed(gone(known, store, partition, exactly), passes=False)
        return Chosen(known.query_id, exactly, end)
    least = bound.least(known.query_id)
    for tried, (batch_id, ends) in enumerate(reversed(known.batches)):
        if batch_id < least or tried == _TRIED_MAX:
            break
        end = ends.get(partition, 0)
        if end <= position and shows(batch_id, end):
            return Chosen(known.query_id, batch_id, end)
    return Missed(not_reached(known, store, partition, least), passes=True)


def not_reached(known: KnownMoments, store: str, partition: int, wanted: int) -> LookupFailure:
    """Return the failure of a replica that has not reached a batch."""
    return _failed(Reason.MOMENT_NOT_REACHED, "is not reached", known, store, partition, wanted)


def gone(known: KnownMoments, store: str, partition: int, wanted: int) -> LookupFailure:
    """Return the failure of a replica that does not keep a batch."""
    return _failed(Reason.MOMENT_GONE, "is not kept any more", known, store, partition, wanted)


def _failed(reason: Reason, what: str, known: KnownMoments, store: str, partition: int, wanted: int) -> LookupFailure:
    message = f"batch {wanted} of store {store} {what} in partition {partition}; the newest is {known.newest}"
    return LookupFailure(
        reason,
        message,
        {
            "store": store,
            "partition": str(partition),
            "query_id": known.query_id,
            "wanted": str(wanted),
            "newest": str(known.newest),
        },
    )
