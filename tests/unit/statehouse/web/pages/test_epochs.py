"""The epochs that a page has seen, and the fleet as it was at each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.client import Fleet, Task
from statehouse.web.pages.epochs import EPOCHS_MAX, OLDER_MAX, EpochLog, Holders
from tests.unit.statehouse.web.pages.fleets import fleet, task

NODES = st.sampled_from(["n1", "n2", "n3"])
PLACEMENTS = st.lists(
    st.dictionaries(st.integers(0, 5), st.tuples(NODES, NODES), min_size=1), min_size=1, max_size=EPOCHS_MAX
)


def log_of(*fleets: Fleet) -> EpochLog:
    log = EpochLog()
    for second, each in enumerate(fleets):
        log.take(each, second)
    return log


def test_an_epoch_says_what_it_moved_and_why():
    before = (task(0, "n1"), task(1, "n2", ("n1",)))
    after = (task(0, "n2", ("n1",), reason="n2 has caught up"), task(1, "n2", ("n1",)))
    newest, first = log_of(fleet(4, tasks=before), fleet(5, tasks=after)).newest_first
    assert (first.number, first.moves, first.is_first) == (4, (), True)
    assert (newest.number, newest.reason, newest.missed, newest.is_first) == (5, "reason 5", 0, False)
    (move,) = newest.moves
    assert (move.task, move.reason, move.moves_active) == ("0_0", "n2 has caught up", True)
    assert (move.before, move.after) == (Holders("n1", ("n2",)), Holders("n2", ("n1",)))


def test_epochs_that_came_too_fast_to_see_are_counted():
    assert log_of(fleet(4), fleet(8)).newest_first[0].missed == 3


def test_a_task_that_comes_or_goes_is_a_move_that_moves_no_active():
    newest, _ = log_of(fleet(1, tasks=(task(0),)), fleet(2, tasks=(task(1),))).newest_first
    assert [(move.task, move.before, move.after, move.moves_active) for move in newest.moves] == [
        ("0_0", Holders("n1", ("n2",)), None, False),
        ("0_1", None, Holders("n1", ("n2",)), False),
    ]


def test_an_answer_of_a_router_that_is_behind_is_left_out_and_an_assignment_that_began_anew_is_taken():
    log = log_of(fleet(9))
    for _ in range(OLDER_MAX - 1):
        assert not log.take(fleet(8), 1)
    assert log.take(fleet(9), 2)
    assert [epoch.number for epoch in log.newest_first] == [9]
    for _ in range(OLDER_MAX - 1):
        assert not log.take(fleet(1), 3)
    assert log.take(fleet(1), 4)
    assert [epoch.number for epoch in log.newest_first] == [1]


def test_so_many_epochs_are_kept():
    log = log_of(*(fleet(number) for number in range(1, EPOCHS_MAX + 10)))
    assert [epoch.number for epoch in log.newest_first] == list(range(EPOCHS_MAX + 9, 9, -1))
    assert log.find(9) is None


@pytest.mark.feature("page-partition-map")
@given(PLACEMENTS)
def test_the_fleet_can_be_seen_as_it_was_at_each_epoch(placements: list[dict[int, tuple[str, str]]]):
    log = EpochLog()
    for number, placed in enumerate(placements, start=1):
        tasks: tuple[Task, ...] = tuple(task(each, active, (standby,)) for each, (active, standby) in placed.items())
        log.take(fleet(number, tasks=tasks), number)
    for number, placed in enumerate(placements, start=1):
        assert log.holders_at(number) == {
            f"0_{each}": Holders(active, (standby,)) for each, (active, standby) in placed.items()
        }
