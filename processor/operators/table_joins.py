"""Joins of two tables by key: each change of either side changes the joined row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.operators import order
from processor.operators.buckets import apply_by_key, keyed_rows
from processor.operators.keyed import EVENT, InRow, KeyState, Kind, OutRow
from processor.operators.order import Position
from processor.operators.packing import pack, renamed, unpack
from processor.rows import (
    DELETED,
    KEY,
    OFFSET,
    ORIGIN,
    PARTITION,
    TABLE_KEY,
    TIMESTAMP,
    VERDICT,
)

_LEFT: Final = "_left"
_RIGHT: Final = "_right"
_OUT_COLUMNS: Final = (TABLE_KEY, DELETED, _LEFT, _RIGHT, TIMESTAMP, PARTITION, OFFSET, EVENT)
_OUT_TYPE: Final = (
    f"{TABLE_KEY} string, {DELETED} boolean, {_LEFT} string, {_RIGHT} string, {TIMESTAMP} bigint, {PARTITION} int, "
    f"{OFFSET} bigint, {EVENT} string"
)


class TableJoinType(StrEnum):
    """For which keys there is a joined row."""

    INNER = "inner"
    """Those in both tables."""
    LEFT = "left"
    """Those in the left one."""
    OUTER = "outer"
    """Those in either."""


@dataclass(frozen=True)
class Side:
    """A table of a join. `table` is a parsed one (`parse_json_table`), `columns`: new column -> the table's column."""

    table: DataFrame
    columns: Mapping[str, str]


@dataclass(frozen=True)
class TableJoinProgram:
    """What happens with a key's rows of a batch. The state's row is the left table's, its aggregate the right's."""

    how: TableJoinType
    record_cache: bool = True

    @property
    def out_columns(self) -> tuple[str, ...]:
        """Names of the columns put out, in order."""
        return _OUT_COLUMNS

    def run(self, key: str, rows: Iterable[InRow], state: KeyState) -> tuple[list[OutRow], KeyState | None]:
        """Return the joined rows that changed, and the new state; None where it stays as it is."""
        out: list[OutRow] = []
        changes: list[tuple[order.Order, Kind, Position, str]] = []
        for _, number, *place, payload in rows:
            kind, position = Kind(number), Position(*place)
            if kind is Kind.DEAD_LETTER:
                out.append((*[None] * 7, payload))
            else:
                changes.append((order.by_time(position, is_table=True), kind, position, payload))
        shown, before = self._joined(state), state
        for place_in_batch, (_, kind, position, payload) in enumerate(sorted(changes, key=lambda change: change[0])):
            state = _with_row(state, kind, payload)
            is_last = place_in_batch == len(changes) - 1
            joined = self._joined(state)
            if joined != shown and (is_last or not self.record_cache):
                left, right = joined or (None, None)
                out.append((key, joined is None, left, right, *position, None))
                shown = joined
        return out, None if state == before else state

    def _joined(self, state: KeyState) -> tuple[str | None, str | None] | None:
        left, right = state.row, state.aggregate
        missing = {
            TableJoinType.INNER: left is None or right is None,
            TableJoinType.LEFT: left is None,
            TableJoinType.OUTER: left is None and right is None,
        }
        return None if missing[self.how] else (left, right)


def _with_row(state: KeyState, kind: Kind, payload: str) -> KeyState:
    match kind:
        case Kind.ROW:
            return KeyState(payload, state.aggregate)
        case Kind.DELETE:
            return KeyState(None, state.aggregate)
        case Kind.RIGHT_ROW:
            return KeyState(state.row, payload)
        case _:
            return KeyState(state.row, None)


def table_table_join(
    left: Side, right: Side, how: str = TableJoinType.INNER, *, record_cache: bool = True
) -> DataFrame:
    """Join two tables by `table_key`; gives the changes of the joined table, which is a parsed table again.

    It has `key` and `table_key`, `deleted`, the sides' columns (null where a side has no row), the place of the change
    that made it, and the verdict of dead letters. Make a store of it with a value that is null where it is deleted:

        joined.withColumn("value", F.when(~F.col("deleted"), F.to_json(F.struct("name", "price"))))

    A key gives one row a batch, where it changed; with `record_cache=False` one for each change. Changes of a batch
    apply by timestamp, then by partition and offset.
    """
    united = _packed(left, Kind.ROW, Kind.DELETE).union(_packed(right, Kind.RIGHT_ROW, Kind.RIGHT_DELETE))
    program = TableJoinProgram(TableJoinType(how), record_cache)
    put_out = apply_by_key(united, program, _OUT_TYPE)
    letters = left.table.select(*ORIGIN, *VERDICT)
    types = {name: side.table.select(*renamed(side.columns)).schema for name, side in ((_LEFT, left), (_RIGHT, right))}
    unpacked = put_out.select(
        TABLE_KEY,
        DELETED,
        TIMESTAMP,
        PARTITION,
        OFFSET,
        unpack(EVENT, letters.schema),
        *(unpack(n, t) for n, t in types.items()),
    )
    place = {TIMESTAMP: F.timestamp_millis(TIMESTAMP), PARTITION: F.col(PARTITION), OFFSET: F.col(OFFSET)}
    place |= {KEY: F.col(TABLE_KEY).cast("binary")}
    origin = [
        F.coalesce(place[n], F.col(f"{EVENT}.{n}")).alias(n) if n in place else F.col(f"{EVENT}.{n}") for n in ORIGIN
    ]
    sides = [F.col(f"{name}.{column}") for name, side in ((_LEFT, left), (_RIGHT, right)) for column in side.columns]
    return unpacked.select(*origin, TABLE_KEY, DELETED, *sides, *(F.col(f"{EVENT}.{n}") for n in VERDICT))


def _packed(side: Side, row: Kind, delete: Kind) -> DataFrame:
    kind = F.when(F.col(DELETED), delete.value).otherwise(row.value)
    return keyed_rows(side.table, F.col(TABLE_KEY), kind, pack(*renamed(side.columns)))
