import itertools
import json
import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.operators.aggregators import TopN
from processor.operators.order import RecordPosition

TOP = TopN(3, by="score", fields={"who": "who", "points": "score"})


def fold(rows: list[Any]):
    state = None
    for row, position in rows:
        # As between batches: the state goes through JSON.
        state = None if state is None else json.loads(json.dumps(state))
        state = TOP.add(state, row, position)
    return TOP.render(state)


def row(who: str, score: float):
    return {"who": who, "score": score, "other": "not kept"}


def test_the_best_rows_are_kept_best_first():
    rows = [(row("a", 1000.0), RecordPosition(1, 0, 0)), (row("b", 500.0), RecordPosition(2, 0, 1))]
    rows += [(row("a", 4000.0), RecordPosition(3, 0, 2)), (row("a", 2000.0), RecordPosition(4, 0, 3))]
    assert [entry["points"] for entry in fold(rows)] == [4000.0, 2000.0, 1000.0]
    assert fold(rows)[0] == {"who": "a", "points": 4000.0}


def test_ties_go_to_the_earlier_timestamp_then_partition_then_offset():
    tied = [RecordPosition(2, 0, 0), RecordPosition(1, 1, 0), RecordPosition(1, 0, 5), RecordPosition(1, 0, 4)]
    for arrival in itertools.permutations(tied):
        kept = fold([(row(str(tuple(position)), 7.0), position) for position in arrival])
        assert [entry["who"] for entry in kept] == ["(1, 0, 4)", "(1, 0, 5)", "(1, 1, 0)"]


@pytest.mark.feature("reduce-aggregate-event")
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=12), st.randoms())
def test_the_result_does_not_depend_on_the_order_of_arrival(scores: list[Any], random: Random):
    rows = [
        (row(str(offset), float(score)), RecordPosition(time, 0, offset)) for offset, (score, time) in enumerate(scores)
    ]
    shuffled = rows.copy()
    random.shuffle(shuffled)
    assert fold(shuffled) == fold(rows)


@given(st.lists(st.sampled_from([None, "absent", math.nan, "text", (), 1.5, 7, -3]), max_size=12))
def test_rows_without_a_number_to_compare_are_left_out(scores: list[Any]):
    rows = [
        ({"who": str(offset)} | ({} if score == "absent" else {"score": score}), RecordPosition(1, 0, offset))
        for offset, score in enumerate(scores)
    ]
    sound = [(each, position) for each, position in rows if each.get("score") in (1.5, 7, -3)]
    for chosen in (rows, sound):
        state = None
        for each, position in chosen:
            state = TOP.add(state, each, position)
        assert (None if state is None else TOP.render(state)) == (fold(sound) if sound else None)
