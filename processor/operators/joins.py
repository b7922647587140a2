"""Joins of a stream with tables, and the aggregate of what they give, as Spark's state operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from processor.operators import order
from processor.operators.aggregators import Aggregator
from processor.operators.keyed import AGGREGATE_COLUMNS, DELETES, GROUP, IS_TABLE, KeyProgram, KeyState
from processor.rows import (
    DELETED,
    DETAIL,
    KEY,
    OFFSET,
    ORIGIN,
    PARTITION,
    REASON,
    TABLE_KEY,
    TIMESTAMP,
    TOPIC,
    VALUE,
    VERDICT,
    DeadLetterReason,
)

_AGGREGATE_TYPES: Final = {
    TOPIC: StringType(),
    PARTITION: IntegerType(),
    OFFSET: LongType(),
    REASON: StringType(),
    DETAIL: StringType(),
    KEY: BinaryType(),
    VALUE: BinaryType(),
    TIMESTAMP: LongType(),
}


@dataclass(frozen=True)
class Lookup:
    """A table as a join sees it.

    Attributes:
        table: a parsed table (`parse_json_table`).
        on: the stream's column that names the row; compared as text with `table_key`.
        columns: new column -> the table's column.
        missing: dead-letter reason of an event whose row isn't there.
        name: for messages.

    """

    table: DataFrame
    on: str
    columns: Mapping[str, str]
    missing: str
    name: str


def stream_table_join(stream: DataFrame, lookup: Lookup) -> DataFrame:
    """Inner join: each event with the table's row as it is when the event is processed.

    Rows apply in the order of `order.by_time`; a later update changes later events only. Put the stream before the
    table wherever both are named: Spark asks sources for their ends in that order, so that a row written before an
    event is in the event's batch at the latest (holds for up to four sources a query).
    """
    united = _unite(stream, lookup)
    program = KeyProgram(tuple(united.columns), tuple(lookup.columns), lookup.missing, lookup.name, order.by_time)
    fields = {field.name: field for field in united.schema.fields}
    joined = _apply(united, program, StructType([fields[name] for name in program.out_columns]))
    return joined.withColumn(TIMESTAMP, F.timestamp_millis(TIMESTAMP))


def global_table_aggregate(stream: DataFrame, lookup: Lookup, aggregator: Aggregator) -> DataFrame:
    """Join with a global table and aggregate by the same key; gives a store's rows `key, value, timestamp`.

    All rows of the global table in a batch apply before its events. A key gives one record a batch, where its value
    changed, with the time of the latest event applied. Dead letters pass through.
    """
    united = _unite(stream, lookup)
    program = KeyProgram(
        tuple(united.columns), tuple(lookup.columns), lookup.missing, lookup.name, order.tables_first, aggregator
    )
    out = StructType([StructField(name, _AGGREGATE_TYPES[name]) for name in AGGREGATE_COLUMNS])
    return _apply(united, program, out).withColumn(TIMESTAMP, F.timestamp_millis(TIMESTAMP))


def _unite(stream: DataFrame, lookup: Lookup) -> DataFrame:
    """Put events and table rows in one frame, each with the key it is grouped by."""
    refused = F.col(REASON).isNotNull()
    no_key = ~refused & F.col(lookup.on).isNull()
    events = stream.withColumns(
        {
            REASON: F.when(no_key, DeadLetterReason.NULL_KEY.value).otherwise(F.col(REASON)),
            DETAIL: F.when(no_key, f"{lookup.on} is null").otherwise(F.col(DETAIL)),
            GROUP: _group(F.col(lookup.on)),
            IS_TABLE: F.lit(False),
            DELETES: F.lit(False),
        }
    )
    live = ~refused
    rows = lookup.table.select(
        *(F.when(refused, F.col(name)).alias(name) if name in (KEY, VALUE) else F.col(name) for name in ORIGIN),
        *VERDICT,
        _group(F.col(TABLE_KEY)).alias(GROUP),
        live.alias(IS_TABLE),
        (live & F.col(DELETED)).alias(DELETES),
        *(F.col(source).alias(name) for name, source in lookup.columns.items()),
    )
    return events.unionByName(rows, allowMissingColumns=True).withColumn(TIMESTAMP, F.unix_millis(TIMESTAMP))


def _group(key: Column) -> Column:
    """Group by the key; dead letters, which need no state, by where they came from, to spread them."""
    somewhere = F.concat(F.col(TOPIC), F.lit("-"), F.col(PARTITION).cast("string"))
    return F.when(F.col(REASON).isNull() & key.isNotNull(), key.cast("string")).otherwise(somewhere)


def _apply(united: DataFrame, program: KeyProgram, out: StructType) -> DataFrame:
    fields = {field.name: field for field in united.schema.fields}
    row_type = [StructField(name, fields[name].dataType) for name in program.table_columns]
    return united.groupBy(GROUP).transformWithState(
        statefulProcessor=_KeyProcessor(program, StructType(row_type)),
        outputStructType=StructType([StructField(field.name, field.dataType) for field in out.fields]),
        outputMode="Update",
        timeMode="None",
    )


class _KeyProcessor(StatefulProcessor):  # type: ignore[misc] # pyspark counts as untyped
    """Runs a key program against one state variable: a call to the JVM each to read and to write it."""

    def __init__(self, program: KeyProgram, row_type: StructType) -> None:
        self._program = program
        self._row_width = len(row_type.fields)
        present = [StructField("present", BooleanType()), StructField("aggregate", StringType())]
        self._state_type = StructType([*present, *row_type.fields])

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState("state", self._state_type)
        self._row = Row(*self._program.out_columns)

    def handleInputRows(  # noqa: N802 - Spark's names
        self,
        key: tuple[str],
        rows: Iterator[Row],
        timerValues: object,  # noqa: N803, ARG002
    ) -> Iterable[Row]:
        out, state = self._program.run(key[0], rows, self._load)
        if state is not None:
            self._save(state)
        return (self._row(*row) for row in out)

    def close(self) -> None:
        pass

    def _load(self) -> KeyState:
        kept = self._state.get()
        if kept is None:
            return KeyState()
        present, aggregate, *row = kept
        return KeyState(tuple(row) if present else None, aggregate)

    def _save(self, state: KeyState) -> None:
        if state.is_empty:
            self._state.clear()
            return
        row = state.row if state.row is not None else (None,) * self._row_width
        self._state.update((state.row is not None, state.aggregate, *row))
