"""When to hedge, and whom to call slow."""

from __future__ import annotations

import random

import pytest

from router.choice.answer_times import AnswerTimes

GET = ("scores", "Get")


def _answer_times(least_s: float = 0.001) -> AnswerTimes:
    return AnswerTimes(quantile=0.95, least_s=least_s, most_s=0.25)


def _feed(answer_times: AnswerTimes, node: str, *took_ms: float, times: int = 1) -> list[bool]:
    return [answer_times.answered(GET, node, took / 1_000) for _ in range(times) for took in took_ms]


def test_before_there_are_answers_the_delay_is_a_fixed_one_within_the_bounds() -> None:
    assert _answer_times().hedge_delay_s(GET) == pytest.approx(0.05)
    assert _answer_times(least_s=0.1).hedge_delay_s(GET) == pytest.approx(0.1)
    assert AnswerTimes(quantile=0.95, least_s=0.01, most_s=0.02).hedge_delay_s(GET) == pytest.approx(0.02)


def test_the_delay_is_the_quantile_of_the_latest_answers_of_the_kind() -> None:
    answer_times = _answer_times()
    _feed(answer_times, "a", *range(1, 101), times=4)
    assert 0.09 < answer_times.hedge_delay_s(GET) < 0.1
    _feed(answer_times, "a", 2, times=200)
    assert answer_times.hedge_delay_s(GET) == pytest.approx(0.002)
    assert answer_times.hedge_delay_s(("scores", "FetchWindows")) == pytest.approx(0.05)


def test_a_slow_node_does_not_move_it_and_a_slow_fleet_does() -> None:
    answer_times = _answer_times()
    _feed(answer_times, "a", 2, times=200)
    _feed(answer_times, "b", 200, times=200)
    assert answer_times.hedge_delay_s(GET) == pytest.approx(0.002)
    _feed(answer_times, "a", 200, times=200)
    assert answer_times.hedge_delay_s(GET) == pytest.approx(0.2)


def test_calls_given_up_count_as_answers_that_took_at_least_as_long() -> None:
    answer_times = _answer_times()
    for _ in range(100):
        _feed(answer_times, "a", 1, times=9)
        answer_times.overtaken(GET, "a", 0.03)
    assert answer_times.hedge_delay_s(GET) == pytest.approx(0.03)


def test_the_delay_stays_where_it_is_though_only_the_late_answers_come_one_by_one() -> None:
    answer_times, source = _answer_times(), random.Random(7)
    late, lookups = 0, 500
    for nth in range(100):
        delay_s = answer_times.hedge_delay_s(GET)
        times_s = [source.lognormvariate(-6, 0.8) for _ in range(lookups)]
        in_time = [each for each in times_s if each <= delay_s]
        for took_s in in_time[:: len(in_time) // 32]:
            answer_times.answered(GET, "a", took_s, len(in_time) / 32)
        for took_s in times_s:
            if took_s > delay_s:
                answer_times.answered(GET, "a", took_s)
                late += nth >= 20
    assert 0.03 < late / (80 * lookups) < 0.07, "one in twenty"


def test_five_late_answers_in_a_row_make_a_node_slow() -> None:
    answer_times = _answer_times()
    assert not any(_feed(answer_times, "a", 2, times=200))
    assert _feed(answer_times, "a", 50, times=5) == [False] * 4 + [True]


def test_an_answer_after_the_longest_delay_is_late_in_any_fleet() -> None:
    answer_times = _answer_times()
    _feed(answer_times, "a", 240, times=200)
    assert answer_times.late_after_s(GET) == pytest.approx(0.25)


def test_hedges_lost_in_a_row_make_a_node_slow() -> None:
    answer_times = _answer_times()
    assert [answer_times.overtaken(GET, "a", 0.01) for _ in range(6)] == [False] * 4 + [True] * 2
    assert not any(_feed(answer_times, "a", 2, times=10)), "what is in time is never held against it"
    assert not answer_times.overtaken(GET, "a", 0.01), "and makes good for what was not"


def test_now_and_then_a_late_answer_is_nothing() -> None:
    answer_times = _answer_times()
    assert not any(_feed(answer_times, "a", 2, 2, 2, 2, 50, times=100))


def test_who_and_what_is_no_more_is_forgotten() -> None:
    answer_times = _answer_times()
    _feed(answer_times, "a", 2, times=200)
    answer_times.retain({"a"}, {"scores"})
    assert answer_times.hedge_delay_s(GET) == pytest.approx(0.002)
    answer_times.retain({"a"}, set())
    assert answer_times.hedge_delay_s(GET) == pytest.approx(0.05)
