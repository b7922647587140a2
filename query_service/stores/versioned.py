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
from query_service.stores.engine import Engine, EngineView, entries_in
from query_service.stores.engine_store import EngineStore
from query_service.stores.timestamps import Timestamped
from query_service.stores.walk import Walk
from statehouse.contract.paging import KeyRange
from statehouse.errors import StatehouseError
from statehouse.keys import ordered as ordered_keys

_FAMILY = "default"
_TIME = struct.Struct(">q")
_TOMBSTONE = b"\0"
_VALUE = b"\1"
_LAST_MS = 2**63 - 1
_AFTER_TIMES = b"\xff"  # times are never negative


class BeforeHistory(StatehouseError):
    """A read asked for a time before the history. What was at that time is unknown, which isn't "not found"."""

    def __init__(self, asked_ms: int, history_start_ms: int, history_retention_ms: int) -> None:
        super().__init__(
            f"as of {asked_ms}: the history starts at {history_start_ms} (retention {history_retention_ms} ms)"
        )
        self.history_start_ms = history_start_ms


@dataclass(frozen=True, slots=True)
class Version:
    """A value, and the time in milliseconds from which it is valid.

    `valid_to_ms` is the time from which it is no longer valid, where a read looks for it; None for the latest.
    """

    value: bytes
    timestamp_ms: int
    valid_to_ms: int | None = None


def version_entry_key(key: bytes, timestamp_ms: int) -> bytes:
    """Return the entry key of a version."""
    return ordered_keys.escaped(key) + _TIME.pack(timestamp_ms)


def history_range(key: bytes, *, reverse: bool) -> KeyRange:
    """Return the range of the entry keys of all versions of a key."""
    prefix = ordered_keys.escaped(key)
    return KeyRange(prefix, prefix + _AFTER_TIMES, reverse)


class VersionedStore(EngineStore):
    """Values by key and time, kept for `history_retention_ms` before the stream time."""

    def __init__(self, engine: Engine, history_retention_ms: int) -> None:
        super().__init__(engine)
        self._history_retention_ms = history_retention_ms

    @property
    def history_start_ms(self) -> int:
        """Earliest time that an as-of read may ask for."""
        return max(0, self._shown_time_ms() - self._history_retention_ms)

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
        self.see_stream_time(stream_time_ms)  # before anything is removed: see `get_as_of`
        self._engine.write({_FAMILY: writes}, replace(checkpoint, stream_time_ms=stream_time_ms))
        applied.stream_time_ms = stream_time_ms
        return applied

    def _superseded(self, touched: dict[bytes, list[bytes]], puts: dict[bytes, bytes], horizon_ms: int) -> set[bytes]:
        """Return the entries of the touched keys that no as-of read at the horizon or later can see.

        Both stored entries and `puts` count. Only the newest of a key's entries up to the horizon can be seen. If that
        one is a tombstone it is superseded as well: a read that finds no version gives the same answer.
        """
        superseded: set[bytes] = set()
        if not touched:
            return superseded
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
        with self._engine.view([_FAMILY]) as view:
            return _at(view, key, _LAST_MS)

    def get_many(self, keys: Sequence[bytes]) -> list[Timestamped | None]:
        """Return for each key its latest value and from when on it is valid, None if it has none."""
        with self._engine.view([_FAMILY]) as view:
            found = [_at(view, key, _LAST_MS) for key in keys]
        return [None if version is None else (version.value, version.timestamp_ms) for version in found]

    def get_as_of(self, key: bytes, as_of_ms: int) -> Version | None:
        """Return the value that a key had at the time `as_of_ms`, None if it had none.

        Raises:
            BeforeHistory: the time is before the start of the history.

        """
        with self._engine.view([_FAMILY]) as view:
            version = _at(view, key, as_of_ms)
        # Checked after the read, because the version may be removed during the read. The start only moves forward.
        self._refuse_before(as_of_ms, self.history_start_ms)
        return version

    def _refuse_before(self, asked_ms: int, history_start_ms: int) -> None:
        if asked_ms < history_start_ms:
            raise BeforeHistory(asked_ms, history_start_ms, self._history_retention_ms)

    def scan(
        self, keys: KeyRange, limit: int, max_bytes: int, walk: Walk, as_of_ms: int | None = None
    ) -> RangePage[tuple[bytes, bytes, int]]:
        """Return keys with the values that they had at a time, and since when they had them; None is the latest.

        All is as it is at one moment. Keys that had no value then are left out. `keys` is a range of escaped keys.

        Raises:
            BeforeHistory: the time is before the start of the history.

        """
        page = PageBuilder[tuple[bytes, bytes, int]](limit, max_bytes)
        with self._engine.view([_FAMILY]) as view:
            if as_of_ms is not None:
                # The start was moved before anything was removed, so it is at least as late as what the view lacks.
                self._refuse_before(as_of_ms, self.history_start_ms)
            entries = walk.over(entries_in(view, _FAMILY, keys))
            at_ms = _LAST_MS if as_of_ms is None else as_of_ms
            for entry in _as_of(entries, at_ms, reverse=keys.reverse):
                if not page.add(entry, len(entry[0]) + len(entry[1])):
                    return page.page(more=True)
        return page.page(more=False)

    def history(
        self,
        key: bytes,
        left: KeyRange,
        first_ms: int | None,
        last_ms: int | None,
        limit: int,
        max_bytes: int,
        walk: Walk,
    ) -> tuple[RangePage[Version], int]:
        """Return the versions of a key that were valid within a span of time, and the start of the history.

        Args:
            key: the key.
            left: the part of the key's `history_range` that is left to read, in the order asked for.
            first_ms: start of the span, inclusive; None is the start of the history.
            last_ms: end of the span, inclusive; None is no end. A span that ends before it starts has no versions.
            limit: largest number of versions.
            max_bytes: largest size of values, unless the first is larger.
            walk: the read.

        Raises:
            BeforeHistory: the span begins or ends before the start of the history.

        """
        page = PageBuilder[Version](limit, max_bytes)
        prefix = ordered_keys.escaped(key)
        with self._engine.view([_FAMILY]) as view:
            start_ms = self.history_start_ms  # as in `scan`
            for asked_ms in (first_ms, last_ms):
                if asked_ms is not None:
                    self._refuse_before(asked_ms, start_ms)
            span = (start_ms if first_ms is None else first_ms, _LAST_MS if last_ms is None else last_ms)
            if span[0] > span[1]:
                return page.page(more=False), start_ms
            for version in (_newest_first if left.reverse else _oldest_first)(view, prefix, left, span, walk):
                if not page.add(version, len(version.value) + _TIME.size):
                    return page.page(more=True), start_ms
        return page.page(more=False), start_ms

    def approximate_count(self) -> int:
        """Return the engine's estimate of the number of versions."""
        return self._engine.approximate_count(_FAMILY)

    def exact_count(self, walk: Walk) -> int:
        """Walk all versions and return the number of keys that have a latest value."""
        with self._engine.view([_FAMILY]) as view:
            return sum(1 for _ in _as_of(walk.over(view.entries(_FAMILY, b"", None, reverse=False)), _LAST_MS))


