import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.run.restarts import Restarts
from tests.support.settings import policy

POLICY = policy(
    max_query_restarts=3,
    query_restart_window_ms=100_000,
    query_restart_backoff_ms=1_000,
    query_restart_backoff_max_ms=3_000,
)


def test_pauses_double_up_to_the_longest_one():
    restarts = Restarts(policy(max_query_restarts=2_000, query_restart_backoff_max_ms=5_000))
    pauses = [restarts.died(float(n), batch_id=n) for n in range(1_500)]
    assert pauses[:5] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert set(pauses[5:]) == {5.0}, "however many there are"


@pytest.mark.feature("driver-dies-loses")
def test_it_is_given_up_after_so_many_restarts_in_the_window():
    restarts = Restarts(POLICY)
    assert [restarts.died(float(n), batch_id=n) for n in range(4)] == [1.0, 2.0, 3.0, None]


def test_old_deaths_are_forgotten_once_there_was_progress():
    restarts = Restarts(POLICY)
    assert [restarts.died(60.0 * n, batch_id=n) for n in range(10)] == [1.0, 2.0] + [2.0] * 8
    assert restarts.died(10_000.0, batch_id=10) == 1.0


def test_a_batch_that_fails_each_time_is_given_up_however_long_it_takes():
    restarts = Restarts(POLICY)
    assert [restarts.died(1_000.0 * n, batch_id=7) for n in range(4)] == [1.0, 2.0, 3.0, None]
    first = Restarts(POLICY)
    assert [first.died(1_000.0 * n, batch_id=None) for n in range(4)][-1] is None, "nor if it is the first"


def test_no_restarts_means_none():
    assert Restarts(policy(max_query_restarts=0)).died(0.0, 3) is None


@given(
    st.lists(st.tuples(st.floats(0, 300), st.booleans()), max_size=40),
    st.integers(0, 5),
)
def test_no_window_ever_has_more_restarts_than_allowed(deaths: list[tuple[float, bool]], most: int):
    allowed = policy(max_query_restarts=most, query_restart_window_ms=100_000)
    restarts, now, batch, tried = Restarts(allowed), 0.0, 0, []
    for gap, progressed in deaths:
        now, batch = now + gap, batch + progressed
        pause = restarts.died(now, batch)
        if pause is None:
            return
        assert 0 < pause <= allowed.backoff_max_s
        tried.append((now, batch))
        assert sum(now - at <= allowed.window_s for at, _ in tried) <= most
        assert sum(each == batch for _, each in tried) <= most
