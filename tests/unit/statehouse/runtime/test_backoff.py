"""Pauses: doubling from the first to the longest, counted by cause, and started over by success."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.observability.metrics import count_pauses, new_registry
from statehouse.runtime.backoff import Backoff, BackoffByKey, BackoffPolicy

POLICY = BackoffPolicy("test", first_s=0.5, longest_s=3.0)
seconds = st.floats(0.001, 1_000)


@pytest.mark.parametrize(("failures", "pause_s"), [(1, 0.5), (2, 1.0), (3, 2.0), (4, 3.0), (5, 3.0), (10_000, 3.0)])
def test_pauses_double_up_to_the_longest(failures: int, pause_s: float) -> None:
    assert POLICY.pause_s(failures) == pause_s


def test_doubling_stops_before_a_number_is_too_large() -> None:
    endless = BackoffPolicy("test", 1.0, float("inf"))
    assert endless.pause_s(64) == 2.0**63
    assert endless.pause_s(65) == endless.pause_s(66) == endless.pause_s(5_000) == 2.0**64


@given(seconds, seconds, st.integers(1, 200))
def test_pauses_never_shrink_nor_exceed_the_longest(first_s: float, longest_s: float, failures: int) -> None:
    policy = BackoffPolicy("test", first_s, longest_s)
    pause_s, next_s = policy.pause_s(failures), policy.pause_s(failures + 1)
    assert 0 < pause_s <= next_s <= longest_s
    assert next_s in {2 * pause_s, longest_s}
    assert policy.pause_s(1) == min(first_s, longest_s)


def test_success_starts_over() -> None:
    backoff = Backoff(POLICY)
    assert [backoff.failed() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.failures == 5
    backoff.succeeded()
    assert backoff.failures == 0
    assert backoff.failed() == 0.5


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=40))
def test_each_key_pauses_as_if_it_were_alone(events: list[tuple[str, bool]]) -> None:
    causes: list[str] = []
    together = BackoffByKey[str](POLICY, causes.append)
    alone = {key: Backoff(POLICY) for key in "abc"}
    for key, has_failed in events:
        if has_failed:
            assert together.failed(key) == alone[key].failed()
        else:
            together.succeeded(key)
            alone[key].succeeded()
    assert causes == ["test"] * sum(has_failed for _, has_failed in events)


def test_who_is_no_longer_wanted_is_forgotten() -> None:
    backoff = BackoffByKey[str](POLICY)
    for key in "ab":
        assert [backoff.failed(key) for _ in range(2)] == [0.5, 1.0]
    backoff.retain(lambda key: key == "b")
    assert backoff.failed("a") == 0.5
    assert backoff.failed("b") == 2.0


def test_pauses_are_counted_by_their_cause() -> None:
    registry = new_registry()
    paused = count_pauses("router", registry)
    first, second = Backoff(POLICY, paused), Backoff(BackoffPolicy("other", 1, 1), paused)
    for backoff in (first, first, second):
        backoff.failed()
    counts = Counter[str]()
    for cause in ("test", "other"):
        counts[cause] = int(registry.get_sample_value("statehouse_router_backoffs_total", {"cause": cause}) or 0)
    assert counts == {"test": 2, "other": 1}
