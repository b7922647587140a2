"""Moments: the stores of a query as they were when one of its batches was whole. Pure.

Every record that a batch writes into a changelog has a header with the batch's id. It cuts the log: before a replica
applies the first record of another batch, it keeps what it has. What it keeps is the state of all offsets from the one
after the last record to the next batch's first record, because no record is between them. The commits topic names it:
it says where each batch ends in each partition. So a replica never waits in order to keep a batch, and a partition
without records in a batch shows it all the same.

An end that is too late only costs that the batch can't be shown; one that is too early would show the batch before it
under its name. So the header is looked at, too: it must not be a later batch's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, Self

from statehouse.contract.token_texts import data_in, packed, text_of, unpacked
from statehouse.contract.topology import STORE_KINDS, StoreSpec
from statehouse.control.v1 import commits_pb2
from statehouse.errors import LookupFailure, Reason
from statehouse.serdes.wire import varint
from statehouse.v1 import types_pb2

HEADER: Final = "b"
"""The header that has a record's batch, as `header_value` writes it."""
NONE: Final = -1
"""In place of a batch's id: the newest record names no batch, or there is no record."""
DENSE: Final = 32
"""So many of the newest batches are kept, and then each 16th of as many as 256."""
_EVERY: Final = 16
_SPARSE: Final = 256
_MOMENTS_MAX: Final = 100
_TOKEN_BYTES_MAX: Final = _MOMENTS_MAX * 300
_KNOWN_MAX: Final = 512
# Beyond these, as many as there are leases, as long as reads that name them come.
_WALKED_MAX: Final = 16
_ASKED_WITHIN: Final = 256
# Older ones than so many batches are not tried for the newest one.
_TRIED_MAX: Final = 64
_VARINT_BYTES_MAX: Final = 9
_WHAT: Final = "moment"


def header_value(batch_id: int) -> bytes:
    """Return a batch's id as the header has it: seven bits a byte, the lowest first (as protobuf's varints)."""
    return varint(batch_id)


def batch_in(headers: Sequence[tuple[str, bytes | None]] | None) -> int:
    """Return the batch that a record's headers name, `NONE` if they name none."""
    for name, value in headers or ():
        if name == HEADER:
            return _batch_of(value or b"")
    return NONE


def _batch_of(data: bytes) -> int:
    if not data or len(data) > _VARINT_BYTES_MAX or data[-1] > 0x7F or any(byte <= 0x7F for byte in data[:-1]):
        return NONE
    return sum((byte & 0x7F) << 7 * place for place, byte in enumerate(data))


def is_state_of(last: int, lo: int, hi: int, batch_id: int, end: int) -> bool:
    """Whether a state is the one at the end of a batch.

    Args:
        last: the batch that the state's newest record names.
        lo: the offset after that record; 0 if there is none.
        hi: up to this offset no other record is known to be.
        batch_id: the batch.
        end: where it ends in the partition.

    """
    return lo <= end <= hi and last <= batch_id and (last > NONE or lo == 0)


def is_kept(batch_id: int, newest: int) -> bool:
    """Whether a batch is kept once a replica has reached the newest one.

    All replicas keep the same, so a walk that goes on at another finds its batch there.
    """
    age = newest - batch_id
    return age < DENSE or (batch_id % _EVERY == 0 and age < DENSE + _SPARSE)


def covers(first: int, last: int, newest: int) -> bool:
    """Whether a state that is the same from one batch to another is kept, for at least one of them."""
    return first <= last and (
        is_kept(last, newest) or (last - last % _EVERY >= first and is_kept(last - last % _EVERY, newest))
    )


