"""One play: a broker and a program of its own, events through it, and what came of them."""

from __future__ import annotations

import calendar
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from bench.failure import BenchFailure
from bench.freshness.flow import Flow
from bench.freshness.workloads import FLOOR, LATEST, LEADERBOARD, SINK, SOURCE, Workload
from bench.records import create_topic
from bench.usage import cpu_seconds
from bench.waiting import wait_for
from statehouse.kafka import clients
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.process import ManagedProcess

PARTITIONS: Final = 4
_STARTS_WITHIN_S: Final = 180.0
_STOPS_WITHIN_S: Final = 60.0
_PROGRESS: Final = "QueryProgressEvent"

PROGRAMS: Final[Mapping[str, tuple[Workload, tuple[str, ...]]]] = {
    "bench.topology": (LATEST, ("processor.cli", "bench.topology")),
    "leaderboard": (LEADERBOARD, ("processor.cli", "examples.leaderboard.topology")),
    "floor": (FLOOR, ("bench.freshness.floor",)),
}
"""What can be measured: its workload, and its module with arguments."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a play measured. Ages and batches are in milliseconds; a batch is the median of one with input."""

    p50_ms: float
    p99_ms: float
    batch_ms: float
    parts_ms: Mapping[str, float]
    """Spark's parts of a batch, medians, by the names of `StreamingQueryProgress.durationMs`."""
    batches: int
    events: int
    cpu_s_per_s: float
    """Processor time of the program in each second."""


def play(
    directory: Path,
    program: str,
    tree: Path,
    rate: float,
    warm_up_s: float,
    seconds: float,
    conf: Mapping[str, str],
) -> Figures:
    """Run a program of a source tree, with settings of Spark in addition to its own, and measure it after a warm-up.

    Raises:
        BenchFailure: it didn't start, or events didn't show.
        ProcessFailed: it ended.

    """
    workload, command = PROGRAMS[program]
    with EmbeddedKafka(directory / "broker") as broker:
        for topic in (workload.events_topic, *workload.tables, *({SINK} if program == "floor" else ())):
            create_topic(broker.bootstrap, topic, PARTITIONS, {})
        _write_tables(broker.bootstrap, workload)
        process = _process(directory, command, tree, broker.bootstrap, conf)
        process.start()
        try:
            flow = Flow(broker.bootstrap, workload, rate, PARTITIONS)
            with flow.running():
                wait_for(lambda: _shows(flow, process), _STARTS_WITHIN_S, f"the first event of {program}")
                time.sleep(warm_up_s)
                begin, begin_epoch, worked = time.monotonic(), time.time(), cpu_seconds([process.pid or 0])
                time.sleep(seconds)
                end, end_epoch = time.monotonic(), time.time()
                worked = cpu_seconds([process.pid or 0]) - worked
                process.check()
                ages = flow.ages_between(begin, end)
        finally:
            process.stop()
    batches = [each for at, each in _batches(directory / "events") if begin_epoch <= at < end_epoch]
    if not batches or not ages:
        raise BenchFailure(f"{program}: {len(batches)} batches and {len(ages)} events were seen")
    parts = {part: median(batch.get(part, 0) for batch in batches) for part in max(batches, key=len)}
    shutil.rmtree(directory, ignore_errors=True)
    return Figures(
        1000 * median(ages),
        1000 * quantiles(ages, n=100)[98],
        parts["triggerExecution"],
        parts,
        len(batches),
        len(ages),
        worked / (end - begin),
    )


def _shows(flow: Flow, process: ManagedProcess) -> bool:
    process.check()
    return flow.shown > 0


def _write_tables(bootstrap: str, workload: Workload) -> None:
    producer = clients.producer(bootstrap, "freshness-tables")
    for topic, rows in workload.tables.items():
        for number, (key, value) in enumerate(rows):
            producer.produce(topic, key=key, value=value, partition=number % PARTITIONS)
    producer.flush(30.0)
    producer.close()


def _process(
    directory: Path, command: tuple[str, ...], tree: Path, bootstrap: str, conf: Mapping[str, str]
) -> ManagedProcess:
    events = directory / "events"
    events.mkdir(parents=True)
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        **conf,
    }
    env = {name: value for name, value in os.environ.items() if not name.startswith("STATEHOUSE_")} | {
        "PYTHONPATH": str(tree),
        "STATEHOUSE_BOOTSTRAP": bootstrap,
        "STATEHOUSE_CHECKPOINT_DIR": str(directory / "checkpoints"),
        "STATEHOUSE_SPARK_CONF": json.dumps(conf),
        "BENCH_APPLICATION_ID": "bench",
        "BENCH_SOURCE": SOURCE,
        "SPARK_LOCAL_DIRS": str(directory / "spark"),
    }
    return ManagedProcess(
        command[0],
        [sys.executable, "-m", *command],
        directory / "program.log",
        env=env,
        cwd=tree,
        stop_timeout_s=_STOPS_WITHIN_S,
    )


def _batches(events: Path) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """Yield the batches with input in an event log: when each began (seconds since 1970), and its parts in ms."""
    for file in sorted(path for path in events.rglob("*") if path.is_file()):
        for line in file.read_text(encoding="utf-8").splitlines():
            if _PROGRESS not in line:
                continue
            progress = json.loads(line)["progress"]
            if any(source["numInputRows"] for source in progress["sources"]):
                began = time.strptime(progress["timestamp"][:19], "%Y-%m-%dT%H:%M:%S")
                yield calendar.timegm(began), progress["durationMs"]
