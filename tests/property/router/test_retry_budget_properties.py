"""What the retry budget grants, whatever is asked of it and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.choice.budget import RetryBudget

# What happens, and how long after the event before.
events = st.lists(st.tuples(st.sampled_from(["lookup", "hedge", "retry", "owed"]), st.floats(0, 20)), max_size=60)


@pytest.mark.feature("hedged-lookups-within")
@given(st.floats(0, 100), events)
def test_no_more_is_granted_than_has_come_in(percent: float, happened: list[tuple[str, float]]) -> None:
    budget, now = RetryBudget(percent, 5), 100.0
    granted = hedges = lookups = 0
    for what, later_s in happened:
        now += later_s
        if what == "lookup":
            budget.lookup(now)
            lookups += 1
        elif what == "hedge":
            hedges += budget.hedge(now)
        elif what == "retry":
            granted += budget.retry(now)
        else:
            assert budget.retry(now, is_owed=True)
    came_in = 50 + 5 * (now - 100.0) + lookups * percent / 100
    assert granted + hedges <= came_in + 1e-6


@given(st.floats(0, 100), events)
def test_where_a_hedge_is_granted_a_retry_would_have_been(percent: float, happened: list[tuple[str, float]]) -> None:
    for_hedge, for_retry, now = RetryBudget(percent, 5), RetryBudget(percent, 5), 0.0
    for what, later_s in happened:
        now += later_s
        for budget in (for_hedge, for_retry):
            if what == "lookup":
                budget.lookup(now)
            elif what != "hedge":
                budget.retry(now, is_owed=what == "owed")
    assert for_retry.retry(now) or not for_hedge.hedge(now)


@given(st.floats(0, 100), events)
def test_it_is_never_in_debt_for_long(percent: float, happened: list[tuple[str, float]]) -> None:
    budget, now = RetryBudget(percent, 5), 0.0
    for what, later_s in happened:
        now += later_s
        if what == "lookup":
            budget.lookup(now)
        else:
            budget.retry(now, is_owed=True)
    assert budget.retry(now + 60)
    assert budget.hedge(now + 120)
