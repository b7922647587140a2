"""Sums of a store partition's entries, by which copies of it are compared. Pure.

Copies are a replica, and what the changelog says. Each divides its keys into the same buckets, and sums what each
bucket's entries hash to. Sums don't depend on the order, so equal copies have equal sums, however their engines lie.
Where sums differ, the entries of these buckets are listed and compared one by one.

A digest covers all that a reader sees of an entry: key, time and value. It has 128 bits: a wrong entry goes unseen in
one of 2^128 cases. The data plane has the same sums (`dataplane/sums`); a test compares the two.

Windows and sessions expire, and a copy may have removed what another one still has. So of these only entries count that
every copy has: see `SumBounds`.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Self

from statehouse.contract.topology import KEY_VALUE, SESSION, WINDOW, StoreSpec
from statehouse.v1 import verification_pb2

SUMMED_KINDS: Final = frozenset({KEY_VALUE, WINDOW, SESSION})
"""The kinds whose copies can be compared; not all stores of these can, see `why_not_summed`."""
BUCKETS: Final = 1_024
BUCKETS_MAX: Final = 65_536
LISTED_MAX: Final = 64
"""Buckets that are listed in one go."""
DIGEST_BYTES: Final = 16
LOG: Final = "log"
"""The copy that the changelog is; no node has this name."""
_REST: Final = 3
"""For so many times as long as a part was read, nothing is."""
_MODULUS: Final = 1 << (8 * DIGEST_BYTES)
_KEY_SIZE: Final = struct.Struct(">I")
_TIME: Final = struct.Struct(">q")


def why_not_summed(spec: StoreSpec) -> str:
    """Return why equal copies of a store could have other sums; empty if they can't.

    A fresh replica has what compaction has left of the log, and an old one has what it has read.
    """
    if spec.kind not in SUMMED_KINDS:
        # A fresh replica may take a late version that an old one refused: the record that made it late is gone.
        return f"it is a {spec.kind} store; sums are made of key-value, window and session stores"
    if spec.retain_duplicates:
        return (
            "it retains duplicates: a record without a value deletes nothing, but compaction removes the one before it"
        )
    return ""


@dataclass(frozen=True, slots=True)
class SumBounds:
    """Which entries of a window or session store count, in milliseconds; `a | b` leaves out what either does.

    Attributes:
        stream_time_ms: no entry counts that is expired at this stream time. At the latest one of all copies none of
            them has removed an entry that counts, nor has one refused it as late. -1: none is expired.
        recorded_from_ms: no entry of an earlier record counts: the log may have deleted that. -1: it has deleted none.

    """

    stream_time_ms: int = -1
    recorded_from_ms: int = -1

    @classmethod
    def from_proto(cls, message: verification_pb2.SumBounds) -> Self:
        """Read the wire form."""
        return cls(message.stream_time_ms, message.recorded_from_ms)

    def to_proto(self) -> verification_pb2.SumBounds:
        """Return the wire form."""
        return verification_pb2.SumBounds(stream_time_ms=self.stream_time_ms, recorded_from_ms=self.recorded_from_ms)

    def __or__(self, other: SumBounds) -> SumBounds:
        return SumBounds(
            max(self.stream_time_ms, other.stream_time_ms), max(self.recorded_from_ms, other.recorded_from_ms)
        )


EVERY_ENTRY: Final = SumBounds()


def bucket_of(key: bytes, buckets: int) -> int:
    """Return the bucket that a key belongs to."""
    return zlib.crc32(key) % buckets


def digest_of(key: bytes, stored: bytes) -> bytes:
    """Return the digest of an entry: its key, and what an engine holds for it, which begins with the record's time."""
    return hashlib.sha256(_KEY_SIZE.pack(len(key)) + key + stored).digest()[:DIGEST_BYTES]


@dataclass(slots=True)
class StoreSums:
    """Sums of a copy's entries: how many each bucket has, and what they sum to modulo 2^128."""

    counts: list[int]
    sums: list[int]

    @classmethod
    def empty(cls, buckets: int) -> Self:
        """Return the sums of no entries."""
        return cls([0] * buckets, [0] * buckets)

    @classmethod
    def of_wire(cls, counts: Iterable[int], sums: bytes) -> Self:
        """Read the wire form.

        Raises:
            ValueError: it has not as many sums as counts.

        """
        read = cls(list(counts), [int.from_bytes(each) for each in _pieces(sums, DIGEST_BYTES)])
        if len(read.counts) != len(read.sums):
            raise ValueError(f"{len(read.counts)} counts and {len(read.sums)} sums")
        return read

    def packed(self) -> bytes:
        """Return the sums as the wire has them."""
        return b"".join(each.to_bytes(DIGEST_BYTES) for each in self.sums)

    def add(self, key: bytes, digest: bytes) -> int:
        """Add an entry; return its bucket."""
        bucket = bucket_of(key, len(self.counts))
        self.counts[bucket] += 1
        self.sums[bucket] = (self.sums[bucket] + int.from_bytes(digest)) % _MODULUS
        return bucket

    @property
    def entries(self) -> int:
        """How many entries there are."""
        return sum(self.counts)


