"""What was in the batch in which Spark was killed, and how far it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.checkpoints import committed, planned
from bench.data import key_of
from bench.failure import BenchFailure
from bench.shape import Shape, Side
from bench.sides.redis import Redis, configuration
from bench.workloads.kills import of_batch
from statehouse.contract.partitioning import partition_for


def note(checkpoints: Path, log: str, batch: int, *ends: int) -> None:
    file = checkpoints / "query" / log / str(batch)
    file.parent.mkdir(parents=True, exist_ok=True)
    offsets = ",".join(f'"{partition}":{end}' for partition, end in enumerate(ends))
    file.write_text(f'v1\n{{}}\n{{"source":{{{offsets}}}}}\n')


def test_a_batch_is_planned_before_it_is_committed(tmp_path: Path) -> None:
    assert committed(tmp_path) == planned(tmp_path) == {}
    note(tmp_path, "offsets", 9, 5, 6)
    assert committed(tmp_path) == {}
    note(tmp_path, "commits", 9)
    note(tmp_path, "offsets", 10, 7, 8)
    assert committed(tmp_path) == {("source", 0): 5, ("source", 1): 6}
    assert planned(tmp_path) == {("source", 0): 7, ("source", 1): 8}


def test_files_beside_the_logs_are_no_batches(tmp_path: Path) -> None:
    note(tmp_path, "offsets", 1, 5)
    note(tmp_path, "commits", 1)
    (tmp_path / "query" / "commits" / ".2.crc").write_text("")
    assert committed(tmp_path) == {("source", 0): 5}


@pytest.mark.parametrize("ended", [0, 3])
def test_a_batch_has_the_keys_between_its_offsets(ended: int) -> None:
    numbers = range(10, 40)
    of = [[number for number in numbers if partition_for(key_of(number).encode(), 2) == each] for each in (0, 1)]
    begin = {("source", 0): 100, ("source", 1): 200}
    before = {("source", 0): 100 + ended, ("source", 1): 190} if ended else {}

    found = of_batch(numbers, 2, begin, before, {("source", 0): 105, ("source", 1): 202})

    assert found == {0: of[0][ended:5], 1: of[1][:2]}


def test_redis_keeps_what_it_is_configured_to_keep(tmp_path: Path) -> None:
    logged = configuration(Side.REDIS, 7000, tmp_path)
    assert 'appendonly yes\nappendfsync everysec\nsave ""\n' in logged
    assert f"port 7000\ndir {tmp_path}\nmaxmemory 0\n" in logged
    assert "appendonly no\nsave 3600 1 300 100 60 10000\n" in configuration(Side.REDIS_SNAPSHOTS, 7000, tmp_path)


def test_without_redis_a_run_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchFailure, match="apt-get install redis-server"):
        Redis(Side.REDIS, "unused:1", Shape(10), tmp_path, "source")
