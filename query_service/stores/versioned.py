"""The versioned store (KIP-889): the values of a key over time, for as-of reads within a history retention.

Every version is an entry with the key `escaped key | timestamp`. So a put needs no read, and an as-of read needs one
seek. When a key is written, its versions that were superseded before the start of the history are removed. A tombstone
is a version too.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from query_service.states.checkpoint import Checkpoint
from query_service.stores.base import Applied, ChangelogRecord, PageBuilder, RangePage
from query_service.stores.engine import Engine
from query_service.stores.engine_store import EngineStore
from query_service.stores.walk import Walk
from statehouse import ordered_keys
from statehouse.errors import StatehouseError
from statehouse.paging import KeyRange

_FAMILY = "default"
_TIME = struct.Struct(">q")
_TOMBSTONE = b"\0"
_VALUE = b"\1"
_LAST_MS = 2**63 - 1


class BeforeHistory(StatehouseError):
    """An as-of read asked for a time before the history. The value at that time is unknown, which isn't "not found"."""


@dataclass(frozen=True, slots=True)
class Version:
    """A value, and the time in milliseconds from which it is valid."""

    value: bytes
    timestamp_ms: int


class VersionedStore(EngineStore):
    """Values by key and time, kept for `history_retention_ms` before the stream time."""

    def __init__(self, engine: Engine, history_retention_ms: int) -> None:
        super().__init__(engine)
        self._history_retention_ms = history_retention_ms

    @property
    def history_start_ms(self) -> int:
        """Earliest time that an as-of read may ask for."""
        return max(0, self._stream_time_ms - self._history_retention_ms)

    def apply(self, records: Sequence[ChangelogRecord], checkpoint: Checkpoint) -> Applied:
        """Add versions. As in Kafka Streams, versions older than the history are dropped and counted as late."""
        applied = Applied()
        stream_time_ms = self._stream_time_ms
        puts: dict[bytes, bytes] = {}
        touched: dict[bytes, list[bytes]] = {}
        for index, record in enumerate(records):
            if record.timestamp_ms < 0:
                applied.unreadable.append((index, f"a version with timestamp {record.timestamp_ms}"))
                continue
            stream_time_ms = max(stream_time_ms, record.timestamp_ms)
            if record.timestamp_ms < stream_time_ms - self._history_retention_ms:
                applied.late += 1
                continue
            prefix = ordered_keys.escaped(record.key)
            entry = prefix + _TIME.pack(record.timestamp_ms)
            puts[entry] = _TOMBSTONE if record.value is None else _VALUE + record.value
            touched.setdefault(prefix, []).append(entry)
        horizon_ms = max(0, stream_time_ms - self._history_retention_ms)
        superseded = self._superseded(touched, puts, horizon_ms)
        writes: list[tuple[bytes, bytes | None]] = [(entry, None) for entry in superseded]
        writes += [(entry, data) for entry, data in puts.items() if entry not in superseded]
        self._stream_time_ms = stream_time_ms  # before anything is removed: see `get_as_of`
        self._engine.write({_FAMILY: writes}, replace(checkpoint, stream_time_ms=stream_time_ms))
        applied.stream_time_ms = stream_time_ms
        return applied

    def _superseded(self, touched: dict[bytes, list[bytes]], puts: dict[bytes, bytes], horizon_ms: int) -> set[bytes]:
        """Return the entries of the touched keys that no as-of read at the horizon or later can see.

        Both stored entries and `puts` count. Of a key's entries up to the horizon only the newest can be seen. If that
        one is a tombstone it is superseded as well: a read that finds no version gives the same answer.
        """
        superseded: set[bytes] = set()
        with self._engine.view([_FAMILY]) as view:
            for prefix, fresh in touched.items():
                stop = prefix + _TIME.pack(horizon_ms + 1)
                past = dict(view.entries(_FAMILY, prefix, stop, reverse=True))
                past |= {entry: puts[entry] for entry in fresh if entry < stop}
                if past:
                    newest = max(past)
                    superseded |= past.keys() - ({newest} if past[newest] != _TOMBSTONE else set())
        return superseded

    def get(self, key: bytes) -> Version | None:
        """Return the latest value of a key, None if it has none."""
        return self._at(key, _LAST_MS)

    def get_as_of(self, key: bytes, as_of_ms: int) -> Version | None:
        """Return the value that a key had at the time `as_of_ms`, None if it had none.

        Raises:
            BeforeHistory: the time is before the start of the history.

        """
        version = self._at(key, as_of_ms)
        # Checked after the read, because the version may be removed during the read. The start only moves forward.
        if as_of_ms < self.history_start_ms:
            raise BeforeHistory(
                f"as of {as_of_ms}: the history starts at {self.history_start_ms} "
                f"(retention {self._history_retention_ms} ms)"
            )
        return version

    def _at(self, key: bytes, as_of_ms: int) -> Version | None:
        prefix = ordered_keys.escaped(key)
        stop = prefix + (_TIME.pack(as_of_ms + 1) if as_of_ms < _LAST_MS else b"\xff")
        with self._engine.view([_FAMILY]) as view:
            for entry, data in view.entries(_FAMILY, prefix, stop, reverse=True):
                if data == _TOMBSTONE:
                    return None
                return Version(data[1:], _TIME.unpack(entry[len(prefix) :])[0])
        return None

    def latest(self, keys: KeyRange, limit: int, max_bytes: int, walk: Walk) -> RangePage[tuple[bytes, bytes]]:
        """Return keys with their latest values as they are at one moment. Keys that are deleted now are left out.

        `keys` is an ascending range of escaped keys.
        """
        page = PageBuilder[tuple[bytes, bytes]](limit, max_bytes)
        with self._engine.view([_FAMILY]) as view:
            for key, value in _latest(walk.over(view.entries(_FAMILY, keys.start, keys.stop, reverse=False))):
                if not page.add((key, value), len(key) + len(value)):
                    return page.page(more=True)
        return page.page(more=False)

    def approximate_count(self) -> int:
        """Return the engine's estimate of the number of versions."""
        return self._engine.approximate_count(_FAMILY)

    def exact_count(self, walk: Walk) -> int:
        """Walk all versions and return the number of keys that have a latest value."""
        with self._engine.view([_FAMILY]) as view:
            return sum(1 for _ in _latest(walk.over(view.entries(_FAMILY, b"", None, reverse=False))))


def _latest(entries: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, latest value) from ascending entries. Deleted keys are left out."""
    for key, versions in itertools.groupby(entries, key=lambda entry: ordered_keys.split(entry[0])[0]):
        newest = _TOMBSTONE
        for _, data in versions:
            newest = data
        if newest != _TOMBSTONE:
            yield key, newest[1:]
