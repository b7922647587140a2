"""How long who failed is left alone."""

from __future__ import annotations

from statehouse.client.backoff import FIRST_PAUSE_S, LONGEST_PAUSE_S, Backoff


def test_who_failed_is_left_alone_and_then_tried_by_one_caller() -> None:
    backoff = Backoff[str]()
    assert backoff.may_try("a", 0.0)
    backoff.failed("a", 0.0)
    backoff.failed("a", 0.1)  # a call that was under way
    assert not backoff.may_try("a", FIRST_PAUSE_S - 0.01)
    assert backoff.may_try("b", 0.0)
    assert backoff.may_try("a", FIRST_PAUSE_S)
    assert not backoff.may_try("a", FIRST_PAUSE_S)
    backoff.succeeded("a")
    assert backoff.may_try("a", FIRST_PAUSE_S)


def test_pauses_double_as_long_as_trials_fail_and_are_bounded() -> None:
    backoff = Backoff[str]()
    backoff.failed("a", 0.0)
    now_s, pauses = 0.0, []
    for _ in range(8):
        began_s = now_s
        while not backoff.may_try("a", now_s):
            now_s += 0.25
        pauses.append(now_s - began_s)
        backoff.failed("a", now_s)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]
    assert max(pauses) == LONGEST_PAUSE_S


def test_what_is_no_longer_wanted_is_forgotten() -> None:
    backoff = Backoff[str]()
    backoff.failed("a", 0.0)
    backoff.failed("b", 0.0)
    backoff.retain(lambda key: key == "b")
    assert backoff.may_try("a", 0.1)
    assert not backoff.may_try("b", 0.1)
