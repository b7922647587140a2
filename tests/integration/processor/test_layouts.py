"""Rows of stores' frames as the sink's tasks take them: composite keys, places, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.sink.layouts import FrameLayout
from processor.sink.partitions import placed
from processor.sink.records import OutputRows, records, sink_rows
from processor.sink.task_rows import TASK_COLUMNS
from statehouse.composite import SessionKey, WindowKey
from statehouse.partitioning import partition_for

PARTITIONS = 5
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
TIMES = [0, 1, 60_000, 1_700_000_000_123, 253_402_300_799_999]
KEYS = ["", "a", "key", "\0\xff", "köln"]


def at(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def rows(frame: DataFrame, layout: FrameLayout) -> list[Any]:
    """Return the records, which Spark and the task place alike."""
    layout.check("store", dict(frame.dtypes))
    outputs = [OutputRows(PARTITIONS, layout)]
    by_spark = sink_rows(frame, outputs)
    in_task = placed(records(frame, outputs).toArrow(), [PARTITIONS])
    assert in_task.select(TASK_COLUMNS).to_pylist() == by_spark.toArrow().to_pylist()
    return by_spark.collect()


@pytest.fixture(params=[True, False], ids=["ansi", "not-ansi"])
def session(spark: SparkSession, request: pytest.FixtureRequest):
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", request.param)
    yield spark
    spark.conf.set("spark.sql.ansi.enabled", before)


def test_window_keys_are_kafka_streams_own_and_placed_by_the_plain_key(session: SparkSession):
    given = [(key, at(time), number) for key in KEYS for time in TIMES for number in (0, 7, 2**31 - 1)]
    frame = session.createDataFrame(given, "key string, window_start timestamp, sequence long")
    frame = frame.withColumn("value", F.lit("v"))
    found = rows(frame, FrameLayout("window", retain_duplicates=True))
    expected = [WindowKey(key.encode(), time, n) for key in KEYS for time in TIMES for n in (0, 7, 2**31 - 1)]
    assert [WindowKey.from_bytes(bytes(row.key)) for row in found] == expected
    assert [bytes(row.key) for row in found] == [key.to_bytes() for key in expected]
    assert [row._sink_partition for row in found] == [partition_for(key.key, PARTITIONS) for key in expected]


def test_session_keys_are_kafka_streams_own(session: SparkSession):
    given = [(key, at(time), at(time + 250)) for key in KEYS for time in TIMES[:-1]]
    frame = session.createDataFrame(given, "key string, session_start timestamp, session_end timestamp")
    found = rows(frame.withColumn("value", F.lit("v")), FrameLayout("session"))
    expected = [SessionKey(key.encode(), time, time + 250) for key in KEYS for time in TIMES[:-1]]
    assert [bytes(row.key) for row in found] == [key.to_bytes() for key in expected]
    assert [row._sink_partition for row in found] == [partition_for(key.key, PARTITIONS) for key in expected]


def test_sparks_own_windows_and_sessions_are_taken_as_they_are(spark: SparkSession):
    events = spark.createDataFrame([("a", at(61_000)), ("a", at(65_000))], "key string, timestamp timestamp")
    counted = F.count("*").cast("string").alias("value")
    (window,) = rows(events.groupBy(F.window("timestamp", "1 minute"), "key").agg(counted), FrameLayout("window"))
    assert (WindowKey.from_bytes(bytes(window.key)), bytes(window.value)) == (WindowKey(b"a", 60_000), b"2")
    sessions = events.groupBy(F.session_window("timestamp", "30 seconds"), "key").agg(counted)
    (session,) = rows(sessions, FrameLayout("session", inactivity_gap_ms=30_000))
    assert SessionKey.from_bytes(bytes(session.key)) == SessionKey(b"a", 61_000, 65_000)


@pytest.mark.parametrize(
    ("layout", "row", "reason"),
    [
        (FrameLayout(), {"key": None}, "null_key"),
        (FrameLayout("window"), {"window_start": None}, "invalid_time"),
        (FrameLayout("window"), {"window_start": at(-1)}, "invalid_time"),
        (FrameLayout("window", retain_duplicates=True), {"window_start": at(0), "sequence": -1}, "invalid_sequence"),
        (FrameLayout("window", retain_duplicates=True), {"window_start": at(0), "sequence": 2**31}, "invalid_sequence"),
        (FrameLayout("session"), {"session_start": at(2), "session_end": at(1)}, "invalid_time"),
        (FrameLayout("session"), {"session_start": at(-2), "session_end": at(1)}, "invalid_time"),
        (FrameLayout("session"), {"session_start": at(1), "session_end": None}, "invalid_time"),
        (FrameLayout("versioned"), {"timestamp": None}, "invalid_time"),
        (FrameLayout("versioned"), {"timestamp": at(0)}, "invalid_time"),
    ],
)
def test_rows_that_cannot_be_records_become_dead_letters(
    spark: SparkSession, layout: FrameLayout, row: dict[str, Any], reason: str
):
    kinds = {"sequence": "long", "key": "string", "value": "string"}
    row = {"key": "k", "value": "v"} | row
    schema = ", ".join(f"{name} {kinds.get(name, 'timestamp')}" for name in row)
    (found,) = rows(spark.createDataFrame([tuple(row.values())], schema), layout)
    assert (found.reason, found.key and bytes(found.key)) == (reason, row["key"] and b"k")
    assert 0 <= found._sink_partition < PARTITIONS
