"""Joins a table with the rows of another one that its foreign keys name."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import ByteType, StringType, StructField, StructType

from processor.operators.joins import without_null_keys
from processor.operators.refusals import require
from processor.operators.table_joins import JOINED_TYPE, Side, TableJoinType, joined_table
from processor.operators.workers.buckets import LETTER_TYPE, apply_by_key, keyed_rows, letter_columns
from processor.operators.workers.keyed import RowKind
from processor.operators.workers.subscriptions import (
    ACTION,
    FOREIGN_KEY,
    LEFT_KEY,
    PLACE,
    ROW,
    SubscriptionJoinProgram,
    SubscriptionProgram,
    place_of,
)
from processor.rows import DELETED, TABLE_KEY
from statehouse.errors import ConfigurationError

_SENT_TYPE: Final = StructType(
    [
        *LETTER_TYPE,
        StructField(PLACE, StringType()),
        StructField(ACTION, ByteType()),
        StructField(LEFT_KEY, StringType()),
        StructField(ROW, StringType()),
    ]
)


def foreign_key_join(left: Side, right: Side, foreign_key: Column | str, how: str = TableJoinType.INNER) -> DataFrame:
    """Join two tables where a left row names the key of its right row; return the changes of the joined table.

    `foreign_key` is a column of the left table, or an expression of its columns, and is compared as text with the right
    table's `table_key`. A left row without one (null) matches nothing. `how` is "inner", or "left": then left rows
    without a match have a joined row, with nulls in the right table's columns. Many left rows may name the same right
    row.

    The frame is as in `table_table_join`, by the left table's key: a change on either side changes all joined rows
    that it concerns, and a left row whose foreign key changes is joined with its new match, or withdrawn. A key that
    changed gives one row per batch, which joins what both tables hold after that batch.

    Raises:
        ConfigurationError: `how` is another one, both sides have a column of the same name, or one is no table.

    """
    if how not in {TableJoinType.INNER, TableJoinType.LEFT}:
        raise ConfigurationError(
            f"foreign_key_join: how={how!r} must be inner or left: rows have the left table's keys, and a right row "
            "without left rows has none"
        )
    shared = sorted(left.columns.keys() & right.columns.keys())
    if shared:
        raise ConfigurationError(
            f"foreign_key_join: both sides have {', '.join(shared)}: give one of them another name in its columns"
        )
    require(left.table, TABLE_KEY, DELETED)
    keeps_unmatched = how == TableJoinType.LEFT
    key = F.col(foreign_key) if isinstance(foreign_key, str) else foreign_key
    is_row = F.lit(RowKind.ROW.value)
    changes = keyed_rows(
        without_null_keys(left.table, TABLE_KEY),
        F.col(TABLE_KEY),
        is_row,
        [left.row.alias(ROW), key.cast("string").alias(FOREIGN_KEY)],
    )
    sent = apply_by_key([changes], SubscriptionProgram(keeps_unmatched), _SENT_TYPE)
    told = sent.select(*(column.alias(name) for name, column in letter_columns().items()), PLACE, ACTION, LEFT_KEY, ROW)
    payload = [F.col(ACTION), F.col(LEFT_KEY), F.col(ROW)]
    rights = keyed_rows(
        without_null_keys(right.table, TABLE_KEY),
        F.concat(F.lit(place_of("")), F.col(TABLE_KEY)),
        is_row,
        [right.row.alias(ROW)],
    )
    sides = [keyed_rows(told, F.col(PLACE), is_row, payload), rights]
    return joined_table(apply_by_key(sides, SubscriptionJoinProgram(keeps_unmatched), JOINED_TYPE), left, right)