def differing(copies: Iterable[StoreSums]) -> list[int]:
    """Return the buckets that not all copies have alike.

    Raises:
        ValueError: they have different numbers of buckets.

    """
    rows = [list(zip(each.counts, each.sums, strict=True)) for each in copies]
    return [bucket for bucket, found in enumerate(zip(*rows, strict=True)) if len(set(found)) > 1]


@dataclass(frozen=True, slots=True)
class SummedEntry:
    """An entry as a copy has it. `timestamp_ms`: its record's time; -1: it had none."""

    digest: bytes
    timestamp_ms: int

    @classmethod
    def of(cls, key: bytes, stored: bytes) -> Self:
        """Return the entry of a key, by what an engine holds for it."""
        return cls(digest_of(key, stored), _TIME.unpack_from(stored)[0])


class Wrong(StrEnum):
    """What is wrong with a copy's entry."""

    VALUE = "wrong value"
    TIME = "wrong time"
    """Another time, and perhaps another value."""
    MISSING = "missing"
    EXTRA = "extra"
    UNCLEAR = "differs"
    """Copies differ, and none of their versions is known to be right."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose entry is wrong in a copy.

    Attributes:
        copy: the name of the copy: a node's instance id.
        key: the serialized key.
        wrong: what is wrong.
        found: what the copy has; None: no entry.
        right: what it should have; None: no entry, or that isn't known.

    """

    copy: str
    key: bytes
    wrong: Wrong
    found: SummedEntry | None
    right: SummedEntry | None


Listing = Mapping[bytes, SummedEntry]
"""A copy's entries, by key."""


def differences(copies: Mapping[str, Listing]) -> list[Difference]:
    """Return each entry that differs, in order of keys, by the names of the copies.

    The changelog is right, if it is among the copies; else what more than half of them have. If there is no such
    majority, all are named.
    """
    return [
        found for key in sorted({key for each in copies.values() for key in each}) for found in _of_key(key, copies)
    ]


def _of_key(key: bytes, copies: Mapping[str, Listing]) -> Iterator[Difference]:
    found = {name: listing.get(key) for name, listing in copies.items()}
    if len(set(found.values())) == 1:
        return
    judge = _right(found)
    for name, entry in sorted(found.items()):
        if judge is None:
            yield Difference(name, key, Wrong.UNCLEAR, entry, None)
        elif entry != judge.right:
            yield Difference(name, key, _wrong(entry, judge.right), entry, judge.right)


@dataclass(frozen=True, slots=True)
class _Judge:
    """What is right of a key; None: no entry."""

    right: SummedEntry | None


def _right(found: Mapping[str, SummedEntry | None]) -> _Judge | None:
    """Return what is right; None if that isn't known."""
    if LOG in found:
        return _Judge(found[LOG])
    entry, count = Counter(found.values()).most_common(1)[0]
    return _Judge(entry) if 2 * count > len(found) else None


def _wrong(found: SummedEntry | None, right: SummedEntry | None) -> Wrong:
    if found is None:
        return Wrong.MISSING
    if right is None:
        return Wrong.EXTRA
    return Wrong.VALUE if found.timestamp_ms == right.timestamp_ms else Wrong.TIME


@dataclass(slots=True)
class Pace:
    """How fast something is read: so many bytes a second on average since `began`, in seconds; 0: without a bound.

    Where there is one, reading also takes a quarter of the time at most. A machine that has much to do is slow, so what
    is behind must not try to catch up.
    """

    bytes_per_second: int
    began: float
    _bytes: int = field(default=0, init=False)

    def pause_s(self, read: int, took_s: float, now: float) -> float:
        """Note that so many bytes more were read by now, and for how long. Return how long nothing is to be read."""
        self._bytes += read
        if self.bytes_per_second <= 0:
            return 0.0
        return max(_REST * took_s, self.began + self._bytes / self.bytes_per_second - now)


def _pieces(data: bytes, size: int) -> Sequence[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]
