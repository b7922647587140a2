"""Joins of a stream with tables, and the aggregate of what they give, as Spark's state operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import StructType

from processor.operators.aggregators import Aggregator
from processor.operators.buckets import LETTER_TYPE, apply_by_key, keyed_rows, letter_columns
from processor.operators.keyed import AggregateProgram, JoinProgram, Kind
from processor.operators.order import Order, by_time, tables_first
from processor.operators.packing import Packing, renamed
from processor.operators.verdicts import refuse
from processor.plans import cached
from processor.rows import (
    DELETED,
    ORIGIN,
    TABLE_KEY,
    VALUE,
    VERDICT,
    DeadLetterReason,
)


@dataclass(frozen=True)
class Lookup:
    """A table as a join sees it.

    Attributes:
        table: a parsed table (`parse_json_table`).
        on: the stream's column that names the row; compared as text with `table_key`.
        columns: new column -> the table's column.
        missing: dead-letter reason of an event whose row isn't there; inner joins only.
        name: for messages.

    """

    table: DataFrame
    on: str
    columns: Mapping[str, str]
    missing: str
    name: str

    @property
    def row_schema(self) -> StructType:
        """The columns that an event gets."""
        return self.table.select(*renamed(self.columns)).schema


class JoinType(StrEnum):
    """What becomes of an event whose row isn't in the table."""

    INNER = "inner"
    """It becomes a dead letter: nothing is lost without a word."""
    LEFT = "left"
    """It goes on with nulls in the place of the row's columns, also where it has no key to look up."""


def stream_table_join(stream: DataFrame, lookup: Lookup, how: str = JoinType.INNER) -> DataFrame:
    """Join each event with the table's row as it is when the event is processed; `how` is "inner" or "left".

    Rows apply in the order of `order.by_time`; a later update changes later events only. Put the stream before the
    table wherever both are named: Spark asks sources for their ends in that order, so that a row written before an
    event is in the event's batch at the latest (holds for up to four sources a query).
    """
    return _join(stream, lookup, how, by_time)


def stream_global_table_join(stream: DataFrame, lookup: Lookup, how: str = JoinType.INNER) -> DataFrame:
    """Join each event with a global table's row: as `stream_table_join`, but a batch's rows apply before its events.

    `lookup.on` may be any column of the stream: the key that Kafka Streams' KeyValueMapper gives.
    """
    return _join(stream, lookup, how, tables_first)


def _join(stream: DataFrame, lookup: Lookup, how: str, ordered: Order) -> DataFrame:
    is_inner = JoinType(how) is JoinType.INNER
    events = without_null_keys(stream, lookup.on) if is_inner else stream
    own, row = Packing("event", _own_schema(events)), Packing("row", lookup.row_schema)
    program = _program(lookup, ordered) if is_inner else JoinProgram(ordered)
    put_out = apply_by_key(
        [_events(events, lookup, own), _changes(lookup, row)],
        program,
        StructType([*LETTER_TYPE, *own.travelling, *row.travelling]),
    )
    columns = {name: column.cast(events.schema[name].dataType) for name, column in letter_columns().items()}
    columns |= dict(zip(own.schema.names, own.unpacked(), strict=True))
    return put_out.select(*(columns[name].alias(name) for name in events.columns), *row.unpacked())


def global_table_aggregate(
    stream: DataFrame, lookup: Lookup, aggregator: Aggregator, *, record_cache: bool = True
) -> DataFrame:
    """Join with a global table and aggregate by the same key; gives a store's rows `key, value, timestamp`.

    All rows of the global table in a batch apply before its events. The aggregator sees the event's own columns and
    those of the lookup, but not the record that the event came in. A key gives one record a batch, where its value
    changed, with the time of the latest event applied; with `record_cache=False` one for each event that changed it.
    Dead letters pass through.
    """
    events = without_null_keys(stream, lookup.on)
    own = Packing("event", _own_schema(events), as_json=True)
    row = Packing("row", lookup.row_schema, as_json=True)
    join = _program(lookup, tables_first)
    program = aggregate_program(aggregator, [own, row], join=join, record_cache=record_cache)
    put_out = apply_by_key([_events(events, lookup, own), _changes(lookup, row)], program, LETTER_TYPE)
    return put_out.select(*records_or_letters(record_cache=record_cache))


def aggregate_program(
    aggregator: Aggregator, packings: Sequence[Packing], *, join: JoinProgram | None = None, record_cache: bool
) -> AggregateProgram:
    """Return what aggregates rows with the columns of these packings, of later ones where several have one."""
    fields = {packed: name for packing in packings for packed, name in packing.names.items()}
    return AggregateProgram(aggregator, fields, join, record_cache)


def records_or_letters(*, record_cache: bool) -> list[Column]:
    """Return a store's rows: records and dead letters."""
    columns = letter_columns() | ({VALUE: cached(F.col(VALUE))} if record_cache else {})
    return [column.alias(name) if name != VALUE else column for name, column in columns.items()]


def without_null_keys(stream: DataFrame, key: str) -> DataFrame:
    """Make dead letters of events that have nothing in the column which they are grouped by."""
    return refuse(stream, (F.col(key).isNull(), DeadLetterReason.NULL_KEY, f"{key} is null"))


def _own_schema(events: DataFrame) -> StructType:
    return StructType([field for field in events.schema if field.name not in (*ORIGIN, *VERDICT)])


def _events(events: DataFrame, lookup: Lookup, own: Packing) -> DataFrame:
    return keyed_rows(events, F.col(lookup.on), F.lit(Kind.EVENT.value), own.packed(), is_event=True)


def _changes(lookup: Lookup, row: Packing) -> DataFrame:
    kind = F.when(F.col(DELETED), Kind.DELETE.value).otherwise(Kind.ROW.value)
    return keyed_rows(lookup.table, F.col(TABLE_KEY), kind, row.packed(lookup.columns))


def _program(lookup: Lookup, ordered: Order) -> JoinProgram:
    return JoinProgram(ordered, lookup.missing, f"not in {lookup.name}")
