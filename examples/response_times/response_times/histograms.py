"""Histograms of durations, as the topology makes them and the store reads them.

A histogram is a list of counts. Count 0 is of durations below a millisecond, count i of those from 2^(i-1) to below 2^i
milliseconds, and the last one of all longer ones. Histograms of several windows add up, which quantiles do not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

BUCKETS: Final = 18
"""The last bucket begins at a minute and five seconds."""


def bounds_ms(bucket: int) -> tuple[float, float]:
    """Return where a bucket begins, and where it ends."""
    return 0.0 if bucket == 0 else 2.0 ** (bucket - 1), float("inf") if bucket == BUCKETS - 1 else 2.0**bucket


def read_histogram(data: bytes) -> list[int]:
    """Return a histogram from its JSON.

    Raises:
        ValueError: the bytes aren't a histogram.

    """
    counts = json.loads(data)
    if not isinstance(counts, list) or len(counts) != BUCKETS:
        raise ValueError(f"not a histogram of {BUCKETS} counts")
    if not all(type(count) is int and count >= 0 for count in counts):
        raise ValueError("not a histogram: a count is no whole number from 0 on")
    return counts


def added_up(histograms: Iterable[Sequence[int]]) -> list[int]:
    """Return the histogram of all that were counted."""
    total = [0] * BUCKETS
    for counts in histograms:
        total = [known + count for known, count in zip(total, counts, strict=True)]
    return total


def quantile_bucket(counts: Sequence[int], quantile: float) -> int | None:
    """Return the bucket of the shortest duration that this share of all is not above; None if nothing was counted."""
    total, reached = sum(counts), 0
    for bucket, count in enumerate(counts):
        reached += count
        if count and reached >= quantile * total:
            return bucket
    return None
