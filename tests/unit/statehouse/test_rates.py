"""Rates from samples: of restores, and of counters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.client.restore_rates import RestoreRates, RestoreSample, RunningRestore
from statehouse.observability.counter_rates import CounterRates, grown


def sample(
    position: int | None, end: int | None = 1_000, started_at: int | None = 0, partition: int = 0
) -> RestoreSample:
    return RestoreSample("n", f"0_{partition}", "ACTIVE", "s", partition, position, started_at, end)


def test_a_restore_has_a_rate_from_its_second_sample_on() -> None:
    rates = RestoreRates()
    (first,) = rates.take([sample(200, started_at=100)], 5.0)
    assert (first.done, first.left, first.share) == (100, 800, pytest.approx(1 / 9))
    assert (first.per_s, first.eta_s) == (None, None)
    (second,) = rates.take([sample(400, started_at=100)], 7.0)
    assert (second.done, second.left, second.per_s, second.eta_s) == (300, 600, 100.0, 6.0)
    assert second.name == "s/0"


def test_the_rate_is_that_of_the_last_seconds() -> None:
    rates = RestoreRates()
    for second in range(30):
        (status,) = rates.take([sample(second * 10)], float(second))
    (stalled,) = rates.take([sample(290)], 60.0)
    assert status.per_s == 10.0
    assert stalled.per_s == 0.0
    assert stalled.eta_s is None, "nothing moves"


def test_what_is_not_seen_again_has_ended() -> None:
    rates = RestoreRates()
    rates.take([sample(1), sample(1, partition=1)], 0.0)
    assert [status.partition for status in rates.take([sample(2, partition=1)], 1.0)] == [1]
    assert rates.take([], 2.0) == []
    assert rates.ended == 2


def test_a_restore_that_begins_anew_is_a_new_one() -> None:
    rates = RestoreRates()
    rates.take([sample(900)], 0.0)
    (again,) = rates.take([sample(50)], 1.0)
    assert (again.done, again.left, again.per_s) == (50, 950, None)


def test_files_are_read_before_the_log_and_have_a_rate_of_their_own() -> None:
    rates = RestoreRates()
    files = replace(sample(0, end=5_000), peer="m")
    rates.take([files], 0.0)
    (fetched,) = rates.take([replace(files, position=2_000)], 2.0)
    assert (fetched.peer, fetched.done, fetched.left, fetched.per_s) == ("m", 2_000, 3_000, 1_000.0)
    (read,) = rates.take([sample(9_000, end=9_500, started_at=8_000)], 3.0)
    assert (read.peer, read.done, read.left, read.per_s) == ("", 1_000, 500, None)
    assert rates.ended == 0


def test_what_is_unknown_stays_so() -> None:
    rates = RestoreRates()
    (nothing,) = rates.take([sample(None, None, None)], 0.0)
    assert (nothing.done, nothing.left, nothing.share, nothing.per_s) == (None, None, None, None)
    (some,) = rates.take([sample(70, None, None)], 1.0)
    assert (some.done, some.left, some.share) == (0, None, None), "it began at 70 for all we know"
    (empty,) = rates.take([sample(70, 70, 70)], 2.0)
    assert empty.share == 1.0
    of_task = RunningRestore("n", "0_3", "STANDBY", None, None, None, None, None, None)
    assert of_task.name == "0_3"


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 10_000)), min_size=1, max_size=60))
def test_no_figure_is_ever_negative(samples: list[tuple[int, int]]) -> None:
    rates = RestoreRates()
    for second, (position, end) in enumerate(samples):
        (status,) = rates.take([sample(position, end, started_at=None)], float(second))
        assert status.done is not None
        assert status.left is not None
        assert min(status.done, status.left, status.per_s or 0.0, status.eta_s or 0.0) >= 0
        assert status.share is not None
        assert 0.0 <= status.share <= 1.0


def test_growth_is_from_zero_for_whoever_began_anew() -> None:
    assert grown({"a": 1.5, "b": 9.0}, {"a": 2.0, "b": 4.0, "c": 3.0}) == {"a": 0.5, "b": 4.0, "c": 3.0}
    assert grown({"a": 1}, {}) == {}


def test_counters_grow_and_begin_anew() -> None:
    rates = CounterRates[str]()
    assert rates.take({"a": 100}, 0.0) == {}
    assert rates.take({"a": 150, "b": 9_000}, 2.0) == {"a": 25.0}, "nobody knows since when b counts"
    assert rates.take({"a": 30}, 4.0) == {"a": 15.0}, "its process has begun anew"
    assert rates.take({"a": 40}, 4.0) == {}, "no time has passed"
