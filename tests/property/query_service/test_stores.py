"""Every kind of store on every engine against a plain-Python model, with reopenings in between."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from query_service.states.checkpoint import Checkpoint
from query_service.stores.base import ChangelogRecord
from query_service.stores.engine import Engine
from query_service.stores.key_value import KeyValueStore
from query_service.stores.memory_engine import MemoryEngine
from query_service.stores.rocksdb_engine import RocksDBEngine
from query_service.stores.versioned import (
    BeforeHistory,
    Version,
    VersionedStore,
    history_range,
    version_entry_key,
)
from query_service.stores.walk import Walk
from query_service.stores.windows import SESSIONS, WINDOWS, TimedStore
from statehouse.contract.paging import KeyRange, escaped_range
from statehouse.keys import ordered as ordered_keys
from statehouse.keys.composite import SessionKey, WindowKey

# Few keys, so that they meet; with zero bytes and prefixes of each other, so that encodings are tried.
KEY = st.sampled_from([b"", b"\0", b"\0\1", b"a", b"a\0", b"a\xff", b"\xff"])
VALUE = st.none() | st.binary(max_size=3)
RETENTION_MS = 200_000
# A grid as wide as a segment, and its neighbours: most expiries happen on a boundary.
TIME = st.builds(lambda step, off: max(0, step * 100_000 + off), st.integers(0, 6), st.sampled_from([-1, 0, 1]))
# What producers may say, and what Kafka says if they say nothing.
RECORD_TIME = st.sampled_from([-1, 0, 1_700_000_000_000, 2**63 - 1])
NO_LIMIT = 10**9


class StoreModel(RuleBasedStateMachine):
    """What all have in common: an engine, a place in the log, reopening."""

    persistent = True

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.position = 0
        self.stream_time_ms = -1
        self.engine = self.open_engine()
        self.store: Any = self.make(self.engine)

    def make(self, engine: Engine) -> Any:
        raise NotImplementedError

    def open_engine(self) -> Engine:
        return RocksDBEngine(self.directory / "db") if self.persistent else MemoryEngine(10**9)

    def teardown(self) -> None:
        assert self.engine.open_views() == 0
        self.store.close()
        shutil.rmtree(self.directory)

    def write(self, records: list[ChangelogRecord]) -> Any:
        self.position += len(records)
        return self.store.apply(records, Checkpoint("t", "id", self.position, 1))

    @rule()
    def reopen(self) -> None:
        if self.persistent:
            self.store.close()
            self.engine = self.open_engine()
            self.store = self.make(self.engine)

    @invariant()
    def place(self) -> None:
        at = self.store.checkpoint()
        assert (0 if at is None else at.position) == self.position


class KeyValueModel(StoreModel):
    def __init__(self) -> None:
        super().__init__()
        self.model: dict[bytes, tuple[bytes, int]] = {}

    def make(self, engine: Engine) -> KeyValueStore:
        return KeyValueStore(engine)

    @rule(entries=st.lists(st.tuples(KEY, VALUE, RECORD_TIME), max_size=10))
    def apply(self, entries: list[tuple[bytes, bytes | None, int]]) -> None:
        self.write([ChangelogRecord(*entry) for entry in entries])
        for key, value, timestamp_ms in entries:
            self.model.pop(key, None)
            if value is not None:
                self.model[key] = value, timestamp_ms

    @rule(key=KEY)
    def get(self, key: bytes) -> None:
        expected = self.model.get(key)
        assert self.store.get_with_timestamp(key) == expected
        assert self.store.get(key) == (expected and expected[0])

    @rule(keys=st.lists(KEY, max_size=10))
    def get_several(self, keys: list[bytes]) -> None:
        assert self.store.get_many(keys) == [self.model.get(key) for key in keys]

    @rule(start=KEY, stop=st.none() | KEY, reverse=st.booleans(), limit=st.integers(1, 5))
    def scan(self, start: bytes, stop: bytes | None, reverse: bool, limit: int) -> None:
        page = self.store.scan_with_timestamps(KeyRange(start, stop, reverse), limit, NO_LIMIT, Walk())
        expected = sorted(
            ((k, *v) for k, v in self.model.items() if k >= start and (stop is None or k < stop)), reverse=reverse
        )
        assert page.entries == expected[:limit]
        assert page.more == (len(expected) > limit)
        plain = self.store.scan(KeyRange(start, stop, reverse), limit, NO_LIMIT, Walk())
        assert plain.entries == [entry[:2] for entry in page.entries]
        assert plain.more == page.more

    @rule(gap=st.tuples(KEY, KEY).map(sorted), start=KEY, reverse=st.booleans(), limit=st.integers(1, 5))
    def scan_beside_a_gap(self, gap: list[bytes], start: bytes, reverse: bool, limit: int) -> None:
        begin, end = gap
        keys = KeyRange(start, None, reverse, ((begin, end),))
        page = self.store.scan_with_timestamps(keys, limit, NO_LIMIT, Walk())
        expected = sorted(
            ((k, *v) for k, v in self.model.items() if k >= start and not begin <= k < end), reverse=reverse
        )
        assert page.entries == expected[:limit]
        assert page.more == (len(expected) > limit)

    @rule(max_bytes=st.integers(1, 20))
    def scan_by_bytes(self, max_bytes: int) -> None:
        page = self.store.scan(KeyRange(), NO_LIMIT, max_bytes, Walk())
        expected = sorted((key, value) for key, (value, _) in self.model.items())
        assert page.entries == expected[: len(page.entries)]
        assert page.more == (len(expected) > len(page.entries))
        assert sum(len(k) + len(v) for k, v in page.entries) <= max_bytes or len(page.entries) == 1

    @invariant()
    def count(self) -> None:
        assert self.store.exact_count(Walk()) == len(self.model)


class WindowModel(StoreModel):
    """Window stores; `duplicates` is the kind that joins use."""

    duplicates = False

    def __init__(self) -> None:
        super().__init__()
        self.model: dict[WindowKey, tuple[bytes, int]] = {}

    def make(self, engine: Engine) -> TimedStore[WindowKey]:
        return TimedStore(engine, WINDOWS, RETENTION_MS, retain_duplicates=self.duplicates)

    @rule(entries=st.lists(st.tuples(KEY, TIME, st.sampled_from([0, 1, 2**31]), VALUE, RECORD_TIME), max_size=10))
    def apply(self, entries: list[tuple[bytes, int, int, bytes | None, int]]) -> None:
        late = 0
        for key, start_ms, sequence, value, timestamp_ms in entries:
            window = WindowKey(key, start_ms, sequence)
            self.stream_time_ms = max(self.stream_time_ms, start_ms)
            if start_ms <= self.stream_time_ms - RETENTION_MS:
                late += 1
            elif value is not None:
                self.model[window] = value, timestamp_ms
            elif not self.duplicates:
                self.model.pop(window, None)
        records = [ChangelogRecord(WindowKey(k, t, s).to_bytes(), v, at) for k, t, s, v, at in entries]
        applied = self.write(records)
        assert applied.late == late
        assert applied.stream_time_ms == self.stream_time_ms

    @property
    def live(self) -> list[tuple[WindowKey, bytes, int]]:
        return sorted((w, *v) for w, v in self.model.items() if w.start_ms > self.stream_time_ms - RETENTION_MS)

    @rule(key=KEY, first=TIME, last=TIME)
    def fetch(self, key: bytes, first: int, last: int) -> None:
        prefix = ordered_keys.escaped(key)
        keys = KeyRange(prefix, prefix[:-1] + b"\2")
        wanted = (keys, lambda w: first <= w.start_ms <= last, first, last, NO_LIMIT, NO_LIMIT)
        expected = [each for each in self.live if each[0].key == key and first <= each[0].start_ms <= last]
        assert self.store.scan_with_timestamps(*wanted, Walk()).entries == expected
        assert self.store.scan(*wanted, Walk()).entries == [(w, v) for w, v, _ in expected]

    @rule(reverse=st.booleans(), limit=st.integers(1, 5))
    def all(self, reverse: bool, limit: int) -> None:
        page = self.store.scan_with_timestamps(
            KeyRange(reverse=reverse), lambda _w: True, 0, 2**62, limit, NO_LIMIT, Walk()
        )
        assert page.entries == (self.live[::-1] if reverse else self.live)[:limit]
        assert page.more == (len(self.live) > limit)

    @rule()
    def unreadable(self) -> None:
        assert len(self.write([ChangelogRecord(b"short", b"v", 0)]).unreadable) == 1

    @invariant()
    def counts_and_segments(self) -> None:
        assert self.store.exact_count(Walk()) == len(self.live)
        segments = [family for family in self.engine.families() if family.startswith("segment-")]
        assert len(segments) <= 3, "the retention spans two intervals, so three segments at most are live"


class SessionModel(StoreModel):
    def __init__(self) -> None:
        super().__init__()
        self.model: dict[SessionKey, tuple[bytes, int]] = {}

    def make(self, engine: Engine) -> TimedStore[SessionKey]:
        return TimedStore(engine, SESSIONS, RETENTION_MS)

    @rule(entries=st.lists(st.tuples(KEY, TIME, st.integers(0, 100_000), VALUE, RECORD_TIME), max_size=10))
    def apply(self, entries: list[tuple[bytes, int, int, bytes | None, int]]) -> None:
        records = []
        for key, start_ms, length_ms, value, timestamp_ms in entries:
            session = SessionKey(key, start_ms, start_ms + length_ms)
            records.append(ChangelogRecord(session.to_bytes(), value, timestamp_ms))
            self.stream_time_ms = max(self.stream_time_ms, session.end_ms)
            if session.end_ms <= self.stream_time_ms - RETENTION_MS:
                continue
            self.model.pop(session, None)
            if value is not None:
                self.model[session] = value, timestamp_ms
        self.write(records)

    @rule(first=TIME, last=TIME)
    def overlapping(self, first: int, last: int) -> None:
        page = self.store.scan_with_timestamps(
            KeyRange(), lambda s: s.end_ms >= first and s.start_ms <= last, first, 2**62, NO_LIMIT, NO_LIMIT, Walk()
        )
        live = sorted((s, *v) for s, v in self.model.items() if s.end_ms > self.stream_time_ms - RETENTION_MS)
        assert page.entries == [each for each in live if each[0].end_ms >= first and each[0].start_ms <= last]


class VersionedModel(StoreModel):
    def __init__(self) -> None:
        super().__init__()
        self.model: dict[bytes, dict[int, bytes | None]] = {}

    def make(self, engine: Engine) -> VersionedStore:
        return VersionedStore(engine, RETENTION_MS)

    @rule(entries=st.lists(st.tuples(KEY, TIME, VALUE), max_size=10))
    def apply(self, entries: list[tuple[bytes, int, bytes | None]]) -> None:
        for key, at_ms, value in entries:
            self.stream_time_ms = max(self.stream_time_ms, at_ms)
            if at_ms >= self.stream_time_ms - RETENTION_MS:
                self.model.setdefault(key, {})[at_ms] = value
        self.write([ChangelogRecord(key, value, at_ms) for key, at_ms, value in entries])

    def expected(self, key: bytes, as_of_ms: int) -> tuple[bytes, int] | None:
        versions = [at for at in self.model.get(key, {}) if at <= as_of_ms]
        if not versions or (value := self.model[key][max(versions)]) is None:
            return None
        return value, max(versions)

    @rule(key=KEY)
    def get(self, key: bytes) -> None:
        found = self.store.get(key)
        assert (found and (found.value, found.timestamp_ms)) == self.expected(key, 2**62)

    @rule(key=KEY, as_of_ms=TIME)
    def get_as_of(self, key: bytes, as_of_ms: int) -> None:
        if as_of_ms < self.stream_time_ms - RETENTION_MS:
            with pytest.raises(BeforeHistory):
                self.store.get_as_of(key, as_of_ms)
        else:
            found = self.store.get_as_of(key, as_of_ms)
            assert (found and (found.value, found.timestamp_ms)) == self.expected(key, as_of_ms)

    @rule(start=KEY, stop=st.none() | KEY, reverse=st.booleans(), limit=st.integers(1, 5), as_of_ms=st.none() | TIME)
    def scan(self, start: bytes, stop: bytes | None, reverse: bool, limit: int, as_of_ms: int | None) -> None:
        keys = escaped_range(KeyRange(start, stop, reverse))
        if as_of_ms is not None and as_of_ms < self.stream_time_ms - RETENTION_MS:
            with pytest.raises(BeforeHistory):
                self.store.scan(keys, limit, NO_LIMIT, Walk(), as_of_ms)
            return
        page = self.store.scan(keys, limit, NO_LIMIT, Walk(), as_of_ms)
        at_ms = 2**62 if as_of_ms is None else as_of_ms
        then = {key: self.expected(key, at_ms) for key in self.model if key >= start and (stop is None or key < stop)}
        expected = sorted(((key, *found) for key, found in then.items() if found), reverse=reverse)
        assert page.entries == expected[:limit]
        assert page.more == (len(expected) > limit)

    def expected_history(self, key: bytes, first_ms: int, last_ms: int) -> list[Version]:
        versions = sorted(self.model.get(key, {}).items()) if first_ms <= last_ms else []
        ends = [*(at for at, _ in versions[1:]), None]
        return [
            Version(value, at, end)
            for (at, value), end in zip(versions, ends, strict=False)
            if value is not None and at <= last_ms and (end is None or end > first_ms)
        ]

    @rule(key=KEY, first_ms=st.none() | TIME, last_ms=st.none() | TIME, reverse=st.booleans(), limit=st.integers(1, 4))
    def history(self, key: bytes, first_ms: int | None, last_ms: int | None, reverse: bool, limit: int) -> None:
        start_ms = max(0, self.stream_time_ms - RETENTION_MS)
        left = history_range(key, reverse=reverse)
        if any(each is not None and each < start_ms for each in (first_ms, last_ms)):
            with pytest.raises(BeforeHistory):
                self.store.history(key, left, first_ms, last_ms, limit, NO_LIMIT, Walk())
            return
        expected = self.expected_history(
            key, start_ms if first_ms is None else first_ms, 2**62 if last_ms is None else last_ms
        )
        found: list[Version] = []
        more = True
        while more:
            page, start = self.store.history(key, left, first_ms, last_ms, limit, NO_LIMIT, Walk())
            assert start == start_ms
            assert len(page.entries) == min(limit, len(expected) - len(found))
            found += page.entries
            more = page.more
            if more:
                last = version_entry_key(key, page.entries[-1].timestamp_ms)
                left = KeyRange(left.start, last, True) if reverse else KeyRange(last + b"\0", left.stop)
        assert found == (expected[::-1] if reverse else expected)

    @invariant()
    def whole_history(self) -> None:
        for key in self.model:
            for as_of_ms in range(max(0, self.stream_time_ms - RETENTION_MS), self.stream_time_ms + 1, 50_000):
                found = self.store.get_as_of(key, as_of_ms)
                assert (found and (found.value, found.timestamp_ms)) == self.expected(key, as_of_ms)

    @invariant()
    def count(self) -> None:
        assert self.store.exact_count(Walk()) == sum(self.expected(key, 2**62) is not None for key in self.model)


def case(model: type[StoreModel], **attributes: object) -> Any:
    variant = type(model.__name__, (model,), attributes)
    variant.TestCase.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)
    return variant.TestCase


TestKeyValueRocksDB = case(KeyValueModel)
TestKeyValueMemory = case(KeyValueModel, persistent=False)
TestWindowsRocksDB = case(WindowModel)
TestWindowsMemory = case(WindowModel, persistent=False)
TestDuplicatesRocksDB = case(WindowModel, duplicates=True)
TestSessionsRocksDB = case(SessionModel)
TestSessionsMemory = case(SessionModel, persistent=False)
TestVersionedRocksDB = case(VersionedModel)
TestVersionedMemory = case(VersionedModel, persistent=False)