def _after(time_ms: int) -> bytes:
    """Return the end of a range of entry keys up to a time, inclusive: what follows the escaped key."""
    return _TIME.pack(time_ms + 1) if time_ms < _LAST_MS else _AFTER_TIMES


def _at(view: EngineView, key: bytes, as_of_ms: int) -> Version | None:
    """Return the value that a key had at a time, None if it had none."""
    prefix = ordered_keys.escaped(key)
    entry, data = next(view.entries(_FAMILY, prefix, prefix + _after(as_of_ms), reverse=True), (prefix, _TOMBSTONE))
    return None if data == _TOMBSTONE else Version(data[1:], _TIME.unpack(entry[len(prefix) :])[0])


def _oldest_first(
    view: EngineView, prefix: bytes, left: KeyRange, span: tuple[int, int], walk: Walk
) -> Iterator[Version]:
    """Yield the versions that were valid within a span. A version is valid until the next one, or the deletion."""
    first_ms, last_ms = span
    # The version that is valid when the span begins has begun before it, or with it.
    before = next(view.entries(_FAMILY, prefix, prefix + _after(first_ms), reverse=True), None)
    start = max(left.start, prefix if before is None else before[0])
    data, since_ms = _TOMBSTONE, 0
    for entry, following in walk.over(view.entries(_FAMILY, start, left.stop, reverse=False)):
        at_ms = _TIME.unpack(entry[len(prefix) :])[0]
        if data != _TOMBSTONE:
            yield Version(data[1:], since_ms, at_ms)
        if at_ms > last_ms:
            return
        data, since_ms = following, at_ms
    if data != _TOMBSTONE:
        yield Version(data[1:], since_ms)


def _newest_first(
    view: EngineView, prefix: bytes, left: KeyRange, span: tuple[int, int], walk: Walk
) -> Iterator[Version]:
    """Yield the result of `_oldest_first` in the other order."""
    first_ms, last_ms = span
    end = prefix + _AFTER_TIMES
    stop = max(prefix, min(prefix + _after(last_ms), end if left.stop is None else left.stop))
    later = next(view.entries(_FAMILY, stop, end, reverse=False), None)
    valid_to_ms = None if later is None else _TIME.unpack(later[0][len(prefix) :])[0]
    for entry, data in walk.over(view.entries(_FAMILY, prefix, stop, reverse=True)):
        if valid_to_ms is not None and valid_to_ms <= first_ms:
            return
        at_ms = _TIME.unpack(entry[len(prefix) :])[0]
        if data != _TOMBSTONE:
            yield Version(data[1:], at_ms, valid_to_ms)
        valid_to_ms = at_ms


def _as_of(
    entries: Iterator[tuple[bytes, bytes]], as_of_ms: int, *, reverse: bool = False
) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield (key, value at a time, since when) from entries in order. Keys that had no value then are left out."""
    for key, versions in itertools.groupby(_parsed(entries), key=lambda version: version[0]):
        newest = (key, _TOMBSTONE, 0)
        for version in versions:
            if version[2] <= as_of_ms:
                newest = version
                if reverse:
                    break
        if newest[1] != _TOMBSTONE:
            yield key, newest[1][1:], newest[2]


def _parsed(entries: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield (key, data, time) of each entry."""
    for entry, data in entries:
        key, time = ordered_keys.split(entry)
        yield key, data, _TIME.unpack(time)[0]
