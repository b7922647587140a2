"""Where left keys are subscribed, and what places put out, one case at a time."""

from __future__ import annotations

import pyarrow as pa
import pytest

from processor.operators.order import RecordPosition
from processor.operators.workers.joined_rows import Joined, Sides
from processor.operators.workers.keyed import KIND, LETTER, RowKind
from processor.operators.workers.subscriptions import (
    RowChange,
    SubscriptionAction,
    SubscriptionJoinProgram,
    SubscriptionProgram,
    SubscriptionRow,
    SubscriptionUpdate,
)
from processor.rows import REASON

AT, LATER = RecordPosition(1, 0, 5), RecordPosition(2, 0, 0)
SUBSCRIBE, MOVE_IN = SubscriptionAction.SUBSCRIBE, SubscriptionAction.MOVE_IN
MOVE_OUT, UNSUBSCRIBE = SubscriptionAction.MOVE_OUT, SubscriptionAction.UNSUBSCRIBE

INNER, LEFT = False, True


@pytest.mark.parametrize(
    ("keeps_unmatched", "row", "foreign_key", "before", "told"),
    [
        (INNER, "l", "a", None, [("=a", SUBSCRIBE)]),
        (INNER, "l", "a", "=a", [("=a", SUBSCRIBE)]),
        (INNER, "l", "b", "=a", [("=a", MOVE_OUT), ("=b", MOVE_IN)]),
        (INNER, "l", None, "=a", [("=a", UNSUBSCRIBE)]),
        (INNER, None, "a", "=a", [("=a", UNSUBSCRIBE)]),
        (INNER, "l", None, None, []),
        (INNER, None, None, None, []),
        (LEFT, "l", None, None, [("!k", SUBSCRIBE)]),
        (LEFT, "l", None, "=a", [("=a", MOVE_OUT), ("!k", MOVE_IN)]),
        (LEFT, "l", "a", "!k", [("!k", MOVE_OUT), ("=a", MOVE_IN)]),
        (LEFT, None, None, "!k", [("!k", UNSUBSCRIBE)]),
    ],
)
def test_a_left_rows_place_is_its_foreign_key(
    keeps_unmatched: bool,
    row: str | None,
    foreign_key: str | None,
    before: str | None,
    told: list[tuple[str, SubscriptionAction]],
):
    sent = SubscriptionProgram(keeps_unmatched).of_key("k", RowChange(AT, row, foreign_key), before)
    assert [(each.place, each.action) for each in sent] == told
    assert [each.row for each in sent] == [row if action in {SUBSCRIBE, MOVE_IN} else None for _, action in told]


def put_out(action: SubscriptionAction, *, keeps_unmatched: bool, was_there: bool, right: str | None) -> list[Joined]:
    """Return what the place =a puts out for k, after it learns of it."""
    row = "new" if action in {SUBSCRIBE, MOVE_IN} else None
    update = SubscriptionUpdate(AT, "=a", action, "k", row)
    subscribed = {"k": SubscriptionRow(b"=a", "old")} if was_there else {}
    rows = {} if right is None else {b"=a": right}
    joined, _, _ = SubscriptionJoinProgram(keeps_unmatched).of_places({(b"=a", "k"): update}, {}, subscribed, rows)
    assert [key for key, _ in joined] == [b"k"] * len(joined)
    return [each for _, each in joined]


@pytest.mark.parametrize("how", [INNER, LEFT])
def test_a_match_is_put_out_and_withdrawn(how: bool):
    for action, was_there in ((SUBSCRIBE, True), (SUBSCRIBE, False), (MOVE_IN, False)):
        shown = put_out(action, keeps_unmatched=how, was_there=was_there, right="r")
        assert shown == [Joined(AT, Sides("new", "r"))]
    assert put_out(UNSUBSCRIBE, keeps_unmatched=how, was_there=True, right="r") == [Joined(AT, None)]
    assert put_out(MOVE_OUT, keeps_unmatched=how, was_there=True, right="r") == []


def test_without_a_match_an_inner_join_withdraws_what_may_be_shown_elsewhere():
    assert put_out(SUBSCRIBE, keeps_unmatched=INNER, was_there=False, right=None) == []
    assert put_out(MOVE_IN, keeps_unmatched=INNER, was_there=False, right=None) == [Joined(AT, None)]
    assert put_out(UNSUBSCRIBE, keeps_unmatched=INNER, was_there=True, right=None) == []
    assert put_out(MOVE_IN, keeps_unmatched=LEFT, was_there=False, right=None) == [Joined(AT, Sides("new", None))]


def test_a_right_row_changes_all_that_name_it_at_the_time_of_the_latest_cause():
    update = SubscriptionUpdate(AT, "=a", SUBSCRIBE, "k", "new")
    subscribed = {key: SubscriptionRow(b"=a", "old") for key in ("k", "l")}
    program, rights = SubscriptionJoinProgram(INNER), {b"=a": RowChange(LATER, "r2")}
    joined, after, rows = program.of_places({(b"=a", "k"): update}, rights, subscribed, {b"=a": "r1"})
    assert joined == [(b"k", Joined(LATER, Sides("new", "r2"))), (b"l", Joined(LATER, Sides("old", "r2")))]
    assert (after["k"].row, after["l"].row, rows) == ("new", "old", {b"=a": "r2"})


@pytest.mark.parametrize("program", [SubscriptionProgram(INNER), SubscriptionJoinProgram(INNER)])
def test_dead_letters_pass_through(program: SubscriptionProgram | SubscriptionJoinProgram):
    columns = {name: pa.array([None], pa.string()) for name in LETTER}
    columns |= {KIND: pa.array([RowKind.DEAD_LETTER.value], pa.int8()), REASON: pa.array(["bad"])}
    empty = {name: pa.array([None], pa.string()) for name in ("group", "row", "foreign_key", "left_key", "place")}
    times = {name: pa.array([0], pa.int64()) for name in ("time_us", "partition", "offset")}
    letter = pa.table(columns | empty | times | {"action": pa.array([None], pa.int8())})
    out, changed = program.run({0: letter}, {})
    assert [row[REASON] for table in out for row in table.to_pylist()] == ["bad"]
    assert changed == {}
