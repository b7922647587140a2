import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor.operators.aggregators import Count, Reduce, TopN
from processor.operators.workers.keyed import RowKind
from processor.operators.workers.raised import OnError
from tests.unit.processor.operators.by_key import MISSING, Input, KeyState, Model, Output, run_program

TOP = TopN(3, by="score", fields={"game": "name", "score": "score"})
ENDING = Reduce(lambda _state, row: None if row["score"] == 0 else row)

JOIN = Model()
LEFT_JOIN = Model(is_inner=False)
BOARD = Model(is_global=True, aggregator=TOP)
COUNTS = Model(has_table=False, aggregator=Count())
EVERY_COUNT = Model(has_table=False, aggregator=Count(), record_cache=False)


def event(time: int, score: float, offset: int = 0, key: str | None = "7", **more: Any) -> Input:
    return Input(key, RowKind.EVENT, time, offset, score, **more)


def table(time: int, name: str | None, offset: int = 0, key: str = "7") -> Input:
    return Input(key, RowKind.DELETE if name is None else RowKind.ROW, time, offset, name=name)


def refused(offset: int, *, of_table: bool = False) -> Input:
    return Input("7", RowKind.DEAD_LETTER, 0, offset, None if of_table else 1.0)


def run(model: Model, *rows: Input, state: KeyState | None = None) -> tuple[Output, KeyState]:
    """Run the program; return what came out, and what is kept of key 7."""
    out = run_program(model, rows, {} if state is None else {"7": state})
    return out, out.states.get("7", KeyState())


@pytest.mark.feature("stream-table-join")
def test_an_event_gets_the_row_as_known_at_its_time():
    rows = [event(5, 1.0, 0), table(3, "Mitch", 1), event(2, 2.0, 2), table(6, "Mitchell", 3), event(6, 3.0, 4)]
    out, state = run(JOIN, *rows)
    assert out.joined == [(0, "Mitch"), (4, "Mitchell")]
    assert out.letters == [(2, MISSING)]
    assert state == KeyState(("Mitchell",))


def test_a_row_of_the_same_millisecond_is_known():
    assert run(JOIN, event(5, 1.0, 0), table(5, "Mitch", 9))[0].joined == [(0, "Mitch")]


def test_an_earlier_batchs_row_is_known_and_a_delete_forgets_it():
    known = KeyState(("Mitch",))
    out, after = run(JOIN, event(1, 1.0), state=known)
    assert (out.joined, after) == ([(0, "Mitch")], known)
    out, after = run(JOIN, table(1, None, 0), event(2, 1.0, 1), state=known)
    assert (out.joined, out.letters, after) == ([], [(1, MISSING)], KeyState())


def test_dead_letters_of_both_sides_pass_through_and_change_no_state():
    for model in (JOIN, BOARD):
        out, after = run(model, refused(1), refused(2, of_table=True), state=KeyState(("Kart",)))
        assert (out.letters, after) == ([(1, "refused"), (2, "refused")], KeyState(("Kart",)))
        assert (out.joined, out.records) == ([], [])


def test_a_dead_letter_does_not_get_between_a_keys_rows():
    out, state = run(BOARD, refused(0), table(1, "Kart", 1), event(2, 5.0, 2))
    assert (len(out.letters), len(out.records)) == (1, 1)
    assert state.row == ("Kart",)


def test_an_event_without_a_key_meets_nothing():
    out, _ = run(LEFT_JOIN, event(3, 1.0, 1, key=None), table(1, "Mitch", 0), state=KeyState(("Mitch",)))
    assert out.joined == [(1, None)]


@pytest.mark.feature("stream-global-table")
def test_a_global_row_is_known_to_earlier_events_of_its_batch():
    out, _ = run(BOARD, event(1, 5.0, 0), table(9, "Mario Kart", 1))
    assert out.records == [("7", '[{"game":"Mario Kart","score":5}]', 1)]


