"""What moments cost: turns are compared with those beside them, and the sink's source is the one that is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.moments.compared import Turn, compared
from bench.moments.sink import copied_tree


def run(*costs: float, begins: bool = False) -> list[Turn]:
    return [Turn((place % 2 == 1) is not begins, each) for place, each in enumerate(costs)]


def test_a_steady_cost_is_found_whatever_drifts_and_whichever_is_first() -> None:
    drifting = [100 + place for place in range(9)]
    first = run(*(each * 1.03 if place % 2 else each for place, each in enumerate(drifting)))
    second = run(*(each if place % 2 else each * 1.03 for place, each in enumerate(drifting)), begins=True)
    found = compared([first, second])
    assert found.percent == pytest.approx(3.0)
    assert found.low == pytest.approx(found.high)
    assert str(found) == "+3.0 % (+3.0 to +3.0)"


def test_one_turn_that_was_disturbed_changes_nothing() -> None:
    found = compared([run(1.0, 1.0, 1.0, 9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)])
    assert (found.without, found.with_it, found.ratio) == (1.0, 1.0, 1.0)


def test_three_turns_are_enough() -> None:
    found = compared([run(2.0, 3.0, 4.0)])
    assert (found.ratio, found.low, found.high) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("parity", [0, 1])
def test_the_copy_of_the_tree_leaves_the_header_out_of_every_second_batch(tmp_path: Path, parity: int) -> None:
    source = (copied_tree(tmp_path / "tree", parity) / "processor/jvm/src/statehouse/sink/Task.java").read_text()
    assert f"output.isStore() && batch % 2 == {parity} ? ofStores : ofTopics" in source
