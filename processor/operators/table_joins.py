"""Joins two tables by key: a change on either side changes the joined row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import itemgetter
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from processor.operators.buckets import LETTER_TYPE, apply_by_key, keyed_rows, letter_columns
from processor.operators.keyed import GROUP, ROWS, TIME, RowKind, States, positions, without_letters
from processor.operators.order import RecordPosition
from processor.operators.packing import pack, renamed, unpack
from processor.rows import DELETED, KEY, OFFSET, ORIGIN, PARTITION, REASON, REFUSAL, TABLE_KEY

_ROW: Final = "row"
_OUT: Final = pa.schema(
    [
        (KEY, pa.binary()),
        (TIME, pa.int64()),
        (PARTITION, pa.int32()),
        (OFFSET, pa.int64()),
        (DELETED, pa.bool_()),
        ("left", pa.string()),
        ("right", pa.string()),
    ]
)
_OUT_TYPE: Final = StructType(
    [
        *LETTER_TYPE,
        StructField(DELETED, BooleanType()),
        StructField("left", StringType()),
        StructField("right", StringType()),
    ]
)
_KEPT: Final = pa.schema([(GROUP, pa.binary()), ("left", pa.string()), ("right", pa.string())])


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


class Sides(NamedTuple):
    """The two rows of a key, as JSON text; None where a table has no row."""

    left: str | None = None
    right: str | None = None


class TableChange(NamedTuple):
    """The new row of a key in one table; None if it was deleted."""

    position: RecordPosition
    side: int
    row: str | None


class Joined(NamedTuple):
    """A change of the joined row: the new row, None if deleted, and the change that caused it."""

    position: RecordPosition
    rows: Sides | None


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
            put_out, kept[key] = self.of_key(changes, kept.get(key, Sides()))
            joined += [(key, each) for each in put_out]
        changed = {ROWS: _table(kept)} if by_key else {}
        return [*letters, _put_out(joined)], changed

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


def _put_out(joined: Sequence[tuple[bytes, Joined]]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {KEY: key, TIME: at.timestamp_ms * 1000, PARTITION: at.partition, OFFSET: at.offset, DELETED: rows is None}
            | (rows or Sides())._asdict()
            for key, (at, rows) in joined
        ],
        _OUT,
    )


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
    sides = (left, right)
    types = [side.table.select(*renamed(side.columns)).schema for side in sides]
    put_out = apply_by_key(
        [_packed(side) for side in sides], TableJoinProgram(TableJoinType(how), record_cache), _OUT_TYPE
    )
    is_joined = F.col(REASON).isNull()
    unpacked = put_out.select(
        *(column.alias(name) for name, column in letter_columns().items()),
        F.when(is_joined, F.col(KEY).cast("string")).alias(TABLE_KEY),
        DELETED,
        *(unpack(name, schema) for name, schema in zip(Sides._fields, types, strict=True)),
    )
    columns = [
        F.col(f"{name}.{column}") for name, schema in zip(Sides._fields, types, strict=True) for column in schema.names
    ]
    return unpacked.select(*ORIGIN, TABLE_KEY, DELETED, *columns, *REFUSAL)


def _packed(side: Side) -> DataFrame:
    row = F.when(~F.col(DELETED), pack(*renamed(side.columns)))
    return keyed_rows(side.table, F.col(TABLE_KEY), F.lit(RowKind.ROW.value), [row.alias(_ROW)])