@pytest.mark.feature("reduce-aggregate-event")
def test_a_key_gives_one_record_a_batch_with_the_latest_events_time():
    rows = [table(0, "Kart"), event(4, 5.0), event(2, 9.0, 1), event(3, 7.5, 2), event(9, 1.0, 3)]
    out, state = run(BOARD, *rows)
    assert len(out.records) == 1
    _, value, time = out.records[0]
    assert time == 9
    assert json.loads(value) == [{"game": "Kart", "score": score} for score in (9, 7.5, 5)]
    out, after = run(BOARD, event(10, 1.0, 9), state=state)
    assert (out.records, after) == ([], state)


def test_a_renamed_row_changes_later_entries_only():
    _, state = run(BOARD, table(0, "Kart"), event(1, 5.0))
    out, _ = run(BOARD, table(2, "Kart 2"), event(3, 4.0), state=state)
    assert out.records[0][1] == '[{"game":"Kart","score":5},{"game":"Kart 2","score":4}]'


def test_an_aggregate_outlives_its_row():
    _, state = run(BOARD, table(0, "Kart"), event(1, 5.0))
    out, after = run(BOARD, table(2, None), event(3, 9.0, 1), state=state)
    assert out.letters == [(1, MISSING)]
    assert after == KeyState(None, state.aggregate)
    out, _ = run(BOARD, table(4, "Kart"), event(5, 9.0), state=after)
    assert [entry["score"] for entry in json.loads(out.records[0][1])] == [9, 5]


@pytest.mark.feature("updates-key-within")
def test_a_hundred_updates_are_one_record_with_the_cache_and_a_hundred_without():
    events = [event(time, 1.0, time) for time in range(100)]
    out, after = run(COUNTS, *events)
    assert (out.records, after) == ([("7", "100", 99)], KeyState(None, "100"))
    out, after = run(EVERY_COUNT, *events)
    assert out.records == [("7", str(count), time) for time, count in enumerate(range(1, 101))]
    assert after == KeyState(None, "100")


@pytest.mark.feature("reduce-aggregate-event")
def test_the_first_row_is_kept_as_it_is_and_an_end_is_a_tombstone():
    reduced = Model(has_table=False, aggregator=ENDING)
    out, known = run(reduced, event(1, 5.0))
    assert (out.records, known) == ([("7", '{"score":5}', 1)], KeyState(None, '{"score":5.0}'))
    out, after = run(reduced, event(2, 0), state=known)
    assert (out.records, after) == ([("7", None, 2)], KeyState())
    out, after = run(reduced, event(2, 0), event(3, 8.0, 1), state=known)
    assert (out.records, after) == ([("7", '{"score":8}', 3)], KeyState(None, '{"score":8.0}'))


def test_what_came_and_went_within_a_batch_leaves_no_record_with_the_cache_and_all_without():
    rows = [event(1, 5.0), event(2, 0, 1)]
    out, after = run(Model(has_table=False, aggregator=ENDING), *rows)
    assert (out.records, after) == ([], KeyState())
    out, after = run(Model(has_table=False, aggregator=ENDING, record_cache=False), *rows)
    assert (out.records, after) == ([("7", '{"score":5}', 1), ("7", None, 2)], KeyState())


@pytest.mark.feature("stream-table-join")
def test_a_left_join_goes_on_without_a_row():
    out, after = run(LEFT_JOIN, event(1, 1.0, 0), table(2, "Mitch", 1), event(3, 2.0, 2))
    assert out.joined == [(0, None), (2, "Mitch")]
    assert after == KeyState(("Mitch",))


MODELS = [
    JOIN,
    LEFT_JOIN,
    Model(is_global=True),
    Model(is_global=True, is_inner=False),
    BOARD,
    Model(is_global=True, aggregator=TOP, record_cache=False),
    Model(is_global=True, aggregator=Count()),
    COUNTS,
    EVERY_COUNT,
    Model(has_table=False, aggregator=ENDING),
    Model(has_table=False, aggregator=TopN(2, by="score", fields={"who": "who", "score": "score"})),
]
KEYS = st.sampled_from(["a", "b", "c"])
SCORES = st.sampled_from([-1.5, 0.0, 1.0, 2.0, 2.5])


