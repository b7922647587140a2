"""Records are made in the query's own plan, and its state stays as it was: checkpoints from before go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.sink.layouts import TOPIC_OUTPUT, FrameLayout
from processor.sink.records import OutputRows, sink_frame
from processor.sink.task_rows import RECORD
from statehouse.contract.topology import WINDOW

_SCHEMA: Final = "user string, page string, amount long, at timestamp"


def counts(events: DataFrame) -> DataFrame:
    """An aggregate with columns that no record needs, before and after those that it does."""
    made = events.groupBy("user").agg(
        F.max("amount").alias("unused"),
        F.sum("amount").alias("total"),
        F.count("*").alias("n"),
        F.approx_count_distinct("page").alias("unused_too"),
    )
    return made.select(
        F.col("user").alias("key"), "unused", F.col("total").cast("string").alias("value"), "n", "unused_too"
    )


def straight(events: DataFrame) -> DataFrame:
    """Spark's own columns, and nothing on top of the aggregate."""
    return events.groupBy(F.col("user").alias("key")).agg(
        F.min("amount").alias("lowest"),
        F.max_by(F.col("page"), F.col("at")).alias("value"),
        F.avg("amount").alias("mean"),
        F.max("at").alias("timestamp"),
    )


def windows(events: DataFrame) -> DataFrame:
    made = events.withWatermark("at", "1 hour").groupBy("user", F.window("at", "10 minutes"))
    return made.agg(F.min("amount").alias("unused"), F.count("*").alias("n")).select(
        F.col("user").alias("key"), "window", "unused", F.col("n").cast("string").alias("value")
    )


def first_seen(events: DataFrame) -> DataFrame:
    kept = events.withWatermark("at", "1 hour").dropDuplicates(["user", "page"])
    return kept.select(F.col("user").alias("key"), F.col("page").alias("value"), "amount", "at")


def joined(events: DataFrame) -> DataFrame:
    left = events.withWatermark("at", "1 hour")
    right = events.select(F.col("user").alias("other"), F.col("amount").alias("theirs"), F.col("at").alias("then"))
    both = left.join(right.withWatermark("then", "1 hour"), F.expr("user = other AND at = then"))
    return both.select(F.col("user").alias("key"), F.col("page").alias("value"), "amount", "theirs")


def one() -> list[OutputRows]:
    return [OutputRows(3)]


def several() -> list[OutputRows]:
    topic = OutputRows(2, FrameLayout(TOPIC_OUTPUT), columns={"value": F.concat(F.lit("v"), F.col("value"))})
    return [OutputRows(3, where=F.col("value").isNotNull()), topic]


def of_windows() -> list[OutputRows]:
    return [OutputRows(3, FrameLayout(WINDOW))]


FORMS: Final = [
    ("update", counts, one),
    ("update", counts, several),
    ("update", straight, one),
    ("update", straight, several),
    ("update", windows, of_windows),
    ("append", first_seen, one),
    ("append", joined, several),
]


def run(query: DataFrame, mode: str, checkpoint: Path) -> list[Any]:
    """Run a query on what its source has, and return the rows of its batches."""
    found: list[Any] = []
    started = (
        query.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
        .outputMode(mode)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    started.awaitTermination()
    return found


@pytest.mark.parametrize(("mode", "made", "outputs"), FORMS)
def test_a_checkpoint_goes_on_to_and_fro(
    spark: SparkSession,
    tmp_path: Path,
    mode: str,
    made: Callable[[DataFrame], DataFrame],
    outputs: Callable[[], list[OutputRows]],
) -> None:
    """As if the version before ran in between, whose sink made records of each batch in another plan."""
    source = tmp_path / "source"
    source.mkdir()
    frame = made(spark.readStream.schema(_SCHEMA).json(str(source)))
    with_records = sink_frame(frame, outputs())

    def write(number: int, *events: tuple[str, str, int, str]) -> None:
        rows = [dict(zip(("user", "page", "amount", "at"), event, strict=True)) for event in events]
        (source / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))

    for number, query in enumerate((frame, with_records, frame, with_records)):
        write(
            number, ("ann", f"p{number}", number, f"2024-05-01T10:0{number}:00"), ("bob", "p", 1, "2024-05-01T10:00:00")
        )
        found = run(query, mode, tmp_path / "checkpoint")
        if query is with_records:
            records = {(row[RECORD]["_output"], bytes(row[RECORD]["key"])): row[RECORD]["value"] for row in found}
            assert (0, b"ann") in records
    values = {key: bytes(value) for key, value in records.items()}
    assert values[0, b"ann"] == {counts: b"6", straight: b"p3", windows: b"4"}.get(made, b"p3")
