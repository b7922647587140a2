"""How many events of a stream a batch may have, so that it takes no longer than `max_batch_ms`. Pure.

Spark's Kafka source reads the limit once, when a query starts. So each run measures a rate for the next one. A run's
first batch doesn't count: Java is cold, and tables are read to their ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from statistics import median
from typing import Final

from processor.reports.progress import BatchProgress

_FIRST: Final = 20_000
"""For a first run, which has no rate yet. With Python state, two cores process about that many a second."""
_LEAST: Final = 100
"""However slow the last run was: a smaller batch's time is its fixed cost."""
_MOST: Final = 1_000_000
_FULL: Final = 0.5
"""A batch with this part of the limit, or more, is full enough to show the rate: its fixed cost counts little."""
_SLOWEST: Final = 0.5
"""No rate below this part of the run's median is kept: a disturbance of some minutes mustn't slow the next run."""
_BATCHES_MAX: Final = 500
_DIFFERENT: Final = 0.05
"""Rates that differ by less aren't worth to be kept anew."""


def batch_limit(fixed: int | None, rate: float | None, max_batch_ms: int) -> int:
    """Return the most events that a batch may read of each stream.

    Args:
        fixed: what the user has set; None: choose.
        rate: events a second, of the last run; None: there is none.
        max_batch_ms: how long a batch may take.

    """
    if fixed is not None:
        return fixed
    if rate is None:
        return _FIRST
    return max(_LEAST, min(_MOST, round(rate * max_batch_ms / 1000)))


class _QueryRates:
    """The rates of a query's full batches in this run, but the first."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=_BATCHES_MAX)
        self._previous: float | None = None
        self._lowest: float | None = None

    def take(self, rate: float | None) -> None:
        """Take the rate of a batch; None if it wasn't full."""
        previous, self._previous = self._previous, rate
        if rate is None:
            return
        self._rates.append(rate)
        if previous is not None:
            both = max(previous, rate)
            self._lowest = both if self._lowest is None else min(self._lowest, both)

    def slow(self) -> float | None:
        """Return the rate when it is slow; None as long as there weren't two full batches in a row."""
        return None if self._lowest is None else max(self._lowest, _SLOWEST * median(self._rates))


class RateMeter:
    """Measures how many events a second of its fullest stream a query processes, when it is slow.

    That is the lowest rate that two batches in a row had: a run is slow at its beginning, while Java compiles, and
    later if its state grows. One batch alone may be slow by accident.
    """

    def __init__(self, limit: int, streams: Collection[str]) -> None:
        """Start; `limit` is this run's, `streams` the topics that it limits."""
        self._limit, self._streams = limit, frozenset(streams)
        self._queries: dict[str, _QueryRates] = {}
        self._kept: float | None = None

    def take(self, batch: BatchProgress) -> float | None:
        """Take a finished batch; return the rate to keep for the next run, of the slowest query, if it is a new one."""
        if batch.query not in self._queries:  # the first batch of the run
            self._queries[batch.query] = _QueryRates()
            return None
        events = max((read.read for topic, read in batch.topics.items() if topic in self._streams), default=0)
        is_full = events >= _FULL * self._limit and batch.duration_s > 0
        self._queries[batch.query].take(events / batch.duration_s if is_full else None)
        slow = min((rate for each in self._queries.values() if (rate := each.slow()) is not None), default=None)
        if slow is None or (self._kept is not None and abs(slow - self._kept) <= _DIFFERENT * self._kept):
            return None
        self._kept = slow
        return slow
