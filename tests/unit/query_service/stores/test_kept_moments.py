"""Moments that engines keep: what one log after the other can't show."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from query_service.states.checkpoint import Checkpoint
from query_service.stores.base import ChangelogRecord
from query_service.stores.engine import KeepsMoments, MomentGone, StoreClosed
from query_service.stores.kept_moments import DISK_BYTES, keeps_moments, moment_bytes
from query_service.stores.memory_engine import MemoryEngine
from query_service.stores.rocksdb_engine import RocksDBEngine
from query_service.stores.versioned import BeforeHistory, Version, VersionedStore
from query_service.stores.walk import Walk
from query_service.stores.windows import WINDOWS, TimedStore
from statehouse.contract import moment_leases
from statehouse.contract.paging import LAST_MS, KeyRange
from statehouse.contract.topology import KEY_VALUE, StoreSpec
from statehouse.keys.composite import WindowKey
from tests.support.polling import poll_until

SEGMENT_MS = 60_000
RETENTION_MS = 2 * SEGMENT_MS
AnyEngine = RocksDBEngine | MemoryEngine


@pytest.fixture(params=["rocksdb", "memory"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AnyEngine:
    return RocksDBEngine(tmp_path) if request.param == "rocksdb" else MemoryEngine(10**9)


def at(batch: int) -> Checkpoint:
    return Checkpoint("t", "id", batch + 1, 1, batch=batch, records_end=batch + 1)


def write(engine: AnyEngine, batch: int, *entries: tuple[bytes, bytes | None], family: str = "default") -> None:
    """Write a batch of one record at the offset that its id is, after what was before was kept."""
    if batch > 0:
        engine.keep(batch - 1, batch, batch)
    engine.write({family: entries}, at(batch))


def entries(engine: AnyEngine, family: str = "default", *, reverse: bool = False) -> list[tuple[bytes, bytes]]:
    with engine.view([family]) as view:
        return list(view.entries(family, b"", None, reverse=reverse))


def test_engines_keep_moments(engine: AnyEngine) -> None:
    assert isinstance(engine, KeepsMoments)
    engine.close()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lease_ms", [0, 3_600_000])
def test_a_walk_of_a_moment_goes_on_while_moments_come_and_go(
    engine: AnyEngine, reverse: bool, lease_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the one that is walked is dropped, unless its next page may be asked for; so are its neighbours."""
    monkeypatch.setattr(moment_leases, "LEASE_MS", lease_ms)
    rows = [(b"%04d" % n, b"0") for n in range(500)]
    write(engine, 0, *rows)
    write(engine, 1, (b"0001", b"1"))
    with engine.moment(0, 1), engine.view(["default"]) as view:
        walk = view.entries("default", b"", None, reverse=reverse)
        seen = [next(walk) for _ in range(10)]

        def go_on() -> None:
            for batch in range(2, 400):
                write(engine, batch, (b"%04d" % (batch % 500), None if batch % 3 else b"%d" % batch))

        writing = threading.Thread(target=go_on)
        writing.start()
        writing.join(60)
        assert not writing.is_alive(), "the writer waits for the walk"
        assert [*seen, *walk] == (rows[::-1] if reverse else rows)
        assert engine.get("default", b"0001") == b"0"
        assert engine.open_views() == 1
    with nullcontext() if lease_ms else pytest.raises(MomentGone, match="batch 0"), engine.moment(0, 1):
        assert engine.get("default", b"0001") == b"0"
    with pytest.raises(MomentGone, match="batch 1"), engine.moment(1, 2):
        pass
    assert engine.get("default", b"0001") == b"1"
    engine.close()


def test_moments_are_of_a_thread(engine: AnyEngine) -> None:
    write(engine, 0, (b"a", b"0"))
    write(engine, 1, (b"a", b"1"))
    found: list[bytes | None] = []
    with engine.moment(0, 1):
        other = threading.Thread(target=lambda: found.append(engine.get("default", b"a")))
        other.start()
        other.join(20)
        assert engine.get_many("default", [b"a", b"b"]) == [b"0", None]
    assert found == [b"1"]
    engine.close()


def test_a_family_that_was_dropped_is_in_the_moments_before(engine: AnyEngine) -> None:
    write(engine, 0, (b"a", b"0"), family="segment-1")
    write(engine, 1, (b"b", b"1"), family="segment-2")
    engine.drop("segment-1")
    write(engine, 2, (b"c", b"2"), family="segment-2")
    with engine.moment(0, 1):
        assert engine.families() >= {"segment-1"}
        assert "segment-2" not in engine.families()
        assert entries(engine, "segment-1") == [(b"a", b"0")]
        assert not entries(engine, "segment-2")
    with engine.moment(1, 2):
        assert entries(engine, "segment-2") == [(b"b", b"1")]
    assert "segment-1" not in engine.families()
    write(engine, 3, (b"d", b"3"), family="segment-1")  # which ends what is kept on disk: it is no other family there
    assert entries(engine, "segment-1") == [(b"d", b"3")]
    engine.close()


