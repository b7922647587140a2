"""Histograms of durations, and what is no histogram."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from response_times.histograms import BUCKETS, added_up, bounds_ms, quantile_bucket, read_histogram


def histogram(durations: list[float]) -> list[int]:
    return [
        sum(from_ms <= each < below_ms for each in durations) for from_ms, below_ms in map(bounds_ms, range(BUCKETS))
    ]


@given(st.lists(st.floats(0, 1e9), min_size=1), st.floats(0, 1))
def test_a_quantile_is_in_the_bucket_that_is_told(durations: list[float], quantile: float) -> None:
    counts = histogram(durations)
    assert sum(counts) == len(durations)
    bucket = quantile_bucket(counts, quantile)
    assert bucket is not None
    # The shortest duration that at least this share of all doesn't exceed.
    exact = next(each for place, each in enumerate(sorted(durations), 1) if place >= quantile * len(durations))
    from_ms, below_ms = bounds_ms(bucket)
    assert from_ms <= exact < below_ms


@given(st.lists(st.lists(st.floats(0, 1e6), max_size=5), max_size=5))
def test_histograms_of_parts_add_up_to_that_of_the_whole(parts: list[list[float]]) -> None:
    assert added_up(map(histogram, parts)) == histogram([each for part in parts for each in part])


def test_nothing_has_no_quantile() -> None:
    assert quantile_bucket(added_up([]), 0.5) is None


@pytest.mark.parametrize(
    "wrong",
    ["[]", "{}", "[1]", json.dumps([1.5] * BUCKETS), json.dumps([-1] * BUCKETS), json.dumps([True] * BUCKETS), "["],
)
def test_what_is_no_histogram_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_histogram(wrong.encode())
