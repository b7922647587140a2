"""The protocol of every state store (`StateStore`), and the values that its methods take and return.

A store turns changelog records into writes to an engine, and queries into walks over the engine. One thread writes;
reads may run at the same time; `close` waits for the reads that have begun. Clients only ever get the reading methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from query_service.states.checkpoint import Checkpoint
from query_service.stores.walk import Walk
from statehouse.contract.moments import NONE
from statehouse.runtime.batches import BatchCapacity

T = TypeVar("T")


class ChangelogRecord(NamedTuple):
    """A changelog record that has a key.

    Attributes:
        key: the record's key as it is in the changelog, for windows and sessions with the times in it.
        value: the record's value; None is a tombstone.
        timestamp_ms: event time, in milliseconds since 1970.
        offset: the record's offset in the changelog partition.
        batch: the batch of the processor that wrote it; `moments.NONE` if it names none.

    """

    key: bytes
    value: bytes | None
    timestamp_ms: int
    offset: int = -1
    batch: int = NONE


@dataclass(slots=True)
class Applied:
    """What a store reports about a batch that it applied.

    Attributes:
        unreadable: (index in the batch, reason) for each record that the store can't read and has skipped.
        late: how many records were dropped because they are older than the retention.
        expired_segments: how many segments were dropped because all their entries are expired.
        stream_time_ms: the largest time the store has seen, -1 before the first.

    """

    unreadable: list[tuple[int, str]] = field(default_factory=list)
    late: int = 0
    expired_segments: int = 0
    stream_time_ms: int = -1


@dataclass(frozen=True, slots=True)
class RangePage(Generic[T]):
    """Entries of a range, and whether the range holds more after them."""

    entries: list[T]
    more: bool


class PageBuilder(Generic[T]):
    """Collects entries up to `limit` in number and `max_bytes` in size; a first entry may exceed the size."""

    def __init__(self, limit: int, max_bytes: int) -> None:
        self._room = BatchCapacity(limit, max_bytes)
        self._entries: list[T] = []

    def add(self, entry: T, size: int) -> bool:
        """Add an entry of `size` bytes. Return False if it does not fit: the page is full."""
        if not self._room.takes(size):
            return False
        self._entries.append(entry)
        return True

    def page(self, *, more: bool) -> RangePage[T]:
        """Return the collected entries as a page."""
        return RangePage(self._entries, more)


@runtime_checkable
class StateStore(Protocol):
    """One partition of a store, as replication uses it. Each kind of store adds its own reading methods."""

    def checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint of the last `apply`, None if the store was never written to."""

    def apply(self, records: Sequence[ChangelogRecord], checkpoint: Checkpoint) -> Applied:
        """Write a batch and its checkpoint in one atomic step. Only one thread calls this.

        Args:
            records: the batch, in order of offset.
            checkpoint: the position after the batch. The store may add its own stream time.

        Raises:
            TaskFault: the store can't take the batch; its task stops.

        """

    def approximate_count(self) -> int:
        """Return an estimate of the number of entries, in constant time."""

    def exact_count(self, walk: Walk) -> int:
        """Walk all entries as they are at one moment, and return their number.

        Raises:
            WalkCancelled: nobody waits for the result any more.
            StoreClosed: the store is being closed.
            LookupFailure: SCAN_TOO_LONG.

        """

    def open_views(self) -> int:
        """Return how many reads hold the store open."""

    def statistics(self) -> Mapping[str, int]:
        """Return the entries of `STORE_STATISTICS` that this store knows. Cheap; safe to call from any thread."""

    def close(self) -> None:
        """Wait for the reads that have begun, then release files and memory."""
