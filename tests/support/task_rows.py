"""Rows as the sink's task gets them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.rows import DETAIL, KEY, OFFSET, PARTITION, REASON, TOPIC, VALUE
from processor.sink.batch import described
from processor.sink.counts import BatchReport
from processor.sink.protocol import SinkTarget
from processor.sink.task_rows import OUTPUT, RECORD, RECORD_COLUMNS, ROW, SINK_PARTITION, SUFFIX, TIMESTAMP_MS
from processor.spark.task_classes import task_object

TASK_TYPE = pa.schema(
    [
        (SINK_PARTITION, pa.int32()),
        (OUTPUT, pa.int32()),
        (KEY, pa.binary()),
        (SUFFIX, pa.binary()),
        (VALUE, pa.binary()),
        (TIMESTAMP_MS, pa.int64()),
        (TOPIC, pa.string()),
        (PARTITION, pa.int32()),
        (OFFSET, pa.int64()),
        (REASON, pa.string()),
        (DETAIL, pa.string()),
    ]
)
_SPARK_TYPE: Final = (
    f"{OUTPUT} int, {KEY} binary, {SUFFIX} binary, {VALUE} binary, {TIMESTAMP_MS} bigint, {TOPIC} string, "
    f"{PARTITION} int, {OFFSET} bigint, {REASON} string, {DETAIL} string"
)


def sink_rows_frame(session: SparkSession, rows: Sequence[dict[str, Any]]) -> DataFrame:
    """Return rows, of RECORD_COLUMNS, as `sink_frame` makes them; what they lack is null, and a suffix empty."""
    none = dict.fromkeys(RECORD_COLUMNS) | {SUFFIX: b""}
    whole = [tuple((none | row)[name] for name in RECORD_COLUMNS) for row in rows]
    frame = session.createDataFrame(whole, _SPARK_TYPE)
    return frame.coalesce(1).select(F.lit(None).alias(ROW), F.struct(*RECORD_COLUMNS).alias(RECORD))


def write_rows(
    session: SparkSession,
    target: SinkTarget,
    batch_id: int,
    rows: Sequence[dict[str, Any]],
    *,
    tasks: int = 1,
    cache_bytes: int = 10_000_000,
) -> BatchReport:
    """Write rows as a batch; return what the tasks tell."""
    frame = sink_rows_frame(session, rows)
    sink = task_object(session, "statehouse.sink.Sink")
    text = sink.write(frame._jdf, 1, described(target), batch_id, tasks, tasks == 1, cache_bytes)
    return BatchReport.of(text)


def task_classes(session: SparkSession) -> Any:
    """Return the package of the task's classes: with it they can be made and called as in Java."""
    jvm: Any = session._jvm
    return jvm.statehouse.sink


def type_of(*columns: str) -> pa.Schema:
    """The types of some columns."""
    return pa.schema([TASK_TYPE.field(name) for name in columns])
