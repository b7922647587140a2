"""Rules that always hold for damping, however a member comes and goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.ownership.machine.damping import Damping
from tests.support.settings import ownership

TIMEOUT_S, WINDOW_S = 10.0, 100.0
seconds = st.integers(0, 300).map(lambda halves: halves / 2) | st.sampled_from([0.0, TIMEOUT_S, WINDOW_S])


@pytest.mark.feature("member-keeps-restarting")
@given(st.integers(1, 4), st.lists(st.tuples(seconds, st.booleans(), seconds), max_size=60))
def test_only_who_ends_too_often_is_held_back_and_never_for_longer_than_the_window(
    limit: int, comings: list[tuple[float, bool, float]]
) -> None:
    """Each coming: how long the member was there before its session ended, whether it was away, and for how long."""
    damping = Damping(ownership(session_timeout_ms=TIMEOUT_S * 1000, flap_limit=limit, flap_window_ms=WINDOW_S * 1000))
    now, ends, has_flapped = 0.0, list[float](), False
    for there_s, is_away, away_s in comings:
        now += there_s
        damping.pass_time(now)
        if there_s >= WINDOW_S:
            assert not damping.damped, "it was steady for the whole window"
        was_held = bool(damping.damped)
        damping.ended("n", now)
        damping.pass_time(now + 0.9 * WINDOW_S)
        assert not was_held or damping.damped, "being away is not being steady"
        ends.append(now)
        flaps = sum(now - at < WINDOW_S for at in ends) > limit
        has_flapped |= flaps
        if flaps:
            assert "n" in damping.damped
        if is_away:
            now += away_s
            damping.pass_time(now)
        damping.began("n", now)
        assert has_flapped or not damping.damped, "restarts within the limit hold nobody back"
        if flaps and not is_away:
            damping.pass_time(now + 0.9 * TIMEOUT_S)
            assert "n" in damping.damped, "it has to be steady for a session timeout at least"
    damping.pass_time(now + WINDOW_S)
    assert not damping.damped
    assert not damping._ended_at, "nor is anything else remembered for ever"
