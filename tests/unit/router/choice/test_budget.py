"""The retry budget: what it grants follows the recent traffic."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from router.choice.budget import RetryBudget


def _drain(take: Callable[[float], bool], now: float) -> int:
    granted = 0
    while take(now):
        granted += 1
    return granted


def test_a_quiet_router_has_some() -> None:
    assert _drain(RetryBudget(10, 5).retry, 0.0) == 50


def test_hedges_leave_half_to_retries() -> None:
    budget = RetryBudget(10, 5)
    assert _drain(budget.hedge, 0.0) == 25
    assert _drain(budget.retry, 0.0) == 25
    assert not budget.hedge(0.0)


def test_traffic_fills_it() -> None:
    budget = RetryBudget(10, 5)
    _drain(budget.retry, 0.0)
    for _ in range(1_000):
        budget.lookup(0.0)
    assert _drain(budget.retry, 0.0) == pytest.approx(100, abs=1)


def test_time_fills_it_and_takes_what_was_not_spent() -> None:
    budget = RetryBudget(10, 5)
    _drain(budget.retry, 0.0)
    assert _drain(budget.retry, 1.0) == pytest.approx(5, abs=1)
    for _ in range(10_000):
        budget.lookup(1.0)
    assert _drain(budget.retry, 1_000.0) == pytest.approx(50, abs=1), "old traffic pays for nothing"


def test_a_share_of_nothing_leaves_the_floor() -> None:
    budget = RetryBudget(0, 5)
    _drain(budget.retry, 0.0)
    for _ in range(10_000):
        budget.lookup(0.0)
    assert not budget.retry(0.0)
    assert budget.retry(1.0)


def test_a_retry_that_goes_ahead_in_any_case_is_owed() -> None:
    budget = RetryBudget(10, 5)
    _drain(budget.retry, 0.0)
    assert all(budget.retry(0.0, is_owed=True) for _ in range(1_000))
    assert not budget.retry(2.0), "what comes in pays it back"
    assert budget.retry(30.0), "but never more than what comes in"
