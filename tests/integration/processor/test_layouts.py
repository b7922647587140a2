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
from statehouse.contract.partitioning import partition_for
from statehouse.keys.composite import SessionKey, WindowKey

PARTITIONS = 5
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
TIMES = [0, 1, 60_000, 1_700_000_000_123, 253_402_300_799_999]
ANY_TIME = timedelta.max // timedelta(milliseconds=1)
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


@pytest.mark.feature("compacted-changelog-store")
@pytest.mark.feature("windows-several-values")
def test_window_keys_are_kafka_streams_own_and_placed_by_the_plain_key(session: SparkSession):
    given = [(key, at(time), number) for key in KEYS for time in TIMES for number in (0, 7, 2**31 - 1)]
    frame = session.createDataFrame(given, "key string, window_start timestamp, sequence long")
    frame = frame.withColumn("value", F.lit("v"))
    found = rows(frame, FrameLayout("window", retain_duplicates=True, future_bound_ms=ANY_TIME))
    expected = [WindowKey(key.encode(), time, n) for key in KEYS for time in TIMES for n in (0, 7, 2**31 - 1)]
    assert [WindowKey.from_bytes(bytes(row.key)) for row in found] == expected
    assert [bytes(row.key) for row in found] == [key.to_bytes() for key in expected]
    assert [row._sink_partition for row in found] == [partition_for(key.key, PARTITIONS) for key in expected]


@pytest.mark.feature("compacted-changelog-store")
def test_session_keys_are_kafka_streams_own(session: SparkSession):
    given = [(key, at(time), at(time + 250)) for key in KEYS for time in TIMES[:-1]]
    frame = session.createDataFrame(given, "key string, session_start timestamp, session_end timestamp")
    found = rows(frame.withColumn("value", F.lit("v")), FrameLayout("session"))
    expected = [SessionKey(key.encode(), time, time + 250) for key in KEYS for time in TIMES[:-1]]
    assert [bytes(row.key) for row in found] == [key.to_bytes() for key in expected]
    assert [row._sink_partition for row in found] == [partition_for(key.key, PARTITIONS) for key in expected]


@pytest.mark.feature("session-windows-published")
def test_sparks_own_windows_and_sessions_are_taken_as_they_are(spark: SparkSession):
    events = spark.createDataFrame([("a", at(61_000)), ("a", at(65_000))], "key string, timestamp timestamp")
    counted = F.count("*").cast("string").alias("value")
    (window,) = rows(events.groupBy(F.window("timestamp", "1 minute"), "key").agg(counted), FrameLayout("window"))
    assert (WindowKey.from_bytes(bytes(window.key)), bytes(window.value)) == (WindowKey(b"a", 60_000), b"2")
    sessions = events.groupBy(F.session_window("timestamp", "30 seconds"), "key").agg(counted)
    (session,) = rows(sessions, FrameLayout("session", inactivity_gap_ms=30_000))
    assert SessionKey.from_bytes(bytes(session.key)) == SessionKey(b"a", 61_000, 65_000)


@pytest.mark.feature("records-t-used")
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


NOW = datetime.now(UTC).replace(microsecond=0)
YEAR_2286 = datetime(2286, 11, 20, tzinfo=UTC)
DAY = timedelta(days=1)


def refused(frame: DataFrame, layout: FrameLayout) -> list[str]:
    return [row.key.decode() for row in rows(frame, layout) if row.reason == "future_time"]


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("window", {"window_start": "at"}),
        pytest.param("window", {"window": "struct(at as start, at + interval 30 days as end)"}, marks=pytest.mark.long),
        pytest.param("session", {"session_start": "at - interval 1 hour", "session_end": "at"}, marks=pytest.mark.long),
        ("session", {"session_window": "struct(at - interval 1 hour as start, at + interval 5 minutes as end)"}),
        ("versioned", {"timestamp": "at"}),
    ],
)
def test_what_is_far_in_the_future_is_a_dead_letter_however_it_was_made(
    session: SparkSession, kind: str, columns: dict[str, str]
):
    times = {"1970": EPOCH + MINUTE, "now": NOW, "6 days": NOW + 6 * DAY, "8 days": NOW + 8 * DAY, "2286": YEAR_2286}
    frame = session.createDataFrame(list(times.items()), "key string, at timestamp").withColumn("value", F.lit("v"))
    made = frame.withColumns({name: F.expr(text) for name, text in columns.items()})
    layout = FrameLayout(kind, inactivity_gap_ms=300_000)
    assert refused(made, layout) == ["8 days", "2286"]
    assert refused(made, FrameLayout(kind, inactivity_gap_ms=300_000, future_bound_ms=ANY_TIME)) == []

    recorded = made.withColumn("record_time", F.lit(NOW - 365 * DAY))  # a topic that is read anew after a year
    assert refused(recorded, layout) == ["now", "6 days", "8 days", "2286"]
    assert refused(made.withColumn("record_time", F.lit(YEAR_2286)), layout) == ["8 days", "2286"]
    assert refused(made.withColumn("record_time", F.lit(None).cast("timestamp")), layout) == ["8 days", "2286"]


def test_a_future_bound_ends_exactly(session: SparkSession):
    times = {"at": NOW - 10 * DAY + MINUTE, "beyond": NOW - 10 * DAY + MINUTE + timedelta(milliseconds=1)}
    frame = session.createDataFrame(list(times.items()), "key string, window_start timestamp")
    frame = frame.withColumns({"value": F.lit("v"), "record_time": F.lit(NOW - 10 * DAY)})
    assert refused(frame, FrameLayout("window", future_bound_ms=60_000)) == ["beyond"]


def test_each_output_may_make_a_value_of_its_own(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("a", 1)], "key string, number long")
    outputs = [OutputRows(PARTITIONS, columns={"value": F.format_string(f"{each}:%d", "number")}) for each in "xy"]
    assert [bytes(row.value) for row in sink_rows(frame, outputs).collect()] == [b"x:1", b"y:1"]
