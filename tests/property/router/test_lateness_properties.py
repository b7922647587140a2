"""The hedge delay and the slow nodes, whatever the answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.choice.answer_times import AnswerTimes

GET = ("scores", "Get")
took = st.floats(0, 10)
answers = st.lists(st.tuples(st.sampled_from("abc"), took, st.booleans()), max_size=60)


def _feed(answer_times: AnswerTimes, given: list[tuple[str, float, bool]]) -> list[tuple[str, float, bool]]:
    """Return the answers at which a node was called slow."""
    found = []
    for node, took_s, is_overtaken in given:
        late_after_s = answer_times.late_after_s(GET)
        note = answer_times.overtaken if is_overtaken else answer_times.answered
        if note(GET, node, took_s):
            found.append((node, took_s, is_overtaken or took_s > late_after_s))
    return found


@given(answers, st.floats(0.01, 0.99), st.floats(0, 0.3))
def test_the_delay_stays_within_its_bounds(
    given_: list[tuple[str, float, bool]], quantile: float, least_s: float
) -> None:
    answer_times = AnswerTimes(quantile=quantile, least_s=least_s, most_s=0.25)
    _feed(answer_times, given_)
    assert min(least_s, 0.25) <= answer_times.hedge_delay_s(GET) <= 0.25
    assert answer_times.hedge_delay_s(GET) <= answer_times.late_after_s(GET) <= 0.25


@given(answers)
def test_only_a_late_attempt_makes_a_node_slow(given_: list[tuple[str, float, bool]]) -> None:
    answer_times = AnswerTimes(quantile=0.95, least_s=0.01, most_s=0.25)
    assert all(was_late for _, _, was_late in _feed(answer_times, given_))


@pytest.mark.feature("slow-dead-nodes")
@given(answers)
def test_a_node_all_of_whose_attempts_are_late_is_soon_slow(given_: list[tuple[str, float, bool]]) -> None:
    answer_times = AnswerTimes(quantile=0.95, least_s=0.01, most_s=0.25)
    _feed(answer_times, given_)
    assert answer_times.overtaken(GET, "a", 0.3) or any(answer_times.overtaken(GET, "a", 0.3) for _ in range(4))
