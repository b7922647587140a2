"""Makes records of a query's rows, by Spark's own expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.rows import DETAIL, KEY, OFFSET, PARTITION, REASON, TIMESTAMP, TOPIC, VALUE, quoted
from processor.sink.layouts import TOPIC_OUTPUT, FrameLayout
from processor.sink.partitions import placement_hashes
from processor.sink.task_rows import (
    OUTPUT,
    RECORD,
    RECORD_COLUMNS,
    ROW,
    SINK_PARTITION,
    SUFFIX,
    TASK_COLUMNS,
    TIMESTAMP_MS,
)

_HASH: Final = "_hash"
_OPTIONAL_TYPES = {TOPIC: "string", PARTITION: "int", OFFSET: "bigint", REASON: "string", DETAIL: "string"}


@dataclass(frozen=True, slots=True)
class OutputRows:
    """How an output selects a query's rows and makes records of them."""

    partition_count: int
    layout: FrameLayout = field(default_factory=FrameLayout)
    where: Column | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)


def sink_frame(frame: DataFrame, outputs: Sequence[OutputRows]) -> DataFrame:
    """Return a row per record for the sink's task: ROW, and RECORD with RECORD_COLUMNS.

    It is part of the query's own plan: Spark would take as long to plan it for each batch as to do the rest. Its
    optimizer must not leave out columns that no record needs, because a state operator's checkpoint may have them from
    the time when they were needed. So ROW has all.
    """
    return frame.select(F.struct("*").alias(ROW), _made(frame.columns, outputs))


def records(frame: DataFrame, outputs: Sequence[OutputRows]) -> DataFrame:
    """Return a row per record, as RECORD_COLUMNS; rows that can't be records become dead letters."""
    return frame.select(_made(frame.columns, outputs)).select(f"{RECORD}.*")


def _made(have: Sequence[str], outputs: Sequence[OutputRows]) -> Column:
    """Return the column of records; all of a row are made in one pass, so a query's operators don't run per output."""
    of_outputs = [_record(have, place, output) for place, output in enumerate(outputs)]
    can_be_refused = REASON in have
    if len(outputs) == 1 and outputs[0].where is None and not (outputs[0].columns and can_be_refused):
        return F.struct(*of_outputs[0]).alias(RECORD)
    refused = F.col(REASON).isNotNull() if can_be_refused else F.lit(False)
    made = []
    if can_be_refused:
        dead_letter = _record(have, 0, OutputRows(1, FrameLayout(TOPIC_OUTPUT)))
        made.append(F.when(refused, F.struct(*dead_letter)))
    for output, columns in zip(outputs, of_outputs, strict=True):
        wanted = ~refused if output.where is None else ~refused & output.where
        made.append(F.when(wanted, F.struct(*columns)))
    return F.explode(F.array_compact(F.array(*made))).alias(RECORD)


def placed_by_spark(unplaced: DataFrame, outputs: Sequence[OutputRows]) -> DataFrame:
    """Do what `partitions.placed` does, in Spark's plan, but leave KEY and SUFFIX apart.

    It costs a Python stage of its own.
    """
    partition_counts = [output.partition_count for output in outputs]
    hashed = unplaced.withColumn(_HASH, hash_column(F.when(F.col(REASON).isNull(), F.col(KEY))))
    of_output = F.array(*map(F.lit, partition_counts))[F.col(OUTPUT)]
    count = F.when(F.col(REASON).isNotNull(), F.lit(max(partition_counts))).otherwise(of_output)
    sink_partition = F.coalesce(F.col(_HASH), F.col(PARTITION), F.lit(0)) % count
    return hashed.withColumn(SINK_PARTITION, sink_partition).select(SINK_PARTITION, *RECORD_COLUMNS)


def hash_column(key: Column) -> Column:
    """Return `placement_hashes` of a column."""
    if hasattr(F, "arrow_udf"):
        return F.arrow_udf(placement_hashes, "int")(key)
    return F.pandas_udf(_series_hashes, "int")(key)  # Spark before 4.1


def _series_hashes(keys: pd.Series) -> pd.Series:
    return pd.Series(placement_hashes(pa.Array.from_pandas(keys, pa.binary())).to_pylist(), dtype="Int32")


def sink_rows(frame: DataFrame, outputs: Sequence[OutputRows]) -> DataFrame:
    """Return a query's rows as records that Spark has placed: TASK_COLUMNS. For operators on a partition's records."""
    placed = placed_by_spark(records(frame, outputs), outputs)
    record_key = F.when(F.col(REASON).isNotNull(), F.col(KEY)).otherwise(F.concat(KEY, SUFFIX))
    return placed.withColumn(KEY, record_key).select(*TASK_COLUMNS)


def _record(have: Sequence[str], place: int, output: OutputRows) -> list[Column]:
    """Return the columns of an output's record, without its partition."""
    source = {name: F.col(quoted(name)) for name in have} | dict(output.columns)
    columns: dict[str, Column] = {
        name: source[name].cast(kind) if name in source else F.lit(None).cast(kind)
        for name, kind in _OPTIONAL_TYPES.items()
    }
    columns |= {OUTPUT: F.lit(place)} | {name: source[name].cast("binary") for name in (KEY, VALUE)}
    stamped = source[TIMESTAMP].cast("timestamp") if TIMESTAMP in source else F.lit(None).cast("timestamp")
    columns[TIMESTAMP_MS] = F.unix_millis(stamped)
    reason, detail = columns[REASON], columns[DETAIL]
    for refusal in output.layout.refusals(source):
        is_first = reason.isNull() & refusal.condition
        detail = F.when(is_first, refusal.detail).otherwise(detail)
        reason = F.when(is_first, refusal.reason.value).otherwise(reason)
    columns |= {REASON: reason, DETAIL: detail}
    suffix = output.layout.suffix(source)
    columns[SUFFIX] = F.lit(b"") if suffix is None else suffix
    return [columns[name].alias(name) for name in RECORD_COLUMNS]
