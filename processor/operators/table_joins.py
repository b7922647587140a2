"""Joins of two tables by key: each change of either side changes the joined row."""

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
from processor.operators.keyed import GROUP, ROWS, TIME, Kind, States, positions, without_letters
from processor.operators.order import Position
from processor.operators.packing import pack, renamed, unpack
from processor.rows import DELETED, KEY, OFFSET, ORIGIN, PARTITION, REASON, TABLE_KEY, VERDICT

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


class Sides(NamedTuple):
    """A key's rows as JSON text, None where a table has none."""

    left: str | None = None
    right: str | None = None


class Change(NamedTuple):
    """A table's new row of a key, None where it was deleted."""

    position: Position
    side: int
    row: str | None


class Joined(NamedTuple):
    """A change of the joined row: what it is now, None where it is deleted, and which change made it so."""

    position: Position
    rows: Sides | None


@dataclass(frozen=True)
class TableJoinProgram:
    """What happens with a bucket's changes of a batch."""

    how: TableJoinType
    record_cache: bool = True

    @property
    def states(self) -> tuple[str, ...]:
        """Names of what is kept."""
        return (ROWS,)

    def run(self, sides: Mapping[int, pa.Table], states: States) -> tuple[list[pa.Table], States]:
        """Return dead letters and the joined rows that changed, and what is kept, by the tables' numbers."""
        letters, by_key = [], defaultdict[bytes, list[Change]](list)
        for number, table in sides.items():
            live, refused = without_letters(table)
            letters.append(refused)
            columns = live[GROUP].to_pylist(), positions(live).each(), live[_ROW].to_pylist()
            for key, position, row in zip(*columns, strict=True):
                by_key[key].append(Change(position, number, row))
        kept = _kept(states.get(ROWS))
        joined: list[tuple[bytes, Joined]] = []
        for key, changes in by_key.items():
            put_out, kept[key] = self.of_key(changes, kept.get(key, Sides()))
            joined += [(key, each) for each in put_out]
        changed = {ROWS: _table(kept)} if by_key else {}
        return [*letters, _put_out(joined)], changed

    def of_key(self, changes: Iterable[Change], sides: Sides) -> tuple[list[Joined], Sides]:
        """Return the joined rows of a key that changed, and its rows after."""
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
    """Join two tables by `table_key`; gives the changes of the joined table, which is a parsed table again.

    It has `key` and `table_key`, `deleted`, the sides' columns (null where a side has no row), the place of the change
    that made it, and the verdict of dead letters. Make a store of it with a value that is null where it is deleted:

        joined.withColumn("value", F.when(~F.col("deleted"), F.to_json(F.struct("name", "price"))))

    A key gives one row a batch, where it changed; with `record_cache=False` one for each change. Changes of a batch
    apply by timestamp, then by partition and offset.
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
    return unpacked.select(*ORIGIN, TABLE_KEY, DELETED, *columns, *VERDICT)


def _packed(side: Side) -> DataFrame:
    row = F.when(~F.col(DELETED), pack(*renamed(side.columns)))
    return keyed_rows(side.table, F.col(TABLE_KEY), F.lit(Kind.ROW.value), [row.alias(_ROW)])
