"""Engines: what the store models, with one thread, can't show."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from query_service.states.checkpoint import Checkpoint
from query_service.stores.engine import Engine, StoreClosed, StoreUnusable
from query_service.stores.memory_engine import MemoryBudgetExceeded, MemoryEngine
from query_service.stores.resources import StoreResources
from query_service.stores.rocksdb_engine import DiskRefused, RocksDBEngine
from query_service.stores.statistics import NODE_STATISTICS, STORE_STATISTICS
from statehouse.errors import LookupFailure, Reason
from tests.support.polling import poll_until

AT = Checkpoint("t", "id", 1, 1)


class StalledGets:
    """Stands for an open database whose disk stalls until `answers` is set."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.begun, self.answers = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def get(self, keys: list[bytes]) -> Any:
        self.begun.set()
        assert self.answers.wait(30)
        return self._database.get(keys)


@pytest.fixture(params=["rocksdb", "memory"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    return RocksDBEngine(tmp_path) if request.param == "rocksdb" else MemoryEngine(10**9)


def test_a_view_outlives_the_drop_of_its_family(tmp_path: Path) -> None:
    engine = RocksDBEngine(tmp_path)
    engine.write({"segment-1": [(b"%d" % n, b"v") for n in range(5)]}, AT)
    with engine.view(["segment-1"]) as view:
        engine.drop("segment-1")
        assert len(list(view.entries("segment-1", b"", None, reverse=False))) == 5
    with engine.view(["segment-1"]) as view:
        assert not list(view.entries("segment-1", b"", None, reverse=False))
    engine.write({"segment-1": [(b"new", b"v")]}, AT)
    assert engine.get("segment-1", b"new") == b"v"
    assert engine.get("segment-1", b"1") is None
    engine.close()


def test_many_segments_come_and_go_without_their_log_being_written_again(tmp_path: Path) -> None:
    """As in a window store that runs for days. RocksDB's own log is begun once a start."""
    engine = RocksDBEngine(tmp_path)
    for number in range(100):
        engine.write({f"segment-{number}": [(b"k", b"v")]}, AT)
        engine.drop(f"segment-{number - 3}")
    assert engine.families() == {"default", "segment-97", "segment-98", "segment-99"}
    assert not list(tmp_path.glob("LOG.old*"))
    engine.close()


def test_a_view_does_not_see_later_writes(engine: Engine) -> None:
    engine.write({"default": [(b"a", b"1")], "other": [(b"a", b"1")]}, AT)
    with engine.view(["default", "other"]) as view:
        engine.write({"default": [(b"b", b"2")], "other": [(b"b", b"2")]}, AT)
        for family in ("default", "other"):
            assert [key for key, _ in view.entries(family, b"", None, reverse=False)] == [b"a"]
    engine.close()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bounds", [(0, 1_000), (130, 700)])
def test_writes_get_through_while_a_walk_is_paused_and_it_does_not_see_them(
    engine: Engine, reverse: bool, bounds: tuple[int, int]
) -> None:
    engine.write({"default": [(b"%04d" % n, b"old") for n in range(0, 1_000, 2)]}, AT)
    before = [(b"%04d" % n, b"old") for n in range(0, 1_000, 2) if bounds[0] <= n < bounds[1]]
    changed: list[tuple[bytes, bytes | None]] = [(b"%04d" % n, b"new" if n % 4 else None) for n in range(1_000)]
    with engine.view(["default", "later"]) as view:
        walk = view.entries("default", b"%04d" % bounds[0], b"%04d" % bounds[1], reverse=reverse)
        seen = [next(walk) for _ in range(10)]
        for writes in [{"default": changed}, {"default": changed, "later": changed}]:
            writer = threading.Thread(target=engine.write, args=(writes, AT), daemon=True)
            writer.start()
            writer.join(20)
            assert not writer.is_alive(), "the write waits for the walk"
        assert engine.get("default", b"0001") == b"new"
        assert engine.get("default", b"0000") is None
        with engine.view(["default"]) as newer:
            assert sum(1 for _ in newer.entries("default", b"", None, reverse=reverse)) == 750
        assert [*seen, *walk] == (before[::-1] if reverse else before)
        assert not list(view.entries("later", b"", None, reverse=reverse)), "a family that began after the view"
    assert engine.open_views() == 0
    engine.close()


def test_a_view_of_memory_keeps_a_family_that_is_dropped_and_begins_anew() -> None:
    engine = MemoryEngine(10**6)
    engine.write({"segment-1": [(b"a", b"old")]}, AT)
    with engine.view(["segment-1"]) as view:
        engine.drop("segment-1")
        engine.write({"segment-1": [(b"a", b"new"), (b"b", b"new")]}, AT)
        assert list(view.entries("segment-1", b"", None, reverse=False)) == [(b"a", b"old")]
    assert engine.get("segment-1", b"a") == b"new"


def test_close_waits_for_views_and_refuses_new_ones(engine: Engine, tmp_path: Path) -> None:
    engine.write({"default": [(b"a", b"1")]}, AT)
    with engine.view(["default"]) as view:
        closing = threading.Thread(target=engine.close)
        closing.start()

        def refused() -> bool:
            try:
                with engine.view(["default"]):
                    return False
            except StoreClosed:
                return True

        poll_until(refused, 10, "new views to be refused")
        assert [key for key, _ in view.entries("default", b"", None, reverse=False)] == [b"a"]
        assert closing.is_alive()
    closing.join(10)
    assert not closing.is_alive()
    RocksDBEngine(tmp_path).close()


def test_close_waits_for_a_disk_that_is_being_read(tmp_path: Path) -> None:
    engine = RocksDBEngine(tmp_path)
    engine.write({"default": [(b"k", b"v")]}, AT)
    disk = StalledGets(engine._db)
    engine._db = disk  # type: ignore[assignment]
    found: list[object] = []
    reading = threading.Thread(target=lambda: found.extend(engine.get_many("default", [b"k", b"absent"])))
    reading.start()
    assert disk.begun.wait(20)
    assert engine.open_views() == 1
    closing = threading.Thread(target=engine.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    disk.answers.set()
    reading.join(20)
    closing.join(20)
    assert found == [b"v", None]
    in_memory = MemoryEngine(10**6)
    in_memory.close()
    for closed in (engine, in_memory):
        with pytest.raises(StoreClosed):
            closed.get_many("default", [b"k"])
    RocksDBEngine(tmp_path).close()


def test_a_view_that_cannot_be_opened_does_not_keep_the_store_open(tmp_path: Path) -> None:
    engine = RocksDBEngine(tmp_path)
    engine.write({"segment-1": [(b"a", b"1")]}, AT)
    engine._families["segment-1"].close()  # what makes its iterator is refused
    with pytest.raises(Exception, match="closed"), engine.view(["segment-1"]):
        pass
    assert engine.open_views() == 0
    with pytest.raises(DiskRefused, match="already closed"):
        engine.close()


def test_counts_can_be_estimated_while_families_come_and_go(tmp_path: Path) -> None:
    """The call that drops a family borrows it: a reader that met that would get a RuntimeError."""
    engine = RocksDBEngine(tmp_path)
    engine.write({"segment-1": [(b"a", b"1")]}, AT)
    counted: list[int] = []
    with engine._lock:
        counting = threading.Thread(target=lambda: counted.append(engine.approximate_count("segment-1")))
        counting.start()
        counting.join(0.2)
        assert not counted, "it waits for what has the lock"
        engine.drop("segment-1")
    counting.join(20)
    assert counted == [0]
    engine.close()
    with pytest.raises(StoreClosed):
        engine.approximate_count("default")


def test_what_is_no_database_is_said(tmp_path: Path) -> None:
    RocksDBEngine(tmp_path).close()
    (tmp_path / "CURRENT").write_bytes(b"garbage")
    with pytest.raises(StoreUnusable, match=str(tmp_path)):
        RocksDBEngine(tmp_path)


def test_memory_budget_is_kept_and_nothing_half_written() -> None:
    engine = MemoryEngine(1_000)
    engine.write({"default": [(b"a", b"x" * 300)]}, AT)
    before = engine.statistics()
    with pytest.raises(MemoryBudgetExceeded, match="memory_store_max_bytes"):
        engine.write({"default": [(b"b", b"x" * 300), (b"c", b"x" * 300)]}, Checkpoint("t", "id", 2, 1))
    assert (engine.statistics(), engine.get("default", b"b"), engine.checkpoint()) == (before, None, AT)
    engine.write({"default": [(b"a", None)]}, AT)
    assert engine.statistics()["memory_bytes"] == 0


@pytest.mark.feature("memory-bound-store")
def test_memory_of_many_stores_stays_within_the_one_bound(tmp_path: Path) -> None:
    cache, buffer = 24 * 1024 * 1024, 8 * 1024 * 1024
    resources = StoreResources(block_cache_bytes=cache, write_buffer_bytes=buffer)
    engines = [RocksDBEngine(tmp_path / str(nth), resources) for nth in range(16)]
    peak = dict.fromkeys(resources.statistics(), 0)
    for batch in range(20):
        for engine in engines:
            rows: list[tuple[bytes, bytes | None]] = [(b"%d-%d" % (batch, n), os.urandom(1_000)) for n in range(100)]
            engine.write({"default": rows, "segment-1": rows[:10]}, AT)
            peak = {name: max(peak[name], value) for name, value in resources.statistics().items()}
    for engine in engines:
        with engine.view(["default"]) as view:
            assert sum(1 for _ in view.entries("default", b"", None, reverse=False)) == 2_000
        peak = {name: max(peak[name], value) for name, value in resources.statistics().items()}
    # 35 MB were written and read. Above the bounds may be what is being flushed.
    assert buffer // 2 < peak["write_buffer_bytes"] < 3 * buffer
    assert cache // 2 < peak["block_cache_bytes"] < cache + 2 * buffer
    for engine in engines:
        engine.close()
    assert not resources.statistics()["write_buffer_bytes"]


def two_filled(folder: Path, resources: StoreResources) -> tuple[list[RocksDBEngine], list[tuple[bytes, bytes | None]]]:
    """Two stores with two families, all of it in memtables, and the rows of the first."""
    engines = [RocksDBEngine(folder / name, resources) for name in "ab"]
    rows: list[tuple[bytes, bytes | None]] = [(b"%06d" % n, os.urandom(100)) for n in range(20_000)]
    for engine in engines:
        engine.write({"default": rows, "segment-1": rows[:5_000]}, AT)
    return engines, rows


def test_what_memtables_take_keeps_no_block_out_of_the_cache(tmp_path: Path) -> None:
    resources = StoreResources()
    engines, rows = two_filled(tmp_path, resources)
    engines[0].close()
    again = RocksDBEngine(tmp_path / "a", resources)

    def misses() -> int:
        before = resources.statistics()["block_cache_misses_total"]
        for key, value in rows[::5]:
            assert again.get("default", key) == value
        return resources.statistics()["block_cache_misses_total"] - before

    assert misses() > 0
    assert misses() == 0


def test_statistics_of_stores_and_of_what_they_share(tmp_path: Path) -> None:
    resources = StoreResources()
    engines, rows = two_filled(tmp_path, resources)
    assert all(engine.statistics()["memtable_bytes"] > 20_000 * 100 for engine in engines)
    shared = resources.statistics()
    assert shared["write_buffer_bytes"] >= sum(engine.statistics()["memtable_bytes"] for engine in engines)
    assert shared["bytes_written_total"] > 2 * 25_000 * 100

    engines[0].close()
    assert not engines[0].statistics()
    poll_until(
        lambda: resources.statistics()["write_buffer_bytes"] < shared["write_buffer_bytes"],
        30,
        "the closed store's memtables to be freed, which a thread of RocksDB does",
    )
    again = RocksDBEngine(tmp_path / "a", resources)
    assert again.statistics()["sst_bytes"] > 25_000 * 100
    before = resources.statistics()
    assert again.get("default", b"000001") == rows[1][1]
    after = resources.statistics()
    assert after["block_cache_misses_total"] > before["block_cache_misses_total"]
    assert after["bytes_read_total"] == before["bytes_read_total"] + 100
    assert again.get("default", b"000001") == rows[1][1]
    assert resources.statistics()["block_cache_hits_total"] > after["block_cache_hits_total"]
    assert set(after) == set(NODE_STATISTICS)

    memory = MemoryEngine(1_000)
    kept = {"moments_kept": 0, "moments_written_bytes": 0}
    assert memory.statistics() == {"memory_bytes": 0, "memory_budget_bytes": 1_000, **kept}
    assert {*again.statistics(), *memory.statistics()} == set(STORE_STATISTICS)
    again.close()
    engines[1].close()


def test_a_damaged_entry_is_told_by_reads_of_lists_and_of_memory(tmp_path: Path) -> None:
    """Never is it told as absent."""
    rows = [(b"%04d" % number, os.urandom(500)) for number in range(2_000)]
    engine = RocksDBEngine(tmp_path)
    engine.write({"default": rows}, AT)
    engine.close()
    RocksDBEngine(tmp_path).close()  # makes the write-ahead log a file of entries
    file = max(tmp_path.glob("*.sst"), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 100] = b"x" * 100
    file.write_bytes(data)
    engine = RocksDBEngine(tmp_path)
    damaged = []
    for key, value in rows:
        try:
            assert engine.get_many("default", [rows[0][0], key]) == [rows[0][1], value]
        except LookupFailure:
            damaged.append(key)
    assert damaged
    for key in damaged:
        with pytest.raises(LookupFailure) as caught:
            engine.get_many("default", [key])
        assert caught.value.reason is Reason.TASK_FAILED
    engine.close()
