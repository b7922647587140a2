"""Tails: the latest records of a changelog partition, kept in memory for watches.

A tail is *whole*: no record that was ever between its start and its end is missing. Offsets alone don't prove this:
compaction leaves holes, but transaction markers and aborted batches do so too. A hole means no loss if one of these
rules holds:

1. The log isn't compacted (`cleanup.policy=delete`).
2. When the records have been read, one of the records read so far, or the record after the hole, is younger than
   `min.compaction.lag.ms` (less a tenth, because clocks differ). Kafka's cleaner works from the log's start and stops
   at the first segment with so young a record. So nothing after that record can be gone. Nor can a record be missing in
   the hole just before it: the cleaner removes a record only for a later one of the same key in the segments it cleans,
   and the first record that it kept would follow the hole.
3. The records were read within `READ_AT_ONCE_S` after the replica was last known to be at the end. So they were written
   since then, and Kafka would have to close and clean their segment within that time. The data plane keeps what it has
   read until somebody watches (`tail_feed`); it has read them before it reports that.

Otherwise the tail starts again after the hole. Rule 3 assumes that segments live longer than that; it is needed for
records with old event times. Rule 2 follows from how Kafka compacts, provided that the lag wasn't raised a moment ago.
Tombstones are removed without a later record, but not before `delete.retention.ms`; a replica that falls so far behind
is wiped (`query_service.replicas.replica`).
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from query_service.stores.base import ChangelogRecord
from statehouse.runtime.batches import BatchCapacity, fitting

READ_AT_ONCE_S: Final = 5.0
_CLOCKS_MARGIN: Final = 0.1
# Memory of a record in addition to its key and value. It also bounds the number of records with tiny keys and values.
_RECORD_BYTES: Final = 200
_OFFSET = attrgetter("offset")


@dataclass(frozen=True, slots=True)
class Compaction:
    """How a changelog is compacted. `lag_ms` is its min.compaction.lag.ms, None if the log isn't compacted."""

    lag_ms: int | None

    def spares(self, newest_ms: int, now_ms: int) -> bool:
        """Whether nothing can have been removed after a record of this time (rules 1 and 2)."""
        return self.lag_ms is None or (
            self.lag_ms > 0 and newest_ms > now_ms - self.lag_ms + int(self.lag_ms * _CLOCKS_MARGIN)
        )

    def whole_from(self, position: int, records: Sequence[ChangelogRecord], now_ms: int, newest_ms: int = -1) -> int:
        """Return the first offset after which no record is missing, up to the end of `records`.

        Args:
            position: where reading began.
            records: the records read from there on.
            now_ms: wall clock in milliseconds after they were read.
            newest_ms: largest timestamp read from this log before them.

        """
        whole = position
        for record in records:
            newest_ms = max(newest_ms, record.timestamp_ms)
            if record.offset != position and not self.spares(newest_ms, now_ms):
                whole = record.offset
            position = record.offset + 1
        return whole


def compaction_of(topic_settings: Mapping[str, str]) -> Compaction:
    """Return how a topic with these settings is compacted."""
    is_compacted = "compact" in topic_settings["cleanup.policy"]
    return Compaction(int(topic_settings["min.compaction.lag.ms"]) if is_compacted else None)


@dataclass(frozen=True, slots=True)
class TailRecords:
    """Consecutive records in offset order, and the position after them: no record before it is missing."""

    records: Sequence[ChangelogRecord]
    position: int

    def cut(self, end: int) -> tuple[TailRecords, TailRecords | None]:
        """Return those before an offset, and what there is from it on."""
        if self.position <= end:
            return self, None
        before = [record for record in self.records if record.offset < end]
        return TailRecords(before, end), TailRecords(self.records[len(before) :], self.position)


class Tail:
    """The latest records, up to `max_bytes`. One thread extends the tail, any thread reads it."""

    def __init__(self, max_bytes: int, compaction: Compaction, position: int) -> None:
        self._max_bytes, self.compaction = max_bytes, compaction
        self._lock = threading.Lock()
        self._records: list[ChangelogRecord] = []
        self._first = 0  # index of the first record that is still kept
        self._bytes = 0
        self._newest_ms = -1
        self.start = position
        """First offset that the tail covers."""
        self.end = position
        """Position after the last record that the tail covers."""

    def restart(self, position: int) -> None:
        """Drop all records; cover the log from `position` on, which may be an earlier one."""
        with self._lock:
            self._forget(position)
            self.end = position
            self._newest_ms = -1  # what was read after a hole doesn't show that it was one before

    def extend(self, records: Sequence[ChangelogRecord], position: int, now_ms: int, *, at_once_from: int) -> None:
        """Add records.

        Args:
            records: the records read between the tail's end and `position`.
            position: the position after them.
            now_ms: wall clock in milliseconds after they were read.
            at_once_from: the offset from which on rule 3 holds for them.

        """
        with self._lock:
            whole = self.end
            if at_once_from > whole:
                provable = self.compaction.whole_from(whole, records, now_ms, self._newest_ms)
                whole = min(provable, at_once_from)
            if whole != self.end:
                self._forget(whole)
            self._newest_ms = max(self._newest_ms, *(record.timestamp_ms for record in records), -1)
            for record in records:
                if record.offset >= whole:
                    self._records.append(record)
                    self._bytes += _size(record)
            self.end = position
            self._trim()

    def read(self, position: int, max_records: int, max_bytes: int) -> TailRecords | None:
        """Return records from `position` on, within the limits but at least one if there is one.

        Returns None if the tail starts after `position`.
        """
        with self._lock:
            if position < self.start:
                return None
            at = bisect_left(self._records, position, lo=self._first, key=_OFFSET)
            count = fitting(map(_size, self._records[at : at + max_records]), BatchCapacity(max_records, max_bytes))
            found = self._records[at : at + count]
            if at + count < len(self._records):
                return TailRecords(found, found[-1].offset + 1)
            return TailRecords(found, max(position, self.end))

    def _forget(self, position: int) -> None:
        self._records.clear()
        self._first = self._bytes = 0
        self.start = position

    def _trim(self) -> None:
        while self._bytes > self._max_bytes:
            record = self._records[self._first]
            self._bytes -= _size(record)
            self.start = record.offset + 1
            self._first += 1
        if self._first > len(self._records) // 2:
            del self._records[: self._first]
            self._first = 0


def _size(record: ChangelogRecord) -> int:
    return _RECORD_BYTES + len(record.key) + len(record.value or b"")
