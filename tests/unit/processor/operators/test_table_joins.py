"""Joins of tables, change by change."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from processor.operators.table_joins import TableJoinProgram, TableJoinType
from processor.operators.workers.joined_rows import Sides
from processor.operators.workers.keyed import GROUP, KIND, LETTER, ROWS, TIME, RowKind
from processor.rows import OFFSET, PARTITION, REASON

NOTHING, BOTH = Sides(), Sides("l", "r")
L, R = Sides("l", None), Sides(None, "r")


class Input(NamedTuple):
    side: int
    row: str | None
    time: int = 1
    reason: str | None = None


def left(row: str | None, time: int = 1) -> Input:
    return Input(0, row, time)


def right(row: str | None, time: int = 1) -> Input:
    return Input(1, row, time)


def run(how: str, state: Sides, *rows: Input, record_cache: bool = True):
    """Return what is put out, as (deleted, left, right) or a dead letter's reason, and the state after it."""
    kept = [] if state == NOTHING else [{GROUP: b"k", "left": state.left, "right": state.right}]
    kept_type = pa.schema([(GROUP, pa.binary()), ("left", pa.string()), ("right", pa.string())])
    states = {ROWS: pa.Table.from_pylist(kept, kept_type)} if kept else {}
    sides = {side: _table([row for row in rows if row.side == side]) for side in {row.side for row in rows}}
    out, changed = TableJoinProgram(TableJoinType(how), record_cache).run(sides, states)
    put_out = [row for table in out for row in table.to_pylist()]
    after = (dict(states) | dict(changed)).get(ROWS, pa.Table.from_pylist([], kept_type)).to_pylist()
    assert [row[GROUP] for row in after] == [b"k"] * len(after)
    return (
        [row.get(REASON) or (row["deleted"], row["left"], row["right"]) for row in put_out],
        Sides(after[0]["left"], after[0]["right"]) if after else NOTHING,
    )


def _table(rows: list[Input]) -> pa.Table:
    kinds = [RowKind.ROW if row.reason is None else RowKind.DEAD_LETTER for row in rows]
    groups = [b"k" if row.reason is None else None for row in rows]
    columns: dict[str, Any] = {name: pa.array([None for _ in rows], pa.binary()) for name in LETTER}
    columns |= {GROUP: pa.array(groups, pa.binary()), KIND: pa.array([kind.value for kind in kinds], pa.int8())}
    columns |= {TIME: [row.time * 1000 for row in rows], PARTITION: [0 for _ in rows], OFFSET: [0 for _ in rows]}
    columns |= {REASON: pa.array([row.reason for row in rows], pa.string())}
    return pa.table(columns | {"row": pa.array([row.row for row in rows], pa.string())})


@pytest.mark.feature("table-table-join")
@pytest.mark.parametrize(
    ("how", "left_alone", "right_alone"),
    [
        ("inner", [], []),
        ("left", [(False, "l", None)], []),
        ("outer", [(False, "l", None)], [(False, None, "r")]),
    ],
)
def test_who_has_a_joined_row(how: str, left_alone: list[Any], right_alone: list[Any]):
    assert run(how, NOTHING, left("l")) == (left_alone, L)
    assert run(how, NOTHING, right("r")) == (right_alone, R)
    joined = ([(False, "l", "r")], BOTH)
    assert run(how, L, right("r")) == joined
    assert run(how, R, left("l")) == joined


@pytest.mark.feature("table-table-join")
@pytest.mark.parametrize(
    ("how", "without_left", "without_right"),
    [
        ("inner", (True, None, None), (True, None, None)),
        ("left", (True, None, None), (False, "l", None)),
        ("outer", (False, None, "r"), (False, "l", None)),
    ],
)
def test_a_delete_takes_the_joined_row_or_a_side_of_it(how: str, without_left: Any, without_right: Any):
    assert run(how, BOTH, left(None)) == ([without_left], R)
    assert run(how, BOTH, right(None)) == ([without_right], L)


def test_what_was_never_joined_is_not_deleted():
    assert run("inner", L, left(None)) == ([], NOTHING)
    assert run("inner", NOTHING, right(None)) == ([], NOTHING)


def test_a_batch_gives_its_last_row_or_each_of_them():
    rows = [right("r3", 3), left("l1", 1), right("r2", 2)]
    assert run("inner", NOTHING, *rows)[0] == [(False, "l1", "r3")]
    assert run("inner", NOTHING, *rows, record_cache=False)[0] == [(False, "l1", "r2"), (False, "l1", "r3")]
    back = [right(None, 1), right("r", 2)]
    assert run("inner", BOTH, *back)[0] == [], "nothing has changed in the end"


def test_dead_letters_pass_through():
    assert run("inner", BOTH, Input(0, None, 1, "not_json")) == (["not_json"], BOTH)
