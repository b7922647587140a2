"""Tails: the latest records of a changelog partition, kept in memory for those who watch it.

A tail is *whole*: between its start and its end no record that was ever there is missing. Offsets alone don't show
that: compaction leaves holes, but so do transaction markers and aborted batches. A hole is no loss where one of these
holds:

1. The log isn't compacted (`cleanup.policy=delete`).
2. A record read by then, the one after the hole included, is younger than `min.compaction.lag.ms` (less a tenth, for
   clocks that differ) after the reading. Kafka's cleaner takes segments from the log's start and stops at the first
   that has so young a record, so nothing after that record can be gone. Nor can anything be in the hole just before
   it: what the cleaner removes is superseded by a later record of the same key in the segments it took, and the first
   record it kept would follow the hole.
3. The records were read within `READ_AT_ONCE_S` of the last moment at which the replica is known to have been at the
   end. They were written since, and Kafka would have to close and clean their segment within that time.

Otherwise the tail starts anew after the hole. The third is an assumption about how long segments live; it is needed
where records carry event times of long ago. The second follows from how Kafka compacts, as long as the lag wasn't
raised a moment ago. Tombstones are removed without a successor, but not before `delete.retention.ms`; a replica that
falls behind that far is wiped (`query_service.replica`).
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from query_service.stores.base import Record

READ_AT_ONCE_S: Final = 5.0
_CLOCKS_MARGIN: Final = 0.1
# What a record costs beside its key and value; it bounds their number, too.
_RECORD_BYTES: Final = 200
_OFFSET = attrgetter("offset")


@dataclass(frozen=True, slots=True)
class Compaction:
    """How a changelog is compacted. `lag_ms`: its min.compaction.lag.ms; None: it isn't compacted."""

    lag_ms: int | None

    def spares(self, newest_ms: int, now_ms: int) -> bool:
        """Whether nothing can have been removed after a record of this time (rules 1 and 2)."""
        return self.lag_ms is None or (
            self.lag_ms > 0 and newest_ms > now_ms - self.lag_ms + int(self.lag_ms * _CLOCKS_MARGIN)
        )

    def whole_from(self, position: int, records: Sequence[Record], now_ms: int, newest_ms: int = -1) -> int:
        """Return the offset from which on no record is missing among those read from `position` on.

        `now_ms`: wall clock after they were read. `newest_ms`: largest record time read of this log before them.
        """
        whole = position
        for record in records:
            newest_ms = max(newest_ms, record.timestamp_ms)
            if record.offset != position and not self.spares(newest_ms, now_ms):
                whole = record.offset
            position = record.offset + 1
        return whole


def compaction_of(topic_settings: Mapping[str, str]) -> Compaction:
    """Read a topic's settings."""
    is_compacted = "compact" in topic_settings["cleanup.policy"]
    return Compaction(int(topic_settings["min.compaction.lag.ms"]) if is_compacted else None)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Records in offset order, and the position after them: all that there is up to it."""

    records: Sequence[Record]
    position: int


class Tail:
    """The latest records, up to `max_bytes`. One thread extends it, any thread reads."""

    def __init__(self, max_bytes: int, compaction: Compaction, position: int) -> None:
        self._max_bytes, self._compaction = max_bytes, compaction
        self._lock = threading.Lock()
        self._records: list[Record] = []
        self._first = 0  # index of the first record that is still kept
        self._bytes = 0
        self._newest_ms = -1
        self._start = self._end = position

    @property
    def start(self) -> int:
        """First offset it covers."""
        return self._start

    @property
    def end(self) -> int:
        """Position after the last record it covers."""
        return self._end

    def restart(self, position: int) -> None:
        """Forget everything and cover what comes from a position on."""
        with self._lock:
            self._forget(position)
            self._end = position

    def extend(self, records: Sequence[Record], position: int, now_ms: int, *, at_once: bool) -> None:
        """Take what was read from its end on, up to `position`; `at_once`: rule 3 holds of it."""
        with self._lock:
            whole = self._end if at_once else self._compaction.whole_from(self._end, records, now_ms, self._newest_ms)
            if whole != self._end:
                self._forget(whole)
            self._newest_ms = max(self._newest_ms, *(record.timestamp_ms for record in records), -1)
            for record in records:
                if record.offset >= whole:
                    self._records.append(record)
                    self._bytes += _size(record)
            self._end = position
            self._trim()

    def read(self, position: int, max_records: int, max_bytes: int) -> Stretch | None:
        """Return what follows a position, at most so much but one record; None if the tail no longer reaches back."""
        with self._lock:
            if position < self._start:
                return None
            at = bisect_left(self._records, position, lo=self._first, key=_OFFSET)
            count, size = 0, 0
            for record in self._records[at : at + max_records]:
                size += _size(record)
                if size > max_bytes and count:
                    break
                count += 1
            found = self._records[at : at + count]
            if at + count < len(self._records):
                return Stretch(found, found[-1].offset + 1)
            return Stretch(found, max(position, self._end))

    def _forget(self, position: int) -> None:
        self._records.clear()
        self._first = self._bytes = 0
        self._start = position

    def _trim(self) -> None:
        while self._bytes > self._max_bytes:
            record = self._records[self._first]
            self._bytes -= _size(record)
            self._start = record.offset + 1
            self._first += 1
        if self._first > len(self._records) // 2:
            del self._records[: self._first]
            self._first = 0


def _size(record: Record) -> int:
    return _RECORD_BYTES + len(record.key) + len(record.value or b"")
