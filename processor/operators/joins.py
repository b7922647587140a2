"""Joins of a stream with tables, and the aggregate of what they give, as Spark's state operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.operators import order
from processor.operators.aggregators import Aggregator
from processor.operators.buckets import apply_by_key, keyed_rows
from processor.operators.keyed import EVENT, MISSING, ROW, KeyProgram, Kind
from processor.operators.order import Order
from processor.operators.packing import pack, renamed, unpack
from processor.operators.verdicts import refuse
from processor.plans import cached
from processor.rows import (
    DELETED,
    DETAIL,
    KEY,
    ORIGIN,
    REASON,
    TABLE_KEY,
    TIMESTAMP,
    VALUE,
    VERDICT,
    DeadLetterReason,
)

_JOIN_TYPE: Final = f"{EVENT} string, {ROW} string, {MISSING} string"
AGGREGATE_TYPE: Final = f"{KEY} binary, {VALUE} binary, {TIMESTAMP} long, {EVENT} string, {MISSING} string"


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
    return _join(stream, lookup, how, order.by_time)


def stream_global_table_join(stream: DataFrame, lookup: Lookup, how: str = JoinType.INNER) -> DataFrame:
    """Join each event with a global table's row: as `stream_table_join`, but a batch's rows apply before its events.

    `lookup.on` may be any column of the stream: the key that Kafka Streams' KeyValueMapper gives.
    """
    return _join(stream, lookup, how, order.tables_first)


def _join(stream: DataFrame, lookup: Lookup, how: str, ordered: Callable[..., Order]) -> DataFrame:
    is_inner = JoinType(how) is JoinType.INNER
    events = without_null_keys(stream, lookup.on) if is_inner else stream
    program = KeyProgram(lookup.name if is_inner else None, ordered)
    put_out = apply_by_key(_unite(events, lookup), program, _JOIN_TYPE)
    row_type = lookup.table.select(*renamed(lookup.columns)).schema
    unpacked = put_out.select(unpack(EVENT, events.schema), unpack(ROW, row_type), MISSING)
    return unpacked.select(*_event_columns(events.columns, lookup), *(f"{ROW}.{name}" for name in lookup.columns))


def global_table_aggregate(
    stream: DataFrame, lookup: Lookup, aggregator: Aggregator, *, record_cache: bool = True
) -> DataFrame:
    """Join with a global table and aggregate by the same key; gives a store's rows `key, value, timestamp`.

    All rows of the global table in a batch apply before its events. A key gives one record a batch, where its value
    changed, with the time of the latest event applied; with `record_cache=False` one for each event that changed it.
    Dead letters pass through.
    """
    events = without_null_keys(stream, lookup.on)
    program = KeyProgram(lookup.name, order.tables_first, aggregator, record_cache)
    put_out = apply_by_key(_unite(events, lookup), program, AGGREGATE_TYPE)
    refused = events.select(*ORIGIN, *VERDICT)
    unpacked = put_out.select(KEY, VALUE, TIMESTAMP, unpack(EVENT, refused.schema), MISSING)
    letters = dict(zip(refused.columns, _event_columns(refused.columns, lookup), strict=True))
    return unpacked.select(*records_or_letters(letters, record_cache=record_cache))


def records_or_letters(letters: Mapping[str, Column], *, record_cache: bool) -> list[Column]:
    """Return a store's rows: of a record the letter is null, of a dead letter the record."""
    own = {KEY: F.col(KEY), VALUE: F.col(VALUE), TIMESTAMP: F.timestamp_millis(TIMESTAMP)}
    columns = {name: F.coalesce(own[name], each) if name in own else each for name, each in letters.items()}
    aliased = {name: column.alias(name) for name, column in columns.items()}
    return list((aliased | {VALUE: cached(columns[VALUE])} if record_cache else aliased).values())


def without_null_keys(stream: DataFrame, key: str) -> DataFrame:
    """Make dead letters of events that have nothing in the column which they are grouped by."""
    return refuse(stream, (F.col(key).isNull(), DeadLetterReason.NULL_KEY, f"{key} is null"))


def _unite(events: DataFrame, lookup: Lookup) -> DataFrame:
    """Put events and table rows in one frame, each with the key it is grouped by, its kind and its content packed."""
    event = pack(*events.columns)
    packed_events = keyed_rows(events, F.col(lookup.on), F.lit(Kind.EVENT.value), event, letter=event)
    kind = F.when(F.col(DELETED), Kind.DELETE.value).otherwise(Kind.ROW.value)
    return packed_events.union(keyed_rows(lookup.table, F.col(TABLE_KEY), kind, pack(*renamed(lookup.columns))))


def _event_columns(names: Iterable[str], lookup: Lookup) -> list[Column]:
    """Return an event's columns, the verdict with what the join found missing."""
    missing = F.col(MISSING)
    found = {
        REASON: F.coalesce(F.when(missing.isNotNull(), lookup.missing), F.col(f"{EVENT}.{REASON}")),
        DETAIL: F.coalesce(missing, F.col(f"{EVENT}.{DETAIL}")),
    }
    return [found.get(name, F.col(f"{EVENT}.{name}")).alias(name) for name in names]
