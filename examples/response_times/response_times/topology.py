"""The topology: the key of a request is its path; each path and minute has a histogram of how long answers took.

Run it with `statehouse process response_times.topology`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from processor.application import Application
from processor.operators.json_records import FieldType, parse_json
from processor.rows import KEY, REASON, TIMESTAMP, VALUE, WINDOW

from .histograms import BUCKETS, bounds_ms

application_id = "response-times"

REQUESTS = "requests"
STORE = "response-times"
KIND = "histogram"

_GRACE: Final = timedelta(seconds=10)
_SIZE: Final = timedelta(minutes=1)


def build(app: Application) -> None:
    """Declare the source, the query and the store."""
    requests = parse_json(app.stream(REQUESTS), {"ms": FieldType.NUMBER}).where(F.col(REASON).isNull())
    app.window_store(STORE, histograms(requests), _SIZE, kind=KIND, grace=_GRACE, retention=timedelta(hours=6))


def histograms(requests: DataFrame) -> DataFrame:
    """Return the histogram of a path and minute each time a batch changes it: Spark's own aggregate, no Python."""
    took = F.col("ms")
    counts = []
    for bucket in range(BUCKETS):
        from_ms, below_ms = bounds_ms(bucket)
        counts.append(F.count_if((took >= from_ms) & (took < below_ms)))
    return (
        requests.where((took >= 0) & F.col(KEY).isNotNull())
        .withColumn(KEY, F.col(KEY).cast("string"))
        .withWatermark(TIMESTAMP, f"{_GRACE.total_seconds()} seconds")
        .groupBy(F.window(TIMESTAMP, f"{_SIZE.total_seconds()} seconds").alias(WINDOW), KEY)
        .agg(F.to_json(F.array(*counts)).alias(VALUE))
    )
