"""Event times that records say themselves: which texts are times, and what happens to the others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.operators.event_time import read_event_time
from processor.rows import RECORD_TIME
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


@pytest.mark.feature("event-times-payload")
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
