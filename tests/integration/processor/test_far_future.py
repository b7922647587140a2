"""One event of the year 2286 where Spark makes the windows: what stores, and Spark's own state, make of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.operators.event_time import read_event_time
from processor.operators.json_records import FieldType, parse_json
from processor.rows import RECORD_TIME
from processor.testing import Record, TopologyTest

pytestmark = pytest.mark.timeout(240)
MINUTE = timedelta(minutes=1)
MINUTE_MS = 60_000
NOW_MS = int(datetime.now(UTC).timestamp() * 1_000) // MINUTE_MS * MINUTE_MS
FAR_MS = int(datetime(2286, 11, 20, 17, 46, 40, tzinfo=UTC).timestamp() * 1_000)


def visit(key: str, at_ms: int) -> Record:
    at = datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat().replace("+00:00", "Z")
    return Record(key, json.dumps({"at": at}), NOW_MS)


def events(app: Application) -> DataFrame:
    records = app.stream("visits").withColumnRenamed("timestamp", RECORD_TIME)
    return parse_json(records, {"at": FieldType.TEXT})


def unread(app: Application) -> DataFrame:
    return events(app).withColumn("timestamp", F.col("at").cast("timestamp"))


def read(app: Application) -> DataFrame:
    return read_event_time(events(app), "at").where(F.col("reason").isNull())


def topology(
    spark: SparkSession, directory: Path, timed: Callable[[Application], DataFrame], *, watermark: bool
) -> TopologyTest:
    def build(app: Application) -> None:
        visits = timed(app).withColumn("key", F.col("key").cast("string"))
        visits = visits.withWatermark("timestamp", "1 minute") if watermark else visits
        counted = visits.groupBy(F.window("timestamp", "1 minute"), "key").agg(
            F.count("*").cast("string").alias("value")
        )
        app.window_store("visits-per-minute", counted, MINUTE)

    return TopologyTest("app", build, spark, directory)


def test_it_is_a_dead_letter_and_the_store_keeps_its_windows(spark: SparkSession, tmp_path: Path):
    made = topology(spark, tmp_path, unread, watermark=False)
    made.pipe("visits", visit("ann", NOW_MS), visit("bob", FAR_MS), visit("ann", NOW_MS + 1)).run()
    made.pipe("visits", visit("ann", NOW_MS + 2), visit("bob", NOW_MS)).run()
    assert made.store("visits-per-minute") == {("ann", NOW_MS): 3, ("bob", NOW_MS): 1}
    assert [letter.reason for letter in made.dead_letters] == ["future_time"]
    assert made.dead_letters[0].record.key == b"bob"


def test_only_what_is_refused_before_the_watermark_leaves_sparks_windows_open(spark: SparkSession, tmp_path: Path):
    """A watermark of Spark's is moved by all that it sees: docs/stores.md says so, and what to do."""
    found = []
    for timed in (unread, read):
        made = topology(spark, tmp_path / timed.__name__, timed, watermark=True)
        made.pipe("visits", visit("ann", NOW_MS), visit("bob", FAR_MS)).run()
        made.pipe("visits", visit("ann", NOW_MS + 1)).run()  # a batch's watermark holds for rows of the one after it
        made.pipe("visits", visit("cid", NOW_MS + 2)).run()
        assert len(made.dead_letters) == (timed is unread)
        found.append(set(made.store("visits-per-minute")))
    assert found == [{("ann", NOW_MS)}, {("ann", NOW_MS), ("cid", NOW_MS)}]
