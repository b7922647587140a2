import json
from typing import Any

from processor.operators import order
from processor.operators.aggregators import Count, Reduce, TopN
from processor.operators.keyed import AGGREGATE_COLUMNS, JOIN_COLUMNS, KeyProgram, KeyState, Kind
from processor.rows import KEY, TIMESTAMP, VALUE

JOIN = KeyProgram("players", order.by_time)
BOARD = KeyProgram("products", order.tables_first, TopN(3, by="score", fields={"game": "name", "score": "score"}))


def event(time: int, score: float, offset: int = 0, kind: Kind = Kind.EVENT):
    return ("7", kind.value, time, 0, offset, json.dumps({"score": score}))


def table(time: int, name: str | None, offset: int = 0):
    kind = Kind.DELETE if name is None else Kind.ROW
    return ("7", kind.value, time, 0, offset, json.dumps({"name": name} if name else {}))


def run(program: KeyProgram, rows: list[Any], state: KeyState | None = None):
    out, after = program.run("7", rows, state or KeyState())
    return [dict(zip(program.out_columns, row, strict=True)) for row in out], after


def joined(rows: list[Any], state: KeyState | None = None):
    out, after = run(JOIN, rows, state)
    named = [(json.loads(row["_event"])["score"], row["_row"] and json.loads(row["_row"])["name"]) for row in out]
    return named, [row["_missing"] for row in out], after


def test_an_event_gets_the_row_as_known_at_its_time():
    rows = [event(5, 1.0), table(3, "Mitch"), event(2, 2.0), table(6, "Mitchell"), event(6, 3.0)]
    named, missing, state = joined(rows)
    assert named == [(2.0, None), (1.0, "Mitch"), (3.0, "Mitchell")]
    assert missing == ["not in players", None, None]
    assert state == KeyState('{"name": "Mitchell"}')


def test_a_row_of_the_same_millisecond_is_known():
    assert joined([event(5, 1.0), table(5, "Mitch")])[0] == [(1.0, "Mitch")]


def test_an_earlier_batchs_row_is_known_and_a_delete_forgets_it():
    known = KeyState('{"name": "Mitch"}')
    assert joined([event(1, 1.0)], known) == ([(1.0, "Mitch")], [None], None)
    named, missing, state = joined([table(1, None), event(2, 1.0)], known)
    assert (named, missing) == ([(1.0, None)], ["not in players"])
    assert state == KeyState()
    assert state.is_empty


def test_dead_letters_pass_through_and_change_no_state():
    dead = event(1, None, kind=Kind.DEAD_LETTER)
    assert JOIN.run("7", [dead], KeyState()) == ([(dead[-1], None, None)], None)
    assert BOARD.run("7", [dead], KeyState()) == ([(None, None, None, dead[-1], None)], None)


def test_a_dead_letter_does_not_get_between_a_keys_rows():
    out, state = run(BOARD, [event(0, None, kind=Kind.DEAD_LETTER), table(1, "Kart"), event(2, 5.0)])
    assert [row["_event"] is None for row in out] == [False, True]
    assert state.row is not None


def test_a_global_row_is_known_to_earlier_events_of_its_batch():
    out, _ = run(BOARD, [event(1, 5.0), table(9, "Mario Kart")])
    assert [(row[KEY], row[VALUE], row[TIMESTAMP]) for row in out] == [(b"7", b'[{"game":"Mario Kart","score":5}]', 1)]


def test_a_key_gives_one_record_a_batch_with_the_latest_events_time():
    rows = [table(0, "Kart"), event(4, 5.0), event(2, 9.0, 1), event(3, 7.5, 2), event(1, 1.0, 3)]
    out, state = run(BOARD, rows)
    assert len(out) == 1
    assert out[0][TIMESTAMP] == 4
    assert json.loads(out[0][VALUE]) == [{"game": "Kart", "score": score} for score in (9, 7.5, 5)]
    assert run(BOARD, [event(8, 1.0, 9)], state) == ([], None)


def test_a_renamed_row_changes_later_entries_only():
    _, state = run(BOARD, [table(0, "Kart"), event(1, 5.0)])
    out, _ = run(BOARD, [table(2, "Kart 2"), event(3, 4.0)], state)
    assert out[0][VALUE] == b'[{"game":"Kart","score":5},{"game":"Kart 2","score":4}]'


def test_an_aggregate_outlives_its_row():
    _, state = run(BOARD, [table(0, "Kart"), event(1, 5.0)])
    out, after = run(BOARD, [table(2, None), event(3, 9.0)], state)
    assert [row["_missing"] for row in out] == ["not in products"]
    assert after == KeyState(None, state.aggregate)
    out, _ = run(BOARD, [table(4, "Kart"), event(5, 9.0)], after)
    assert [entry["score"] for entry in json.loads(out[0][VALUE])] == [9, 5]


def test_programs_name_what_they_put_out():
    assert JOIN.out_columns == JOIN_COLUMNS
    assert BOARD.out_columns == AGGREGATE_COLUMNS


COUNTS = KeyProgram(None, order.by_time, Count())
EVERY_COUNT = KeyProgram(None, order.by_time, Count(), record_cache=False)


def written(program: KeyProgram, rows: list[Any], state: KeyState | None = None):
    out, after = run(program, rows, state)
    return [(row[VALUE] and row[VALUE].decode(), row[TIMESTAMP]) for row in out], after


def test_a_hundred_updates_are_one_record_with_the_cache_and_a_hundred_without():
    events = [event(time, 1.0) for time in range(100)]
    assert written(COUNTS, events) == ([("100", 99)], KeyState(None, "100"))
    each, after = written(EVERY_COUNT, events)
    assert each == [(str(count), time) for time, count in enumerate(range(1, 101))]
    assert after == KeyState(None, "100")


def test_the_first_row_is_kept_as_it_is_and_an_end_is_a_tombstone():
    reduced = KeyProgram(None, order.by_time, Reduce(lambda _state, row: None if row["score"] == 0 else row))
    assert written(reduced, [event(1, 5.0)]) == ([('{"score":5}', 1)], KeyState(None, '{"score":5.0}'))
    known = KeyState(None, '{"score":5.0}')
    assert written(reduced, [event(2, 0)], known) == ([(None, 2)], KeyState())
    assert written(reduced, [event(2, 0), event(3, 8.0)], known) == (
        [('{"score":8}', 3)],
        KeyState(None, '{"score":8.0}'),
    )


def test_what_came_and_went_within_a_batch_leaves_no_record_with_the_cache_and_all_without():
    ending = Reduce(lambda _state, row: None if row["score"] == 0 else row)
    rows = [event(1, 5.0), event(2, 0)]
    assert written(KeyProgram(None, order.by_time, ending), rows) == ([], None)
    every = KeyProgram(None, order.by_time, ending, record_cache=False)
    assert written(every, rows) == ([('{"score":5}', 1), (None, 2)], None)


def test_a_left_join_goes_on_without_a_row():
    out, after = KeyProgram(None, order.by_time).run("7", [event(1, 1.0), table(2, "Mitch"), event(3, 2.0)], KeyState())
    assert [(json.loads(sent)["score"], row and json.loads(row), missing) for sent, row, missing in out] == [
        (1.0, None, None),
        (2.0, {"name": "Mitch"}, None),
    ]
    assert after == KeyState('{"name": "Mitch"}')
