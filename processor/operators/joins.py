"""Joins of a stream with tables, and aggregates of the joined events, as Spark state operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import StructType

from processor.operators.aggregators import Aggregator
from processor.operators.order import Order, by_time, tables_first
from processor.operators.refusals import bookkept, refuse
from processor.operators.workers.buckets import LETTER_TYPE, apply_by_key, keyed_rows, letter_columns
from processor.operators.workers.keyed import AggregateProgram, JoinProgram, RowKind
from processor.operators.workers.packing import Packing, own_columns, renamed
from processor.operators.workers.raised import OnError
from processor.rows import DELETED, KEY, ORIGIN, REFUSAL, TABLE_KEY, VALUE, DeadLetterReason, quoted
from processor.spark.plans import cached


@dataclass(frozen=True)
class JoinedTable:
    """A table as a join sees it.

    Attributes:
        table: a parsed table (`parse_json_table`).
        on: the stream's column with the key of the row; compared as text with `table_key`.
        columns: new column -> the table's column.
        missing: dead-letter reason for an event without a row in the table; inner joins only.
        name: the table's name in messages.

    """

    table: DataFrame
    on: str
    columns: Mapping[str, str]
    missing: str
    name: str

    @property
    def row_schema(self) -> StructType:
        """The columns that the join adds to an event."""
        return self.table.select(*renamed(self.columns)).schema


class JoinType(StrEnum):
    """What happens to an event without a row in the table."""

    INNER = "inner"
    """It becomes a dead letter, so that no event is lost silently."""
    LEFT = "left"
    """It passes with nulls in the table's columns, also if it has no key to look up."""


def stream_table_join(stream: DataFrame, joined: JoinedTable, how: str = JoinType.INNER) -> DataFrame:
    """Join each event with the table's row at the time of processing; `how` is "inner" or "left".

    Rows and events apply in the order of `order.by_time`; an update of the table affects later events only. Declare
    the stream before the table: Spark asks sources for their ends in that order, so that a row written before an event
    is in the event's batch at the latest (true for up to four sources per query).
    """
    return _join(stream, joined, how, by_time)


def stream_global_table_join(stream: DataFrame, joined: JoinedTable, how: str = JoinType.INNER) -> DataFrame:
    """Join each event with a row of a global table; as `stream_table_join`, but rows apply before a batch's events.

    `joined.on` may be any column of the stream; it does what KeyValueMapper does in Kafka Streams.
    """
    return _join(stream, joined, how, tables_first)


def _join(stream: DataFrame, joined: JoinedTable, how: str, ordered: Order) -> DataFrame:
    is_inner = JoinType(how) is JoinType.INNER
    events = without_null_keys(stream, joined.on) if is_inner else bookkept(stream)
    own, row = Packing("event", _own_schema(events)), Packing("row", joined.row_schema)
    program = _program(joined, ordered) if is_inner else JoinProgram(ordered)
    put_out = apply_by_key(
        [_events(events, joined, own), _changes(joined, row)],
        program,
        StructType([*LETTER_TYPE, *own.travelling, *row.travelling]),
    )
    columns = {name: column.cast(events.schema[name].dataType) for name, column in letter_columns().items()}
    columns |= dict(zip(own.schema.names, own.unpacked(), strict=True))
    # A null key or value means something, and isn't added.
    names = [name for name in events.columns if name in stream.columns or name not in (KEY, VALUE)]
    return put_out.select(*(columns[name].alias(name) for name in names), *row.unpacked())


def global_table_aggregate(
    stream: DataFrame,
    joined: JoinedTable,
    aggregator: Aggregator,
    *,
    record_cache: bool = True,
    on_error: str = OnError.FAIL,
) -> DataFrame:
    """Join with a global table and aggregate by the same key; return a store's rows `key, value, timestamp`.

    The global table's rows in a batch apply before the events. The aggregator gets the event's own columns and the
    columns of the lookup, but not the columns of the Kafka record. A key whose value changed gives one record per
    batch, with the time of the latest event applied; with `record_cache=False` it gives one for each event that
    changed it. Dead letters pass through. `on_error` is as in `aggregate`.

    Raises:
        ValueError: `on_error` is unknown.

    """
    events = without_null_keys(stream, joined.on)
    own = Packing("event", _own_schema(events), as_json=True)
    row = Packing("row", joined.row_schema, as_json=True)
    join = _program(joined, tables_first)
    program = aggregate_program(
        aggregator, [own, row], join=join, record_cache=record_cache, on_error=OnError(on_error)
    )
    put_out = apply_by_key([_events(events, joined, own), _changes(joined, row)], program, LETTER_TYPE)
    return put_out.select(*records_or_letters(record_cache=record_cache))


def aggregate_program(
    aggregator: Aggregator,
    packings: Sequence[Packing],
    *,
    join: JoinProgram | None = None,
    record_cache: bool,
    on_error: OnError,
) -> AggregateProgram:
    """Return the program that aggregates rows with these packings' columns; for equal names the last packing wins."""
    fields = {packed: name for packing in packings for packed, name in packing.names.items()}
    return AggregateProgram(aggregator, fields, join, record_cache, on_error)


def rows_by_key(events: DataFrame) -> tuple[DataFrame, Packing]:
    """Return the rows of events by their `key`, as text, and how their own columns travel."""
    keyed = events.withColumn(KEY, F.col(KEY).cast("string"))
    own = Packing("event", keyed.select(*map(quoted, own_columns(keyed))).schema, as_json=True)
    return keyed_rows(keyed, F.col(KEY), F.lit(RowKind.EVENT.value), own.packed(), is_event=True), own


def records_or_letters(*, record_cache: bool) -> list[Column]:
    """Return the columns of a store's rows, which are records and dead letters."""
    columns = letter_columns() | ({VALUE: cached(F.col(VALUE))} if record_cache else {})
    return [column.alias(name) if name != VALUE else column for name, column in columns.items()]


def without_null_keys(stream: DataFrame, key: str) -> DataFrame:
    """Refuse events whose grouping column is null: they become dead letters."""
    needed = {key} & {KEY, TABLE_KEY}  # another one may be a field of a struct
    return refuse(bookkept(stream, *needed), (F.col(key).isNull(), DeadLetterReason.NULL_KEY, f"{key} is null"))


def _own_schema(events: DataFrame) -> StructType:
    return StructType([field for field in events.schema if field.name not in (*ORIGIN, *REFUSAL)])


def _events(events: DataFrame, joined: JoinedTable, own: Packing) -> DataFrame:
    return keyed_rows(events, F.col(joined.on), F.lit(RowKind.EVENT.value), own.packed(), is_event=True)


def _changes(joined: JoinedTable, row: Packing) -> DataFrame:
    kind = F.when(F.col(DELETED), RowKind.DELETE.value).otherwise(RowKind.ROW.value)
    table = bookkept(joined.table, TABLE_KEY, DELETED)
    return keyed_rows(table, F.col(TABLE_KEY), kind, row.packed(joined.columns))


def _program(joined: JoinedTable, ordered: Order) -> JoinProgram:
    return JoinProgram(ordered, joined.missing, f"not in {joined.name}")
