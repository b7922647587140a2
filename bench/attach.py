"""Measures `statehouse attach`: reads of few changed partitions, and what it costs while there is nothing to do.

python -m bench.attach reads
python -m bench.attach idle --states 6 --seconds 120
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from bench.reporting import say
from bench.usage import Memory, cpu_seconds
from processor.attach.checkpoint import AttachedCheckpoint
from processor.attach.columns.mapping import FAILED, EntryMapping
from processor.attach.operators import StateChoice, source_of
from processor.attach.reader import StateReader, state_operators
from processor.run.start_check import last_commits
from statehouse.local.kafka import EmbeddedKafka

PARTITIONS: Final = 200
ROWS: Final = 9
BATCHES: Final = 24
WARM_UP: Final = 8
_PROVIDER: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.streaming.stateStore.providerClass": _PROVIDER,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}


def main() -> None:
    """Measure what is asked for, and print it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["reads", "idle"])
    parser.add_argument("--states", type=int, default=6, help="how many states are attached (default: 6)")
    parser.add_argument("--seconds", type=int, default=120, help="how long the idle time is measured (default: 120)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = reads(Path(directory)) if given.what == "reads" else idle(Path(directory), given.states, given.seconds)
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


def reads(directory: Path) -> dict[str, float]:
    """Change a few rows of one partition a batch; read each batch from all partitions, and from the changed ones."""
    session = _session()
    session.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
    say(f"making {BATCHES} batches of {ROWS} rows in one of {PARTITIONS} partitions")
    for batch in range(BATCHES):
        _write(session, directory / "events", batch, [(1, batch)] * ROWS)
        _run(session, directory / "events", directory / "job")
    session.conf.set("spark.sql.shuffle.partitions", "2")
    checkpoint = AttachedCheckpoint(session, str(directory / "job"))
    source = source_of(state_operators(session, checkpoint.directory), StateChoice())
    reader = StateReader(session, checkpoint.directory, source, EntryMapping(), checkpoint.batch(0).version)
    took: dict[str, list[float]] = {"all": [], "changed": []}
    for batch in range(1, BATCHES):
        for how, seconds in took.items():
            before = cpu_seconds([os.getpid()])
            which = checkpoint.changed_partitions(0, "default", batch, batch) if how == "changed" else None
            reader.changes(batch, batch, which).agg(F.count("*"), F.count(FAILED)).collect()
            if batch > WARM_UP:
                seconds.append(cpu_seconds([os.getpid()]) - before)
    medians = {how: statistics.median(seconds) for how, seconds in took.items()}
    return {f"{how}_ms": round(1000 * each, 1) for how, each in medians.items()} | {
        "ratio": round(medians["changed"] / medians["all"], 3)
    }


def idle(directory: Path, states: int, seconds: int) -> dict[str, float]:
    """Attach to jobs that have nothing to do; return what that takes of a core, and of memory."""
    session = _session()
    session.conf.set("spark.sql.shuffle.partitions", "2")
    lines: list[str] = []
    for number in range(states):
        job = f"job{number // 2}"
        if number % 2 == 0:
            _write(session, directory / f"{job}-events", 0, [(place, place) for place in range(1_000)])
            _run(session, directory / f"{job}-events", directory / job, with_two=True)
        lines += ["[[state]]", f'checkpoint = "{directory / job}"', f'store = "s{number}"', f"operator = {number % 2}"]
    session.stop()
    (directory / "states.toml").write_text("\n".join(lines) + "\n")
    with EmbeddedKafka(directory / "kafka") as kafka, (directory / "attach.log").open("wb") as log:
        command = [sys.executable, "-m", "statehouse.cli", "attach", "--states", str(directory / "states.toml")]
        command += ["--bootstrap", kafka.bootstrap, "--application-id", "bench", "--master", "local[2]"]
        attach = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            stores = [f"s{number}" for number in range(states)]
            _wait(lambda: len(last_commits(kafka.bootstrap, "bench", stores)) == states, 300)
            say("all states are served; letting it come to rest")
            time.sleep(20)
            before, began = cpu_seconds([attach.pid]), time.monotonic()
            time.sleep(seconds)
            used = (cpu_seconds([attach.pid]) - before) / (time.monotonic() - began)
            memory = Memory.of([attach.pid]).pss
        finally:
            attach.terminate()
            attach.wait(60)
    return {"states": states, "percent_of_a_core": round(100 * used, 2), "memory_mib": round(memory / 2**20)}


def _session() -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session._jsparkSession.streams()  # noqa: SLF001 - what RocksDB asks for when it loads state
    return session


def _write(session: SparkSession, events: Path, batch: int, rows: list[tuple[int, int]]) -> None:
    frame = session.createDataFrame(rows, "k bigint, v bigint").withColumn("at", F.timestamp_seconds(F.col("v")))
    frame.withColumn("batch", F.lit(batch)).coalesce(1).write.mode("append").parquet(str(events))


def _run(session: SparkSession, events: Path, checkpoint: Path, *, with_two: bool = False) -> None:
    stream = session.readStream.schema("k bigint, v bigint, at timestamp, batch int").parquet(str(events))
    made = stream.groupBy("k").agg(F.count("*"), F.sum("v"))
    if with_two:
        late = stream.withWatermark("at", "1 hour").dropDuplicates(["k", "at"])
        made = late.groupBy(F.window("at", "1 minute"), "k").agg(F.count("*"))
    query = made.writeStream.format("noop").outputMode("append" if with_two else "update")
    query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()


def _wait(is_done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not in {seconds:g} s")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