@st.composite
def batches(draw: st.DrawFn) -> list[list[Input]]:
    kinds = st.sampled_from([RowKind.EVENT, RowKind.EVENT, RowKind.ROW, RowKind.DELETE, RowKind.DEAD_LETTER])
    offset = 0
    drawn: list[list[Input]] = []
    for size in draw(st.lists(st.integers(0, 8), min_size=1, max_size=3)):
        drawn.append([])
        for _ in range(size):
            kind, key, time, partition = draw(kinds), draw(KEYS), draw(st.integers(0, 3)), draw(st.integers(0, 1))
            more: dict[str, Any] = {}
            if kind is RowKind.ROW:
                more = {"name": draw(st.sampled_from(["n", "m", None]))}
            elif kind is RowKind.EVENT:
                more = {"score": draw(SCORES), "who": draw(st.sampled_from(["x", None])), "partition": partition}
            drawn[-1].append(Input(key, kind, time, offset, **more))
            offset += 1
    return drawn


@pytest.mark.feature("reduce-aggregate-event")
@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=40)
@given(drawn=batches())
def test_programs_do_with_many_keys_what_the_model_does_row_by_row(model: Model, drawn: list[list[Input]]):
    expected, actual = Output(), Output()
    for rows in drawn:
        of_model = [row for row in rows if model.has_table or row.kind is RowKind.EVENT]
        expected = model.run(of_model, expected.states)
        actual = run_program(model, of_model, actual.states)
        assert actual == expected


class Picky:
    """Keeps the scores of a key; raises before or after it changes the state, or makes what can't be kept or shown."""

    def add(self, state: Any, row: Any, position: Any) -> Any:  # noqa: ARG002
        kept = [] if state is None else state
        score = row["score"]
        if score == -1:
            raise KeyError("before")
        kept.append({score} if score == -3 else score)
        if score == -2:
            raise ZeroDivisionError("after")
        return kept

    def render(self, state: Any) -> Any:
        if -4 in state:
            raise ValueError("can't be shown")
        return {"scores": state}


_SCORES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(-4, 3)), max_size=8)


@pytest.mark.feature("on-error")
@pytest.mark.parametrize("record_cache", [True, False])
@given(batches=st.lists(_SCORES, max_size=4))
def test_an_event_that_people_s_code_raises_for_becomes_a_dead_letter_and_leaves_no_trace(
    batches: list[list[tuple[str, int]]], record_cache: bool
):
    model = Model(has_table=False, aggregator=Picky(), record_cache=record_cache, on_error=OnError.DEAD_LETTER)
    states: dict[str, KeyState] = {}
    good_states: dict[str, KeyState] = {}
    for batch in batches:
        events = [event(at, score, at, key) for at, (key, score) in enumerate(batch)]
        good = [each for each in events if (each.score or 0) >= 0]
        out, expected = run_program(model, events, states), run_program(model, good, good_states)
        assert out.letters == sorted(((each.offset, "raised") for each in events if each not in good), key=str)
        values = [(key, value) for key, value, _ in out.records]  # a key's record has the time of its last event
        assert values == [(key, value) for key, value, _ in expected.records]
        assert out.states == expected.states
        states, good_states = out.states, expected.states


@pytest.mark.feature("on-error")
def test_an_exception_of_people_s_code_names_the_record():
    model = Model(has_table=False, aggregator=Picky())
    with pytest.raises(ZeroDivisionError) as raised:
        run_program(model, [event(1, 1, 4), event(2, -2, 7)])
    assert raised.value.__notes__ == ["while it processed record topic/0/7"]
