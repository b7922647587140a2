"""Processing with the header that names a record's batch, and without, batch by batch in turn.

Spark runs one application (`bench.topology`) over a full source topic, from a copy of this tree. There the sink leaves
the header out of every second batch. So both ways have the same Java, compiled as far, and the same broker.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.data import key_of, value_of
from bench.failure import BenchFailure
from bench.moments.compared import Turn
from bench.records import create_topic, record_count
from bench.sides.servers import ROOT
from bench.usage import cpu_seconds
from bench.waiting import wait_for
from statehouse.contract.partitioning import partition_for
from statehouse.kafka import clients
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.process import ManagedProcess

PARTITIONS: Final = 4
_KEYS: Final = 350_000
BATCH: Final = _KEYS
"""A batch has each key once, so that none of its records is left out for a later one."""
WARM_UP: Final = 3
"""Batches that don't count: Java is still being compiled."""
_PACKAGES: Final = ("statehouse", "processor", "bench")
_TASK: Final = "processor/jvm/src/statehouse/sink/Task.java"
_HEADERS: Final = "output.isStore() ? ofStores"
_COMMITTED: Final = "batch committed"
_WITHIN_S: Final = 600.0
_STOPS_WITHIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Costs:
    """A run's batches that count, in order: microseconds a record of wall clock, and of all processors."""

    wall_us: Sequence[Turn]
    processor_us: Sequence[Turn]


def copied_tree(directory: Path, parity: int) -> Path:
    """Return a copy of this tree whose sink writes the header in batches with this parity only.

    Raises:
        BenchFailure: the sink's source isn't what it was.

    """
    for package in _PACKAGES:
        shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__", "results"))
    task = directory / _TASK
    source = task.read_text(encoding="utf-8")
    if source.count(_HEADERS) != 1:
        raise BenchFailure(f"{_TASK} chooses its headers in another way than this benchmark knows")
    task.write_text(source.replace(_HEADERS, f"output.isStore() && batch % 2 == {parity} ? ofStores"), encoding="utf-8")
    return directory


def fill(bootstrap: str, topic: str, batches: int) -> None:
    """Write so many batches' records: all keys in turn, again and again.

    Raises:
        BenchFailure: not all were acknowledged.

    """
    create_topic(bootstrap, topic, PARTITIONS, {})
    records = []
    for number in range(_KEYS):
        key = key_of(number).encode()
        records.append((key, value_of(number).encode(), partition_for(key, PARTITIONS)))
    producer = clients.producer(bootstrap, "bench", **{"linger.ms": 50, "queue.buffering.max.messages": 2 * _KEYS})
    for _ in range(batches):
        for key, value, partition in records:
            producer.produce(topic, key=key, value=value, partition=partition)
        producer.flush(_WITHIN_S)
    producer.close()
    if record_count(bootstrap, topic, PARTITIONS) != batches * _KEYS:
        raise BenchFailure(f"not all records of {topic} were acknowledged")


def processed(broker: EmbeddedKafka, directory: Path, topic: str, batches: int, parity: int) -> Costs:
    """Process a topic of so many batches, and return what each cost.

    Raises:
        BenchFailure: it took too long.
        ProcessFailed: the application ended.

    """
    process = _process(broker.bootstrap, directory, topic, parity)
    process.start()
    try:
        used = dict[int, float]()

        def is_done() -> bool:
            process.check()
            for batch_id in _batches(process.log_path):
                used.setdefault(batch_id, cpu_seconds([process.pid or 0, broker.pid or 0]))
            return len(used) >= batches

        wait_for(is_done, _WITHIN_S, f"{batches} batches")
        took = _batches(process.log_path)
    finally:
        process.stop()
    counted = range(WARM_UP, batches)
    wall = [Turn(each % 2 == parity, took[each]["took_ms"] * 1e3 / took[each]["records"]) for each in counted]
    worked = [Turn(each % 2 == parity, (used[each] - used[each - 1]) * 1e6 / took[each]["records"]) for each in counted]
    return Costs(wall, worked)


def _process(bootstrap: str, directory: Path, topic: str, parity: int) -> ManagedProcess:
    tree = copied_tree(directory / "tree", parity)
    env = {name: value for name, value in os.environ.items() if not name.startswith("STATEHOUSE_")} | {
        "PYTHONPATH": str(tree),
        "BENCH_APPLICATION_ID": f"{topic}-{parity}",
        "BENCH_SOURCE": topic,
        "SPARK_LOCAL_DIRS": str(directory / "spark"),
    }
    options = {"bootstrap": bootstrap, "checkpoint-dir": directory / "checkpoints", "max-offsets": BATCH}
    command = [sys.executable, "-m", "processor.cli", "bench.topology"]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    return ManagedProcess(
        "processor", command, directory / "processor.log", env=env, cwd=tree, stop_timeout_s=_STOPS_WITHIN_S
    )


def _batches(log: Path) -> Mapping[int, Mapping[str, Any]]:
    """Return what the log says of the batches that were committed, by id."""
    return {each["batch_id"]: each for each in _events(log) if each.get("event") == _COMMITTED}


def _events(log: Path) -> Iterator[dict[str, Any]]:
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:  # the last line, half written
                continue
