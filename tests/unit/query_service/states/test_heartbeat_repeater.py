"""Which heartbeat is due while a node does or doesn't run, and when a stop takes too long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from query_service.states.heartbeat_repeater import HeartbeatRepeater, StopLimit

SECONDS = st.floats(0.0, 300.0)


def test_what_a_node_says_is_due_once() -> None:
    repeats = HeartbeatRepeater(1.0)
    assert repeats.take(0.0) is None, "it has said nothing yet"
    repeats.say(b"1", 10.0)
    assert [repeats.take(at) for at in (10.0, 10.1, 11.4)] == [b"1", None, None]
    repeats.say(b"2", 11.4)
    assert repeats.take(11.4) == b"2"


def test_a_node_that_says_nothing_is_repeated_until_the_bound() -> None:
    repeats = HeartbeatRepeater(1.0, blocked_max_s=4.0)
    repeats.say(b"1", 0.0)
    assert [repeats.take(float(at)) for at in range(8)] == [b"1", None, b"1", None, b"1", None, None, None]
    assert not repeats.has_fallen_silent(4.0)
    assert repeats.has_fallen_silent(4.1)
    repeats.say(b"2", 9.0)
    assert repeats.take(9.0) == b"2"
    assert not repeats.has_fallen_silent(9.0)


def test_a_node_that_must_be_silent_is() -> None:
    repeats = HeartbeatRepeater(1.0, blocked_max_s=4.0)
    repeats.say(b"1", 0.0)
    repeats.say(None, 0.0)
    assert [repeats.take(float(at)) for at in range(10)] == [None] * 10
    assert not repeats.has_fallen_silent(100.0), "it does what it should"


def test_a_node_that_somebody_has_stopped_is_not_repeated_but_what_it_has_said_is_written() -> None:
    repeats = HeartbeatRepeater(1.0)
    repeats.say(b"1", 0.0)
    assert repeats.take(0.0, may_repeat=False) == b"1"
    assert repeats.take(5.0, may_repeat=False) is None
    assert repeats.take(5.1) == b"1"


@given(st.lists(SECONDS, min_size=1, max_size=20), st.floats(0.05, 5.0))
def test_while_a_node_is_blocked_within_the_bound_heartbeats_are_close(said_at: list[float], interval_s: float) -> None:
    tick_s = interval_s / 4
    repeats = HeartbeatRepeater(interval_s, blocked_max_s=300.0)
    repeats.say(b"0", 0.0)
    due, now, last = sorted(said_at), 0.0, 0.0
    while now < 10 * interval_s:
        while due and due[0] <= now:
            repeats.say(b"n", due.pop(0))
        if repeats.take(now) is not None:
            assert now - last <= 2 * interval_s
            last = now
        now += tick_s
    assert now - last <= 2 * interval_s


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=10))
def test_the_earliest_end_that_anybody_named_counts(asked: list[tuple[float, float]]) -> None:
    bound = StopLimit()
    assert not bound.is_over(1e9), "nobody has asked"
    for now, seconds in asked:
        bound.ask(now, seconds)
    until = min(now + seconds for now, seconds in asked)
    assert not bound.is_over(until)
    assert bound.is_over(until + 0.001)
