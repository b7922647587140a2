"""How many scores a second the leaderboard's topology takes: `python -m bench.leaderboard`.

Its state has 20,000 players and as many products. There is no Kafka: records are read from Parquet files, and the
results are only counted. So the figure is what the operators can do, an upper bound for an application. It rises for
the first ten batches or so, while Java compiles.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from bench.usage import cpu_seconds
from examples.leaderboard import sample, topology
from processor.application import Application, Source
from processor.settings import ProcessorSettings
from processor.spark.session import open_session
from processor.testing.topology_test import ARROW_SCHEMA, SOURCE_SCHEMA

_FILES: Final = 4  # per batch
_PARTITIONS: Final = 4
_BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Batch:
    """The time that a batch took."""

    events: int
    took_s: float
    cpu_s: float

    @property
    def events_per_s(self) -> float:
        """Events per second of wall clock."""
        return self.events / self.took_s

    @property
    def cpu_us(self) -> float:
        """Processor time per event, in microseconds."""
        return 1e6 * self.cpu_s / self.events


def main() -> None:
    """Run, print each batch, and the median of the second half."""
    options = _parser().parse_args()
    settings = ProcessorSettings(bootstrap="none:1", checkpoint_dir="unused", spark_master="local[2]")
    with tempfile.TemporaryDirectory() as directory:
        _write(Path(directory), options)
        session = open_session("bench-leaderboard", settings)
        batches = _run(session, Path(directory), options.events)
        session.stop()
    settled = batches[len(batches) // 2 :]
    events_per_s, cpu_us = median(b.events_per_s for b in settled), median(b.cpu_us for b in settled)
    _say(f"median of the last {len(settled)}: {events_per_s:,.0f} events/s, {cpu_us:.1f} us of processor time each")


def _run(session: SparkSession, directory: Path, events: int) -> list[Batch]:
    """Process everything; return the batches with their times."""

    def read(source: Source) -> DataFrame:
        reader = session.readStream.schema(SOURCE_SCHEMA)
        if source.topic == topology.SCORES:
            reader = reader.option("maxFilesPerTrigger", _FILES)
        return reader.parquet(str(directory / source.topic))

    app = Application(topology.application_id, read)
    topology.build(app)
    frame = app.queries[0].frame
    batches: list[Batch] = []

    def take(rows: DataFrame, batch_id: int) -> None:
        begin, cpu_before = time.monotonic(), cpu_seconds([os.getpid()])
        # Hashes keep Spark from leaving out columns that nothing reads.
        rows.selectExpr("count(*)", *(f"sum(hash({column}))" for column in rows.columns)).collect()
        batches.append(Batch(events, time.monotonic() - begin, cpu_seconds([os.getpid()]) - cpu_before))
        took = batches[-1]
        _say(f"batch {batch_id}: {took.events_per_s:,.0f} events/s, {took.cpu_us:.1f} us of processor time each")

    writer = frame.writeStream.outputMode("update").option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.foreachBatch(take).start()
    query.processAllAvailable()
    query.stop()
    return batches


def _write(directory: Path, options: argparse.Namespace) -> None:
    chosen, keys = random.Random(1), range(options.keys)  # noqa: S311 - which players is no secret
    _write_files(directory / topology.PLAYERS, [sample.named_row(key, f"Player {key}") for key in keys], 0)
    _write_files(directory / topology.PRODUCTS, [sample.named_row(key, f"Game {key}") for key in keys], 0)
    for batch in range(1, options.batches + 1):
        scores = [
            sample.score_event(chosen.choice(keys), chosen.choice(keys), chosen.randrange(100_000) / 2)
            for _ in range(options.events)
        ]
        _write_files(directory / topology.SCORES, scores, batch)


def _write_files(directory: Path, records: Sequence[tuple[bytes | None, bytes | None]], batch: int) -> None:
    directory.mkdir(exist_ok=True)
    count = len(records)
    offsets = range(batch * count, (batch + 1) * count)
    columns = [
        [key for key, _ in records],
        [value for _, value in records],
        [directory.name] * count,
        [number % _PARTITIONS for number in range(count)],
        offsets,
        [_BEGIN + timedelta(milliseconds=offset) for offset in offsets],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, ARROW_SCHEMA, strict=True)]
    table, share = pa.Table.from_arrays(arrays, schema=ARROW_SCHEMA), -(-count // _FILES)
    for number in range(_FILES):
        pq.write_table(table.slice(number * share, share), directory / f"{batch:04d}-{number}.parquet")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.leaderboard", description=__doc__)
    parser.add_argument("--keys", type=int, default=20_000, help="players, and products (default: %(default)s)")
    parser.add_argument("--events", type=int, default=200_000, help="scores per batch (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=24, help="number of batches (default: %(default)s)")
    return parser


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
