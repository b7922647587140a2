"""Reads of stores while the writer moves what they read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from query_service.states.checkpoint import Checkpoint
from query_service.stores.base import ChangelogRecord
from query_service.stores.engine import EngineView, Writes
from query_service.stores.memory_engine import MemoryEngine
from query_service.stores.rocksdb_engine import RocksDBEngine
from query_service.stores.versioned import BeforeHistory, Version, VersionedStore
from query_service.stores.walk import Walk
from query_service.stores.windows import SESSIONS, WINDOWS, TimedStore
from statehouse.contract.paging import LAST_MS, KeyRange
from statehouse.keys.composite import SessionKey, WindowKey

SEGMENT_MS = 60_000
RETENTION_MS = 2 * SEGMENT_MS
AT = Checkpoint("t", "id", 1, 1)
KEYS = [b"%03d" % number for number in range(40)]


class EngineWithWriter(MemoryEngine):
    """Lets a writer in at the worst moment: before a view is opened, or in the middle of a write."""

    def __init__(self) -> None:
        super().__init__(10**9)
        self.before_view: Callable[[], object] | None = None
        self.after_write: Callable[[], object] | None = None

    def view(self, families: Collection[str]) -> AbstractContextManager[EngineView]:
        if self.before_view is not None:
            write, self.before_view = self.before_view, None
            write()
        return super().view(families)

    def write(self, writes: Writes, checkpoint: Checkpoint) -> None:
        super().write(writes, checkpoint)
        if self.after_write is not None:
            self.after_write()


def test_a_session_merged_into_a_new_segment_is_seen_there() -> None:
    engine = EngineWithWriter()
    store = TimedStore(engine, SESSIONS, 10 * SEGMENT_MS)
    segment_ms = 5 * SEGMENT_MS
    old, merged = SessionKey(b"k", 0, segment_ms - 1), SessionKey(b"k", 0, segment_ms)
    other = ChangelogRecord(SessionKey(b"k", segment_ms, 2 * segment_ms).to_bytes(), b"v", 0)
    moves = [
        [ChangelogRecord(old.to_bytes(), None, 0), ChangelogRecord(merged.to_bytes(), b"v", 0)],
        [ChangelogRecord(merged.to_bytes(), None, 0), other],
    ]
    store.apply([ChangelogRecord(old.to_bytes(), b"v", 0)], AT)
    engine.before_view = lambda: store.apply(moves[0], AT)
    assert store.exact_count(Walk()) == 1
    engine.before_view = lambda: store.apply(moves[1], AT)
    page = store.scan(KeyRange(), lambda _: True, 0, LAST_MS, 10, 10**9, Walk())
    assert [session.end_ms for session, _ in page.entries] == [2 * segment_ms]


def test_a_version_removed_under_an_as_of_read_is_not_said_to_be_missing() -> None:
    engine = EngineWithWriter()
    store = VersionedStore(engine, 100)
    store.apply([ChangelogRecord(b"k", b"v", 10)], AT)
    # The version of 10 is removed while the read is on its way to it.
    engine.before_view = lambda: store.apply([ChangelogRecord(b"k", b"w", 60), ChangelogRecord(b"k", b"x", 160)], AT)
    with pytest.raises(BeforeHistory):
        store.get_as_of(b"k", 50)

    def read() -> None:
        with pytest.raises(BeforeHistory):
            store.get_as_of(b"k", 70)

    # The version of 60 is removed, and the write hasn't returned yet.
    engine.after_write = read
    store.apply([ChangelogRecord(b"k", b"y", 300)], AT)


def test_gets_of_a_versioned_store_do_not_wait_for_a_count() -> None:
    store = VersionedStore(MemoryEngine(10**9), 100)
    store.apply([ChangelogRecord(b"%04d" % n, b"v", 10) for n in range(1_000)], AT)
    paused, go_on = threading.Event(), threading.Event()

    def pause() -> bool:
        paused.set()
        return not go_on.wait(30)

    counts: list[int] = []
    counting = threading.Thread(target=lambda: counts.append(store.exact_count(Walk(is_closing=pause))))
    counting.start()
    assert paused.wait(20)
    found: list[object] = []
    reading = threading.Thread(target=lambda: found.append(store.get(b"0007")), daemon=True)
    reading.start()
    reading.join(20)
    assert found == [Version(b"v", 10)]
    writing = threading.Thread(target=store.apply, args=([ChangelogRecord(b"new", b"v", 11)], AT), daemon=True)
    writing.start()
    writing.join(20)
    assert not writing.is_alive()
    go_on.set()
    counting.join(20)
    assert counts == [1_000]
    store.close()


@pytest.mark.feature("pages-one-moment")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("persistent", [True, False])
def test_every_page_is_of_one_moment_while_segments_are_dropped(
    tmp_path: Path, persistent: bool, reverse: bool
) -> None:
    engine = RocksDBEngine(tmp_path) if persistent else MemoryEngine(10**9)
    store = TimedStore(engine, WINDOWS, RETENTION_MS)
    dropped: set[str] = set()
    failures: list[BaseException] = []
    done = threading.Event()

    def write() -> None:
        try:
            for step in range(40):
                before = engine.families()
                start_ms = step * SEGMENT_MS
                records = [ChangelogRecord(WindowKey(key, start_ms).to_bytes(), b"v", start_ms) for key in KEYS]
                store.apply(records, Checkpoint("t", "id", step, 1))
                dropped.update(before - engine.families())
        except BaseException as error:  # noqa: BLE001 - the test's own thread tells of it
            failures.append(error)
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    pages = 0
    while not done.is_set() or pages == 0:
        earliest_ms = store.stream_time_ms - RETENTION_MS
        page = store.scan(KeyRange(reverse=reverse), lambda _: True, 0, LAST_MS, 1_000, 10**9, Walk())
        latest_ms = store.stream_time_ms
        windows = [window for window, _ in page.entries]
        assert windows == sorted(set(windows), reverse=reverse)
        assert all(earliest_ms < window.start_ms <= latest_ms for window in windows)
        by_start = {
            start_ms: sum(w.start_ms == start_ms for w in windows) for start_ms in {w.start_ms for w in windows}
        }
        assert set(by_start.values()) <= {len(KEYS)}, "a batch, or a segment, is seen whole or not at all"
        pages += 1
    writer.join(30)
    assert not failures
    assert len(dropped) > 30
    assert engine.open_views() == 0
    assert store.exact_count(Walk()) == 2 * len(KEYS)
    store.close()
