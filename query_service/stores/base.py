"""What every state store offers to replication, and the values that reads return.

A store turns changelog records into writes to an engine, and queries into walks over it. Reads may run beside the
one writer; `close` waits for reads under way. Clients only ever get the reading methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from query_service.checkpoint import Checkpoint
from query_service.stores.walk import Walk

T = TypeVar("T")


class Record(NamedTuple):
    """A changelog record with a key; a None value is a tombstone. `timestamp_ms`: event time."""

    key: bytes
    value: bytes | None
    timestamp_ms: int
    offset: int = -1


@dataclass(slots=True)
class Applied:
    """What became of a batch beside the writes.

    Attributes:
        unreadable: (index in the batch, reason) of records whose key is not of the store's layout.
        late: how many records were older than the retention and were dropped.
        expired_segments: how many segments were dropped by expiry.
        stream_time_ms: largest time the store has seen, -1 before the first.

    """

    unreadable: list[tuple[int, str]] = field(default_factory=list)
    late: int = 0
    expired_segments: int = 0
    stream_time_ms: int = -1


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Items of a range, and whether the range holds more after them."""

    entries: list[T]
    more: bool


class PageBuilder(Generic[T]):
    """Collects items up to a count and a size; a single item may exceed the size."""

    def __init__(self, limit: int, max_bytes: int) -> None:
        self._limit, self._max_bytes = limit, max_bytes
        self._size = 0
        self._entries: list[T] = []

    def add(self, entry: T, size: int) -> bool:
        """Take an item; False if it does not fit and the page is done."""
        if len(self._entries) == self._limit or (self._entries and self._size + size > self._max_bytes):
            return False
        self._entries.append(entry)
        self._size += size
        return True

    def page(self, *, more: bool) -> Page[T]:
        """Return what was collected."""
        return Page(self._entries, more)


@runtime_checkable
class StateStore(Protocol):
    """The face that replication gets."""

    def checkpoint(self) -> Checkpoint | None:
        """Return the place in the changelog that the content stands for, None for a store never written to."""

    def apply(self, records: Sequence[Record], checkpoint: Checkpoint) -> Applied:
        """Write records, in offset order, and the place after them, atomically."""

    def approximate_count(self) -> int:
        """Return an estimate of the number of entries, in constant time."""

    def exact_count(self, walk: Walk) -> int:
        """Count the entries of one moment by a walk."""

    def open_views(self) -> int:
        """Return how many reads hold the store open."""

    def statistics(self) -> Mapping[str, int]:
        """Return what `STORE_STATISTICS` describes, as far as the store knows it; cheap, and from any thread."""

    def close(self) -> None:
        """Release files and memory; waits for reads under way."""
