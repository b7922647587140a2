"""Rules that always hold for what refused connections prove, whatever comes in whatever order."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from processor.ownership.machine.refusals import REFUSALS_MIN, SPAN_S, EarlyBudget, Refusals, Seen

WINDOW_S = 100.0
steps = st.sampled_from([0.0, SPAN_S / 4, SPAN_S / 2, SPAN_S, 1.0])
late = st.sampled_from([0.0, 0.01, SPAN_S])
events = st.lists(st.tuples(steps, st.sampled_from([*Seen, "heard"]), late), max_size=40)
asks = st.lists(st.tuples(st.integers(0, 60), st.sampled_from("abc")), max_size=60)


@given(events)
def test_only_an_unbroken_row_of_refusals_since_all_else_proves_an_end(came: list[tuple[float, object, float]]) -> None:
    """Each event: how long after the one before it is known; what it is; how much earlier it happened."""
    refusals = Refusals()
    now, heard_at, was_open, row = 0.0, -math.inf, False, list[float]()
    for after_s, event, late_s in came:
        now += after_s
        at = now - late_s
        if event == "heard":
            refusals.doubt(now)
            heard_at, row = now, []
            assert not refusals.prove_end, "who is heard of lives"
        else:
            assert isinstance(event, Seen)
            refusals.see(event, at)
            was_open |= event is Seen.ACCEPTED
            if event is not Seen.REFUSED:
                row = []
            elif was_open and at > heard_at:
                row.append(at)
        if refusals.prove_end:
            assert was_open, "what never accepted refuses for another reason"
            assert len(row) >= REFUSALS_MIN
            assert row[-1] - row[0] >= SPAN_S
            assert min(row) > heard_at
    if len(row) >= REFUSALS_MIN and row[-1] - row[0] >= SPAN_S:
        assert refusals.prove_end, "and such a row does"


@given(st.integers(0, 5), st.integers(1, 3), asks)
def test_a_budget_is_kept_in_every_window(most: int, most_of_one: int, asked: list[tuple[int, str]]) -> None:
    budget, now = EarlyBudget(most, most_of_one, WINDOW_S), 0.0
    given_to: list[tuple[float, str]] = []
    for after_s, name in asked:
        now += after_s
        recent = [given for at, given in given_to if now - at < WINDOW_S]
        is_left = len(recent) < most and recent.count(name) < most_of_one
        assert budget.take(name, now) is is_left
        if is_left:
            given_to.append((now, name))
