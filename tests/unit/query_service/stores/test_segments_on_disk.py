"""Window and session stores drop segments for ever: what they take on disk stays as it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from query_service.states.checkpoint import Checkpoint
from query_service.stores.base import ChangelogRecord
from query_service.stores.resources import StoreResources
from query_service.stores.rocksdb_engine import RocksDBEngine
from query_service.stores.walk import Walk
from query_service.stores.windows import SESSIONS, WINDOWS, TimedStore
from statehouse.keys.composite import SessionKey, WindowKey
from tests.support.polling import poll_until

MINUTE = 60_000
PER_MINUTE = 40
VALUE_BYTES = 10_000

KeyAt = Callable[[int, int], bytes]


def window_key(nth: int, at_ms: int) -> bytes:
    return WindowKey(b"key-%d" % nth, at_ms).to_bytes()


def session_key(nth: int, at_ms: int) -> bytes:
    return SessionKey(b"key-%d" % nth, at_ms, at_ms + 1_000).to_bytes()


def bytes_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())


@pytest.mark.feature("windows-expire-dropping")
@pytest.mark.parametrize("minutes", [240, pytest.param(24 * 60, marks=pytest.mark.long)])
@pytest.mark.parametrize(("layout", "key_at"), [(WINDOWS, window_key), (SESSIONS, session_key)])
def test_directory_does_not_grow_with_stream_time(tmp_path: Path, layout: object, key_at: KeyAt, minutes: int) -> None:
    """An entry a minute of each key, kept for ten minutes: 20 minutes are 8 MB, more than logs may ever take."""
    engine = RocksDBEngine(tmp_path, StoreResources())
    store = TimedStore(engine, layout, 10 * MINUTE)  # type: ignore[type-var] - one of both

    def feed(first: int, last: int) -> None:
        for minute in range(first, last):
            at_ms = minute * MINUTE
            records = [ChangelogRecord(key_at(nth, at_ms), os.urandom(VALUE_BYTES), at_ms) for nth in range(PER_MINUTE)]
            store.apply(records, Checkpoint("t", "id", minute + 1, 1))

    feed(0, 20)
    early = bytes_of(tmp_path)
    assert early > 15 * PER_MINUTE * VALUE_BYTES
    feed(20, minutes)
    assert store.exact_count(Walk()) == 10 * PER_MINUTE
    # Obsolete files go in the background.
    poll_until(lambda: bytes_of(tmp_path) <= 1.5 * early, 60, "the directory to be as small as it was")
    store.close()


def test_options_are_not_logged_for_every_segment(tmp_path: Path) -> None:
    engine = RocksDBEngine(tmp_path)

    def logged() -> int:
        return sum(file.read_text().count("Options.blob_file_size") for file in tmp_path.glob("LOG*"))

    def make_and_drop(count: int) -> None:
        for nth in range(count):
            engine.write({f"segment-{nth}": [(b"k", b"v")]}, Checkpoint("t", "id", nth, 1))
            engine.drop(f"segment-{nth}")

    make_and_drop(3)
    before = logged()
    make_and_drop(20)
    assert logged() == before, "10 kB for each, in this LOG and in all after it"
    assert engine.families() == {"default"}
    engine.close()
    engine = RocksDBEngine(tmp_path)
    before = logged()
    make_and_drop(5)
    assert logged() == before
    engine.close()
