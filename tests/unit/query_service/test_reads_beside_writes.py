"""Reads of a window store while its segments are dropped under them."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from query_service.checkpoint import Checkpoint
from query_service.stores.base import Record
from query_service.stores.rocksdb_engine import RocksDBEngine
from query_service.stores.walk import Walk
from query_service.stores.windows import WINDOWS, TimedStore
from statehouse.composite import WindowKey
from statehouse.paging import LAST_MS, KeyRange

SEGMENT_MS = 60_000
RETENTION_MS = 2 * SEGMENT_MS
KEYS = [b"%03d" % number for number in range(40)]


@pytest.mark.parametrize("reverse", [False, True])
def test_every_page_is_of_one_moment_while_segments_are_dropped(tmp_path: Path, reverse: bool) -> None:
    engine = RocksDBEngine(tmp_path)
    store = TimedStore(engine, WINDOWS, RETENTION_MS)
    dropped: set[str] = set()
    failures: list[BaseException] = []
    done = threading.Event()

    def write() -> None:
        try:
            for step in range(40):
                before = engine.families()
                start_ms = step * SEGMENT_MS
                records = [Record(WindowKey(key, start_ms).to_bytes(), b"v", start_ms) for key in KEYS]
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
