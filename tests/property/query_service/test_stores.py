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
from query_service.stores.versioned import BeforeHistory, VersionedStore
from query_service.stores.walk import Walk
from query_service.stores.windows import SESSIONS, WINDOWS, TimedStore
from statehouse import ordered_keys
from statehouse.composite import SessionKey, WindowKey
from statehouse.paging import KeyRange

# Few keys, so that they meet; with zero bytes and prefixes of each other, so that encodings are tried.
KEY = st.sampled_from([b"", b"\0", b"\0\1", b"a", b"a\0", b"a\xff", b"\xff"])
VALUE = st.none() | st.binary(max_size=3)
RETENTION_MS = 200_000
# A grid as wide as a segment, and its neighbours: most expiries happen on a boundary.
TIME = st.builds(lambda step, off: max(0, step * 100_000 + off), st.integers(0, 6), st.sampled_from([-1, 0, 1]))
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
        self.model: dict[bytes, bytes] = {}

    def make(self, engine: Engine) -> KeyValueStore:
        return KeyValueStore(engine)

    @rule(entries=st.lists(st.tuples(KEY, VALUE), max_size=10))
    def apply(self, entries: list[tuple[bytes, bytes | None]]) -> None:
        self.write([ChangelogRecord(key, value, 0) for key, value in entries])
        for key, value in entries:
            self.model.pop(key, None)
            if value is not None:
                self.model[key] = value

    @rule(key=KEY)
    def get(self, key: bytes) -> None:
        assert self.store.get(key) == self.model.get(key)

    @rule(start=KEY, stop=st.none() | KEY, reverse=st.booleans(), limit=st.integers(1, 5))
    def scan(self, start: bytes, stop: bytes | None, reverse: bool, limit: int) -> None:
        page = self.store.scan(KeyRange(start, stop, reverse), limit, NO_LIMIT, Walk())
        expected = sorted(
            ((k, v) for k, v in self.model.items() if k >= start and (stop is None or k < stop)), reverse=reverse
        )
        assert page.entries == expected[:limit]
        assert page.more == (len(expected) > limit)

    @rule(max_bytes=st.integers(1, 20))
    def scan_by_bytes(self, max_bytes: int) -> None:
        page = self.store.scan(KeyRange(), NO_LIMIT, max_bytes, Walk())
        expected = sorted(self.model.items())
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
        self.model: dict[WindowKey, bytes] = {}

    def make(self, engine: Engine) -> TimedStore[WindowKey]:
        return TimedStore(engine, WINDOWS, RETENTION_MS, retain_duplicates=self.duplicates)

    @rule(entries=st.lists(st.tuples(KEY, TIME, st.sampled_from([0, 1, 2**31]), VALUE), max_size=10))
    def apply(self, entries: list[tuple[bytes, int, int, bytes | None]]) -> None:
        late = 0
        for key, start_ms, sequence, value in entries:
            window = WindowKey(key, start_ms, sequence)
            self.stream_time_ms = max(self.stream_time_ms, start_ms)
            if start_ms <= self.stream_time_ms - RETENTION_MS:
                late += 1
            elif value is not None:
                self.model[window] = value
            elif not self.duplicates:
                self.model.pop(window, None)
        records = [ChangelogRecord(WindowKey(k, t, s).to_bytes(), v, t) for k, t, s, v in entries]
        applied = self.write(records)
        assert applied.late == late
        assert applied.stream_time_ms == self.stream_time_ms

    @property
    def live(self) -> list[tuple[WindowKey, bytes]]:
        return sorted((w, v) for w, v in self.model.items() if w.start_ms > self.stream_time_ms - RETENTION_MS)

    @rule(key=KEY, first=TIME, last=TIME)
    def fetch(self, key: bytes, first: int, last: int) -> None:
        prefix = ordered_keys.escaped(key)
        keys = KeyRange(prefix, prefix[:-1] + b"\2")
        page = self.store.scan(keys, lambda w: first <= w.start_ms <= last, first, last, NO_LIMIT, NO_LIMIT, Walk())
        assert page.entries == [(w, v) for w, v in self.live if w.key == key and first <= w.start_ms <= last]

    @rule(reverse=st.booleans(), limit=st.integers(1, 5))
    def all(self, reverse: bool, limit: int) -> None:
        page = self.store.scan(KeyRange(reverse=reverse), lambda _w: True, 0, 2**62, limit, NO_LIMIT, Walk())
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
        self.model: dict[SessionKey, bytes] = {}

    def make(self, engine: Engine) -> TimedStore[SessionKey]:
        return TimedStore(engine, SESSIONS, RETENTION_MS)

    @rule(entries=st.lists(st.tuples(KEY, TIME, st.integers(0, 100_000), VALUE), max_size=10))
    def apply(self, entries: list[tuple[bytes, int, int, bytes | None]]) -> None:
        records = []
        for key, start_ms, length_ms, value in entries:
            session = SessionKey(key, start_ms, start_ms + length_ms)
            records.append(ChangelogRecord(session.to_bytes(), value, session.end_ms))
            self.stream_time_ms = max(self.stream_time_ms, session.end_ms)
            if session.end_ms <= self.stream_time_ms - RETENTION_MS:
                continue
            self.model.pop(session, None)
            if value is not None:
                self.model[session] = value
        self.write(records)

    @rule(first=TIME, last=TIME)
    def overlapping(self, first: int, last: int) -> None:
        page = self.store.scan(
            KeyRange(), lambda s: s.end_ms >= first and s.start_ms <= last, first, 2**62, NO_LIMIT, NO_LIMIT, Walk()
        )
        live = sorted((s, v) for s, v in self.model.items() if s.end_ms > self.stream_time_ms - RETENTION_MS)
        assert page.entries == [(s, v) for s, v in live if s.end_ms >= first and s.start_ms <= last]


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
