"""Joins two tables by key: a change on either side changes the joined row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from processor.operators.order import RecordPosition
from processor.operators.refusals import bookkept
from processor.operators.workers.buckets import LETTER_TYPE, apply_by_key, keyed_rows, letter_columns
from processor.operators.workers.joined_rows import LEFT, RIGHT, Joined, Sides, put_out
from processor.operators.workers.keyed import GROUP, ROWS, RowKind, States, positions, without_letters
from processor.operators.workers.packing import pack, renamed, unpack
from processor.rows import DELETED, KEY, ORIGIN, REASON, REFUSAL, TABLE_KEY, quoted

_ROW: Final = "row"
JOINED_TYPE: Final = StructType(
    [
        *LETTER_TYPE,
        StructField(DELETED, BooleanType()),
        StructField(LEFT, StringType()),
        StructField(RIGHT, StringType()),
    ]
)
_KEPT: Final = pa.schema([(GROUP, pa.binary()), (LEFT, pa.string()), (RIGHT, pa.string())])


class TableJoinType(StrEnum):
    """The keys that have a joined row."""

    INNER = "inner"
    """Keys in both tables."""
    LEFT = "left"
    """Keys in the left table."""
    OUTER = "outer"
    """Keys in either table."""


@dataclass(frozen=True)
class Side:
    """One table of a join: `table` as `parse_json_table` returns it, `columns` new column -> the table's column."""

    table: DataFrame
    columns: Mapping[str, str]

    @property
    def row(self) -> Column:
        """The row's columns as JSON text; null if the row is deleted."""
        return F.when(~F.col(DELETED), pack(*renamed(self.columns)))

    @property
    def row_schema(self) -> StructType:
        """The columns that this side adds to the joined row."""
        return self.table.select(*renamed(self.columns)).schema


class TableChange(NamedTuple):
    """The new row of a key in one table; None if it was deleted."""

    position: RecordPosition
    side: int
    row: str | None


@dataclass(frozen=True)
class TableJoinProgram:
    """Joins the changes of a bucket in a batch."""

    how: TableJoinType
    record_cache: bool = True

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the kept states."""
        return (ROWS,)

    def run(self, sides: Mapping[int, pa.Table], states: States) -> tuple[list[pa.Table], States]:
        """Return dead letters and the joined rows that changed, and the state to keep; side 0 is left, 1 right."""
        letters, by_key = [], defaultdict[bytes, list[TableChange]](list)
        for number, table in sides.items():
            live, refused = without_letters(table)
            letters.append(refused)
            columns = live[GROUP].to_pylist(), positions(live).each(), live[_ROW].to_pylist()
            for key, position, row in zip(*columns, strict=True):
                by_key[key].append(TableChange(position, number, row))
        kept = _kept(states.get(ROWS))
        joined: list[tuple[bytes, Joined]] = []
        for key, changes in by_key.items():
            changed_rows, kept[key] = self.of_key(changes, kept.get(key, Sides()))
            joined += [(key, each) for each in changed_rows]
        changed = {ROWS: _table(kept)} if by_key else {}
        return [*letters, put_out(joined)], changed

    def of_key(self, changes: Iterable[TableChange], sides: Sides) -> tuple[list[Joined], Sides]:
        """Return the changes of a key's joined row, and the key's rows afterwards."""
        out: list[Joined] = []
        ordered = sorted(changes, key=itemgetter(0))
        shown = self._joined(sides)
        for change in ordered:
            sides = Sides(change.row, sides.right) if change.side == 0 else Sides(sides.left, change.row)
            joined = self._joined(sides)
            if joined != shown and (change is ordered[-1] or not self.record_cache):
                out.append(Joined(change.position, joined))
                shown = joined
        return out, sides

    def _joined(self, sides: Sides) -> Sides | None:
        missing = {
            TableJoinType.INNER: None in sides,
            TableJoinType.LEFT: sides.left is None,
            TableJoinType.OUTER: sides == Sides(),
        }
        return None if missing[self.how] else sides


def _kept(table: pa.Table | None) -> dict[bytes, Sides]:
    if table is None:
        return {}
    keys, left, right = (column.to_pylist() for column in table.columns)
    return dict(zip(keys, map(Sides, left, right), strict=True))


def _table(kept: Mapping[bytes, Sides]) -> pa.Table:
    there = {key: sides for key, sides in kept.items() if sides != Sides()}
    left, right = ([sides[number] for sides in there.values()] for number in (0, 1))
    return pa.table([list(there), left, right], schema=_KEPT)


def table_table_join(
    left: Side, right: Side, how: str = TableJoinType.INNER, *, record_cache: bool = True
) -> DataFrame:
    """Join two tables by `table_key`; return the changes of the joined table, in the form of `parse_json_table`.

    The frame has `key`, `table_key`, `deleted`, the columns of both sides (null where a side has no row), the
    position of the change, and REFUSAL for dead letters. To make a store of it, set a value that is null for deleted
    rows:

        joined.withColumn("value", F.when(~F.col("deleted"), F.to_json(F.struct("name", "price"))))

    A key that changed gives one row per batch; with `record_cache=False` it gives one for each change. The changes of
    a batch apply by timestamp, then by partition and offset.
    """
    program = TableJoinProgram(TableJoinType(how), record_cache)
    joined = apply_by_key([_packed(side) for side in (left, right)], program, JOINED_TYPE)
    return joined_table(joined, left, right)


def joined_table(joined: DataFrame, left: Side, right: Side) -> DataFrame:
    """Return what a program put out with the columns of JOINED_TYPE, in the form of `parse_json_table`."""
    schemas = {LEFT: left.row_schema, RIGHT: right.row_schema}
    unpacked = joined.select(
        *(column.alias(name) for name, column in letter_columns().items()),
        F.when(F.col(REASON).isNull(), F.col(KEY).cast("string")).alias(TABLE_KEY),
        DELETED,
        *(unpack(name, schema) for name, schema in schemas.items()),
    )
    columns = [F.col(f"{name}.{quoted(column)}") for name, schema in schemas.items() for column in schema.names]
    return unpacked.select(*ORIGIN, TABLE_KEY, DELETED, *columns, *REFUSAL)


def _packed(side: Side) -> DataFrame:
    table = bookkept(side.table, TABLE_KEY, DELETED)
    return keyed_rows(table, F.col(TABLE_KEY), F.lit(RowKind.ROW.value), [side.row.alias(_ROW)])
