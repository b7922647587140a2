"""How long who failed is left alone."""

from __future__ import annotations

from statehouse.client.breakers import POLICY, CircuitBreakers


def test_who_failed_is_left_alone_and_then_tried_by_one_caller() -> None:
    breakers = CircuitBreakers()
    assert breakers.may_try("a", 0.0)
    breakers.failed("a", 0.0)
    breakers.failed("a", 0.1)  # a call that was under way
    assert not breakers.may_try("a", POLICY.first_s - 0.01)
    assert breakers.may_try("b", 0.0)
    assert breakers.may_try("a", POLICY.first_s)
    assert not breakers.may_try("a", POLICY.first_s)
    breakers.succeeded("a")
    assert breakers.may_try("a", POLICY.first_s)


def test_pauses_double_as_long_as_trials_fail_and_are_bounded() -> None:
    breakers = CircuitBreakers()
    breakers.failed("a", 0.0)
    now_s, pauses = 0.0, []
    for _ in range(8):
        began_s = now_s
        while not breakers.may_try("a", now_s):
            now_s += 0.25
        pauses.append(now_s - began_s)
        breakers.failed("a", now_s)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]
    assert max(pauses) == POLICY.longest_s


def test_what_is_no_longer_wanted_is_forgotten() -> None:
    breakers = CircuitBreakers()
    breakers.failed("a", 0.0)
    breakers.failed("b", 0.0)
    breakers.retain(lambda key: key == "b")
    assert breakers.may_try("a", 0.1)
    assert not breakers.may_try("b", 0.1)
