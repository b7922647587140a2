import pytest

from processor.operators import order
from processor.operators.aggregators import TopN
from processor.operators.keyed import DELETES, GROUP, IS_TABLE, KeyProgram, KeyState
from processor.rows import DETAIL, KEY, OFFSET, PARTITION, REASON, TIMESTAMP, TOPIC, VALUE

COLUMNS = (KEY, VALUE, TOPIC, PARTITION, OFFSET, TIMESTAMP, "score", REASON, DETAIL, GROUP, IS_TABLE, DELETES, "name")
JOIN = KeyProgram(COLUMNS, ("name",), "unknown_player", "players", order.by_time)
BOARD = KeyProgram(
    COLUMNS,
    ("name",),
    "unknown_product",
    "products",
    order.tables_first,
    TopN(3, by="score", fields={"game": "name", "score": "score"}),
)


def event(time, score, offset=0, reason=None):
    return (None, b"raw", "scores", 0, offset, time, score, reason, None, "7", False, False, None)


def table(time, name, offset=0):
    return (None, None, "players", 0, offset, time, None, None, None, "7", True, name is None, name)


def run(program, rows, state=None):
    out, after = program.run("7", rows, lambda: state or KeyState())
    return [dict(zip(program.out_columns, row, strict=True)) for row in out], after


def test_an_event_gets_the_row_as_known_at_its_time():
    rows = [event(5, 1.0), table(3, "Mitch"), event(2, 2.0), table(6, "Mitchell"), event(6, 3.0)]
    out, state = run(JOIN, rows)
    assert [(row["score"], row["name"], row[REASON]) for row in out] == [
        (2.0, None, "unknown_player"),
        (1.0, "Mitch", None),
        (3.0, "Mitchell", None),
    ]
    assert state == KeyState(("Mitchell",))


def test_a_row_of_the_same_millisecond_is_known():
    out, _ = run(JOIN, [event(5, 1.0), table(5, "Mitch")])
    assert out[0]["name"] == "Mitch"


def test_an_earlier_batchs_row_is_known_and_a_delete_forgets_it():
    known = KeyState(("Mitch",))
    assert run(JOIN, [event(1, 1.0)], known) == ([pytest.approx({**_out(1.0, 1), "name": "Mitch"})], None)
    out, state = run(JOIN, [table(1, None), event(2, 1.0)], known)
    assert (out[0][REASON], out[0][DETAIL]) == ("unknown_player", "players has no row '7'")
    assert state == KeyState()
    assert state.is_empty


def _out(score, time):
    row = dict(zip(COLUMNS, event(time, score), strict=True))
    return {name: value for name, value in row.items() if name in JOIN.out_columns}


def test_a_refused_event_keeps_its_original_bytes():
    out, _ = run(JOIN, [event(1, 1.0, offset=42)])
    assert (out[0][VALUE], out[0][TOPIC], out[0][OFFSET]) == (b"raw", "scores", 42)


def test_a_dead_letter_passes_through_and_needs_no_state():
    def never():
        raise AssertionError

    out, state = JOIN.run("7", [event(1, None, reason="not_json")], never)
    assert [row[JOIN.out_columns.index(REASON)] for row in out] == ["not_json"]
    assert state is None


def test_a_global_row_is_known_to_earlier_events_of_its_batch():
    out, _ = run(BOARD, [event(1, 5.0), table(9, "Mario Kart")])
    assert [(row[KEY], row[VALUE], row[TIMESTAMP]) for row in out] == [(b"7", b'[{"game":"Mario Kart","score":5}]', 1)]


def test_a_key_gives_one_record_a_batch_with_the_latest_events_time():
    rows = [table(0, "Mario Kart"), event(4, 5.0), event(2, 9.0, 1), event(3, 7.5, 2), event(1, 1.0, 3)]
    out, state = run(BOARD, rows)
    assert len(out) == 1
    assert out[0][TIMESTAMP] == 4
    assert (
        out[0][VALUE]
        == b'[{"game":"Mario Kart","score":9},{"game":"Mario Kart","score":7.5},{"game":"Mario Kart","score":5}]'
    )
    again, after = run(BOARD, [event(8, 1.0, 9)], state)
    assert again == []
    assert after is None


def test_a_renamed_row_changes_later_entries_only():
    _, state = run(BOARD, [table(0, "Kart"), event(1, 5.0)])
    out, _ = run(BOARD, [table(2, "Kart 2"), event(3, 4.0)], state)
    assert out[0][VALUE] == b'[{"game":"Kart","score":5},{"game":"Kart 2","score":4}]'


def test_an_aggregate_outlives_its_row():
    _, state = run(BOARD, [table(0, "Kart"), event(1, 5.0)])
    out, after = run(BOARD, [table(2, None), event(3, 9.0)], state)
    assert [row[REASON] for row in out] == ["unknown_product"]
    assert after.row is None
    assert after.aggregate == state.aggregate