def test_a_family_that_only_moments_had_is_gone_from_the_disk_with_them(tmp_path: Path) -> None:
    engine = RocksDBEngine(tmp_path)
    write(engine, 0, (b"a", b"0"), family="segment-1")
    write(engine, 1, (b"b", b"1"), family="segment-2")
    engine.drop("segment-1")
    for batch in range(2, 40):
        write(engine, batch, (b"c", b"2"), family="segment-2")
    engine.close()
    again = RocksDBEngine(tmp_path)
    assert again.families() == {"default", "segment-2"}
    again.close()


def test_close_waits_for_who_reads_a_moment_and_refuses_others(engine: AnyEngine, tmp_path: Path) -> None:
    write(engine, 0, (b"a", b"0"))
    for batch in range(1, 5):
        write(engine, batch, (b"a", b"%d" % batch))
    with engine.moment(2, 3), engine.view(["default"]) as view:
        closing = threading.Thread(target=engine.close)
        closing.start()

        def refused() -> bool:
            try:
                with engine.moment(1, 2):
                    return False
            except StoreClosed:
                return True

        poll_until(refused, 10, "moments to be refused")
        assert list(view.entries("default", b"", None, reverse=False)) == [(b"a", b"2")]
        assert closing.is_alive()
    closing.join(10)
    assert not closing.is_alive()
    RocksDBEngine(tmp_path).close()  # nothing keeps it locked


def test_a_failed_read_of_a_moment_keeps_nothing_open(tmp_path: Path) -> None:
    engine = RocksDBEngine(tmp_path)
    write(engine, 0, *((b"%d" % n, b"0") for n in range(300)))
    write(engine, 1, (b"a", b"1"))

    def fail() -> None:
        with engine.moment(0, 1), engine.view(["default"]) as view:
            for _ in view.entries("default", b"", None, reverse=False):
                raise RuntimeError("the caller's")

    with pytest.raises(RuntimeError) as raised:
        fail()
    engine.close()
    RocksDBEngine(tmp_path).close()
    assert raised.value.__traceback__ is not None


@pytest.mark.parametrize("is_raised", [False, True])
def test_a_moment_without_new_records_is_one_that_ends_later(engine: AnyEngine, is_raised: bool) -> None:
    """Its newest record stays the same, so nothing is kept twice."""
    write(engine, 0, (b"a", b"0"))
    engine.keep(0, 1, 1)
    if is_raised:
        engine.keep(0, 1, 5)
    engine.write({"default": [(b"a", b"1")]}, at(6))
    assert engine.statistics()["moments_kept"] == 1
    assert engine.oldest_kept() == 0
    with engine.moment(0, 1):
        assert engine.get("default", b"a") == b"0"
    if is_raised:
        with engine.moment(0, 5):
            assert engine.get("default", b"a") == b"0"
    else:
        with pytest.raises(MomentGone), engine.moment(0, 5):
            pass
    engine.close()


def test_windows_of_a_moment_expire_by_its_own_time(engine: AnyEngine) -> None:
    store = TimedStore(engine, WINDOWS, RETENTION_MS)
    for batch in range(8):
        start_ms = batch * SEGMENT_MS
        if batch > 0:
            engine.keep(batch - 1, batch, batch)
        records = [ChangelogRecord(WindowKey(b"k", start_ms).to_bytes(), b"%d" % batch, start_ms, batch, batch)]
        store.apply(records, at(batch))

    def shown() -> list[int]:
        page = store.scan(KeyRange(), lambda _: True, 0, LAST_MS, 100, 10**6, Walk())
        return [window.start_ms // SEGMENT_MS for window, _ in page.entries]

    for batch in range(7):
        with engine.moment(batch, batch + 1):
            assert shown() == [each for each in (batch - 1, batch) if each >= 0]
            assert store.exact_count(Walk()) == len(shown())
    assert shown() == [6, 7]
    store.close()


def test_the_history_of_a_moment_begins_by_its_own_time(engine: AnyEngine) -> None:
    store = VersionedStore(engine, 100)
    for batch, at_ms in enumerate((50, 120, 300, 900)):
        if batch > 0:
            engine.keep(batch - 1, batch, batch)
        store.apply([ChangelogRecord(b"k", b"%d" % at_ms, at_ms, batch, batch)], at(batch))
    with engine.moment(1, 2):
        assert store.get(b"k") == Version(b"120", 120)
        assert store.get_as_of(b"k", 60) == Version(b"50", 50)
        assert store.history_start_ms == 20
    with pytest.raises(BeforeHistory):
        store.get_as_of(b"k", 60)
    store.close()


def test_only_what_a_processor_writes_batch_by_batch_keeps_moments() -> None:
    spec = StoreSpec("s", "topic", 1, 0, committed=True)
    others: list[dict[str, Any]] = [
        {"committed": False},
        {"is_global": True},
        {"ephemeral": True},
        {"foreign": True},
        {"kind": "sketch"},
    ]
    assert spec.kind == KEY_VALUE
    assert moment_bytes(spec, 800) == DISK_BYTES
    assert moment_bytes(replace(spec, in_memory=True), 800) == 100
    for other in others:
        assert not keeps_moments(replace(spec, **other))
        assert moment_bytes(replace(spec, **other), 800) == 0