class MomentToken:
    """An immutable set of moments, one per query.

    `a | b` has the newer one of each. `str` gives text for a header or a URL; `parse` reads it.
    """

    __slots__ = ("_batches",)

    def __init__(self, batches: Mapping[str, int] | None = None) -> None:
        """Take batch ids by query id.

        Raises:
            ValueError: one is negative, or there are more than a hundred.

        """
        self._batches = dict(batches or {})
        if len(self._batches) > _MOMENTS_MAX:
            raise ValueError(f"{len(self._batches)} moments, where {_MOMENTS_MAX} are the most")
        for query_id, batch_id in self._batches.items():
            if batch_id < 0:
                raise ValueError(f"batch {batch_id} of query {query_id}: batches must not be negative")

    @classmethod
    def from_proto(cls, message: types_pb2.Moments) -> Self:
        """Read the wire form; of several of a query the newest counts.

        Raises:
            ValueError: as the constructor.

        """
        if len(message.moments) > _MOMENTS_MAX:
            raise ValueError(f"{len(message.moments)} moments, where {_MOMENTS_MAX} are the most")
        batches: dict[str, int] = {}
        for each in message.moments:
            if each.batch_id < 0:
                raise ValueError(f"batch {each.batch_id} of query {each.query_id}: batches must not be negative")
            batches[each.query_id] = max(each.batch_id, batches.get(each.query_id, 0))
        return cls(batches)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote.

        Raises:
            ValueError: it is no token.

        """
        data = data_in(text, _WHAT)
        return cls.from_proto(unpacked(data, types_pb2.Moments, _TOKEN_BYTES_MAX, _WHAT)) if data else cls()

    def __iter__(self) -> Iterator[str]:
        """Yield the queries."""
        return iter(self._batches)

    def batch(self, query_id: str) -> int | None:
        """Return the batch of a query, None if none is named."""
        return self._batches.get(query_id)

    def to_proto(self) -> types_pb2.Moments:
        """Return the wire form."""
        moments = [types_pb2.Moment(query_id=name, batch_id=batch) for name, batch in sorted(self._batches.items())]
        return types_pb2.Moments(moments=moments)

    def __str__(self) -> str:
        return text_of(packed(self.to_proto())) if self else ""

    def __repr__(self) -> str:
        return f"MomentToken({self._batches!r})"

    def __or__(self, other: MomentToken) -> MomentToken:
        if not other or self is other:
            return self
        merged = dict(self._batches)
        for query_id, batch_id in other._batches.items():
            merged[query_id] = max(batch_id, merged.get(query_id, 0))
        return MomentToken(merged)

    def __len__(self) -> int:
        return len(self._batches)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MomentToken) and self._batches == other._batches

    def __hash__(self) -> int:
        return hash(frozenset(self._batches.items()))


class Asked(Enum):
    """How a read names its batch."""

    NEWEST = auto()
    AT_LEAST = auto()
    EXACTLY = auto()


@dataclass(frozen=True, slots=True)
class MomentBound:
    """Which batch of its store's query a read is of: the newest one, that or a later one, or exactly one.

    `wait_ms` bounds how long a replica may wait for it; None: within the deadline.
    """

    asked: Asked = Asked.NEWEST
    token: MomentToken = field(default_factory=MomentToken)
    wait_ms: int | None = None

    @classmethod
    def from_proto(cls, message: types_pb2.MomentBound) -> Self:
        """Read the wire form.

        Raises:
            ValueError: it names nothing, or a negative batch.

        """
        wait_ms = message.wait_ms if message.HasField("wait_ms") else None
        match message.WhichOneof("bound"):
            case "newest":
                return cls(Asked.NEWEST, wait_ms=wait_ms)
            case "at_least":
                return cls(Asked.AT_LEAST, MomentToken.from_proto(message.at_least), wait_ms)
            case "exactly":
                return cls(Asked.EXACTLY, MomentToken.from_proto(message.exactly), wait_ms)
            case _:
                raise ValueError("the moment is missing: set newest, at_least or exactly")

    def to_proto(self) -> types_pb2.MomentBound:
        """Return the wire form."""
        if self.asked is Asked.NEWEST:
            return types_pb2.MomentBound(newest=True, wait_ms=self.wait_ms)
        moments: Any = {self.asked.name.lower(): self.token.to_proto()}
        return types_pb2.MomentBound(wait_ms=self.wait_ms, **moments)

    def exactly(self, query_id: str) -> int | None:
        """Return the only batch of a query that the read may be of, None if there are several."""
        return self.token.batch(query_id) if self.asked is Asked.EXACTLY else None

    def least(self, query_id: str) -> int:
        """Return the earliest batch of a query that the read may be of."""
        return self.token.batch(query_id) or 0


NEWEST: Final = MomentBound()
NEWEST_TEXT: Final = "newest"
"""What people write for it, in the place of a token."""


def bound_of_texts(moment: str | None, at_least: str | None) -> MomentBound | None:
    """Return the bound that people write: which moment, as a token or `NEWEST_TEXT`, and none before which.

    Raises:
        ValueError: a text is no token, or both say which.

    """
    if at_least is not None:
        if moment not in {None, NEWEST_TEXT}:
            raise ValueError("give a moment, or one that it must not be before, not both")
        return MomentBound(Asked.AT_LEAST, _token_of(at_least))
    if moment is None:
        return None
    return NEWEST if moment == NEWEST_TEXT else MomentBound(Asked.EXACTLY, _token_of(moment))


def _token_of(text: str) -> MomentToken:
    token = MomentToken.parse(text)
    if not token:
        raise ValueError("not a moment: it names no batch")
    return token


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


def why_none(spec: StoreSpec) -> str:
    """Return why a store shows no batches, whatever is written into it; empty if it shows some."""
    if spec.is_global:
        return "it is global"
    if spec.ephemeral:
        return "it is ephemeral"
    if spec.foreign or not spec.committed:
        return "no processor of ours writes it"
    return "" if spec.kind in STORE_KINDS else f"stores of kind {spec.kind} keep none"


def began_anew(store: str) -> LookupFailure:
    """Return the failure of a watch that goes on after a batch which is none of the store's any more."""
    return LookupFailure(
        Reason.MOMENT_GONE,
        f"the batches of store {store} began anew: its query has another checkpoint; watch it anew",
        {"store": store},
    )


def unavailable(store: str, why: str) -> LookupFailure:
    """Return the failure of a read of a store that shows no batch."""
    return LookupFailure(
        Reason.MOMENTS_UNAVAILABLE, f"store {store} can't be read as of a batch: {why}", {"store": store}
    )


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


@dataclass(frozen=True, slots=True)
class Again:
    """Which parts of a read are to be asked again, and for which batch of the query."""

    parts: Sequence[int]
    batch_id: int
    exactly: bool


def again(found: Sequence[int | None], newest: int = NONE) -> Again | None:
    """Return what is missing until all parts of a read are of one batch; None if they are.

    Parts answer with the newest batch that they show. All stand at or beyond the earliest of these, and are asked for
    that. If one of them has not kept it, because it is too far beyond or has restored since, all are asked for what
    the newest of them showed, or a later one: those that were behind wait for it.

    Args:
        found: the batch that each part's answer is of; None: it has not kept the one that it was asked for.
        newest: the newest batch that any answer has shown.

    """
    batches = [each for each in found if each is not None]
    if len(batches) < len(found):
        return Again(range(len(found)), max([newest, *batches]), exactly=False)
    target = min(batches, default=NONE)
    parts = [part for part, batch_id in enumerate(found) if batch_id != target]
    return Again(parts, target, exactly=True) if parts else None
