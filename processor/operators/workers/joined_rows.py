"""Rows of joined tables, as the programs that join tables put them out; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from processor.operators.order import RecordPosition
from processor.operators.workers.keyed import TIME
from processor.rows import DELETED, KEY, OFFSET, PARTITION

LEFT: Final = "left"
RIGHT: Final = "right"
JOINED: Final = pa.schema(
    [
        (KEY, pa.binary()),
        (TIME, pa.int64()),
        (PARTITION, pa.int32()),
        (OFFSET, pa.int64()),
        (DELETED, pa.bool_()),
        (LEFT, pa.string()),
        (RIGHT, pa.string()),
    ]
)


class Sides(NamedTuple):
    """The two rows of a key, as JSON text; None where a table has no row."""

    left: str | None = None
    right: str | None = None


class Joined(NamedTuple):
    """A change of the joined row: the new row, None if deleted, and the change that caused it."""

    position: RecordPosition
    rows: Sides | None


def put_out(joined: Sequence[tuple[bytes, Joined]]) -> pa.Table:
    """Return the changes of joined rows by key, as a table with the columns of JOINED."""
    rows = [each.rows or Sides() for _, each in joined]
    columns = [
        [key for key, _ in joined],
        [each.position.timestamp_ms * 1000 for _, each in joined],
        [each.position.partition for _, each in joined],
        [each.position.offset for _, each in joined],
        [each.rows is None for _, each in joined],
        [each.left for each in rows],
        [each.right for each in rows],
    ]
    return pa.table(columns, schema=JOINED)
