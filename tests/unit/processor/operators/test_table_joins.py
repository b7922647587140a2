"""Joins of tables, change by change."""

from __future__ import annotations

from typing import Any

import pytest

from processor.operators.keyed import KeyState, Kind
from processor.operators.table_joins import TableJoinProgram, TableJoinType

L, R = KeyState("l", None), KeyState(None, "r")
BOTH = KeyState("l", "r")


def change(kind: Kind, payload: str, time: int = 1, offset: int = 0) -> tuple[Any, ...]:
    return ("k", kind.value, time, 0, offset, payload)


def run(how: str, state: KeyState, *rows: tuple[Any, ...], record_cache: bool = True):
    """Return what is put out, as (deleted, left, right) or the dead letter, and the state after it."""
    out, after = TableJoinProgram(TableJoinType(how), record_cache).run("k", rows, state)
    return [row[-1] or row[1:4] for row in out], after


@pytest.mark.parametrize(
    ("how", "left_alone", "right_alone"),
    [
        ("inner", [], []),
        ("left", [(False, "l", None)], []),
        ("outer", [(False, "l", None)], [(False, None, "r")]),
    ],
)
def test_who_has_a_joined_row(how: str, left_alone: list[Any], right_alone: list[Any]):
    nothing = KeyState()
    assert run(how, nothing, change(Kind.ROW, "l")) == (left_alone, L)
    assert run(how, nothing, change(Kind.RIGHT_ROW, "r")) == (right_alone, R)
    joined = ([(False, "l", "r")], BOTH)
    assert run(how, L, change(Kind.RIGHT_ROW, "r")) == joined
    assert run(how, R, change(Kind.ROW, "l")) == joined


@pytest.mark.parametrize(
    ("how", "without_left", "without_right"),
    [
        ("inner", (True, None, None), (True, None, None)),
        ("left", (True, None, None), (False, "l", None)),
        ("outer", (False, None, "r"), (False, "l", None)),
    ],
)
def test_a_delete_takes_the_joined_row_or_a_side_of_it(how: str, without_left: Any, without_right: Any):
    assert run(how, BOTH, change(Kind.DELETE, "")) == ([without_left], R)
    assert run(how, BOTH, change(Kind.RIGHT_DELETE, "")) == ([without_right], L)


def test_what_was_never_joined_is_not_deleted():
    assert run("inner", L, change(Kind.DELETE, "")) == ([], KeyState())
    assert run("inner", KeyState(), change(Kind.RIGHT_DELETE, "")) == ([], None)


def test_a_batch_gives_its_last_row_or_each_of_them():
    rows = [change(Kind.RIGHT_ROW, "r3", 3), change(Kind.ROW, "l1", 1), change(Kind.RIGHT_ROW, "r2", 2)]
    assert run("inner", KeyState(), *rows)[0] == [(False, "l1", "r3")]
    assert run("inner", KeyState(), *rows, record_cache=False)[0] == [(False, "l1", "r2"), (False, "l1", "r3")]
    back = [change(Kind.RIGHT_DELETE, "", 1), change(Kind.RIGHT_ROW, "r", 2)]
    assert run("inner", BOTH, *back)[0] == [], "nothing has changed in the end"


def test_dead_letters_pass_through():
    assert run("inner", BOTH, change(Kind.DEAD_LETTER, "letter")) == (["letter"], None)
