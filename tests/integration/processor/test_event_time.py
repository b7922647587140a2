"""Event times that records say themselves: which texts are times, and what happens to the others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.operators.event_time import RECORD_TIME, fill_event_time, read_event_time
from statehouse.errors import ConfigurationError

RECORDED = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOON_MS = int(RECORDED.timestamp()) * 1000
BOUND = timedelta(hours=1)

# Text -> milliseconds after noon, None if there is no text, or the reason of the refusal.
TEXTS: dict[str | None, int | str | None] = {
    "2026-01-31T12:00:00Z": 0,
    "2026-01-31T12:00:00": 0,
    "2026-01-31T12:00:00.5Z": 500,
    "2026-01-31T12:00:00.123456789": 123,
    "2026-01-31T14:30:01+02:30": 1_000,
    "2026-01-31T07:00:00-05:00": 0,
    "1970-01-01T00:00:00Z": -NOON_MS,
    "2026-01-31T13:00:00Z": 3_600_000,
    "2026-01-31T13:00:00.001Z": "future_time",
    "2027-01-31T12:00:00Z": "future_time",
    "1969-12-31T23:59:59.999Z": "negative_time",
    "": "unparsable_time",
    "yesterday": "unparsable_time",
    "2026": "unparsable_time",
    "2026-01-31T12:00": "unparsable_time",
    "2026-01-31": "unparsable_time",
    "2026-01-31 12:00:00": "unparsable_time",
    " 2026-01-31T12:00:00Z": "unparsable_time",
    "2026-02-30T12:00:00Z": "unparsable_time",
    "2026-01-31T25:00:00Z": "unparsable_time",
    "2026-01-31T12:00:00 Europe/Paris": "unparsable_time",
    "1769860800000": "unparsable_time",
    None: None,
}


@pytest.fixture(scope="module")
def read(spark: SparkSession) -> dict[str | None, Row]:
    frame = spark.createDataFrame([(text, RECORDED) for text in TEXTS], f"time string, {RECORD_TIME} timestamp")
    judged = frame.withColumns({"reason": F.lit(None).cast("string"), "detail": F.lit(None).cast("string")})
    judged = read_event_time(judged, "time", future_bound=BOUND).withColumn("ms", F.unix_millis("timestamp"))
    return dict(zip(TEXTS, judged.coalesce(1).collect(), strict=True))


@pytest.mark.parametrize("text", TEXTS, ids=repr)
def test_a_text(read: dict[str | None, Row], text: str | None):
    row, expected = read[text], TEXTS[text]
    if isinstance(expected, str):
        assert (row.reason, row.ms) == (expected, NOON_MS)
        assert row.detail.startswith(text)
    else:
        assert (row.reason, row.detail) == (None, None)
        assert row.ms == (None if expected is None else NOON_MS + expected)


def test_a_row_refused_before_stays_so(spark: SparkSession):
    rows = [("2026-01-31T11:00:00Z", RECORDED, "not_json", "why")]
    frame = spark.createDataFrame(rows, f"time string, {RECORD_TIME} timestamp, reason string, detail string")
    row = read_event_time(frame, "time").withColumn("ms", F.unix_millis("timestamp")).first()
    assert row is not None
    assert (row.reason, row.detail, row.ms) == ("not_json", "why", NOON_MS)


def test_a_negative_bound_is_refused(spark: SparkSession):
    with pytest.raises(ConfigurationError, match="future_bound"):
        read_event_time(spark.range(1), "id", future_bound=timedelta(seconds=-1))


def test_missing_times_are_the_stream_time_of_their_partition_over_batches(spark: SparkSession, tmp_path: Path):
    incoming = tmp_path / "incoming"
    incoming.mkdir()
    columns = f"topic string, partition int, offset bigint, timestamp timestamp, {RECORD_TIME} timestamp, reason string"
    found: dict[tuple[int, int], int] = {}

    def collect(frame: DataFrame, _batch_id: int) -> None:
        after_noon = frame.withColumn("ms", F.unix_millis("timestamp") - NOON_MS)
        found.update({(row.partition, row.offset): row.ms for row in after_noon.collect()})

    def feed(name: str, rows: list[tuple[int, int, int | None, str | None]]) -> None:
        """Write rows of (partition, offset, event time after noon, reason), recorded 99 ms after noon."""
        recorded = RECORDED + timedelta(milliseconds=99)
        times = [None if ms is None else RECORDED + timedelta(milliseconds=ms) for _, _, ms, _ in rows]
        full = [("t", row[0], row[1], time, recorded, row[3]) for row, time in zip(rows, times, strict=True)]
        spark.createDataFrame(full, columns).coalesce(1).write.parquet(str(tmp_path / name))
        next((tmp_path / name).glob("*.parquet")).rename(incoming / f"{name}.parquet")
        query.processAllAvailable()

    frame = spark.readStream.schema(columns).parquet(str(incoming))
    writer = fill_event_time(frame).writeStream.foreachBatch(collect).outputMode("append")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        feed("first", [(0, 2, None, None), (0, 0, 20, None), (0, 1, 10, None), (1, 0, None, None), (1, 1, 5, None)])
        assert found == {(0, 0): 20, (0, 1): 10, (0, 2): 20, (1, 0): 99, (1, 1): 5}
        # What was refused says nothing of the stream's time.
        feed("second", [(0, 3, 50, "future_time"), (0, 4, None, None), (1, 2, None, None), (1, 3, 200, None)])
        assert {place: found[place] for place in [(0, 3), (0, 4), (1, 2), (1, 3)]} == {
            (0, 3): 50,
            (0, 4): 20,
            (1, 2): 99,
            (1, 3): 200,
        }
    finally:
        query.stop()
