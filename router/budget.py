"""The retry budget: how many more calls than lookups a fleet is asked for when it is slow. Pure.

Every hedge and every retry is a call that the fleet would not have got had it been quick. Without a bound they double
the load just when it can bear the least. As in Finagle's `RetryBudget` each lookup pays in a share of a token, a
little comes in by the second so that a quiet router has some too, and what is not spent expires: what is there is
always a share of the *recent* traffic.

A hedge saves time, a retry saves the lookup: hedges leave half of what came in to the retries. And a retry at a node
that is known to be well goes ahead in any case: then it is one node that is slow, not the fleet. It is owed.
"""

from __future__ import annotations

import math

# Tokens live about as long as Finagle's.
_EXPIRY_S = 10.0
_FLOOR_PER_S = 5.0


class RetryBudget:
    """A token bucket. Times are of one monotonic clock, in seconds.

    Over any span of time no more is granted than `percent` of the lookups in and shortly before it, and 5 a second;
    retries that go ahead in any case aside.
    """

    def __init__(self, percent: float) -> None:
        self._share = percent / 100
        self._income = self._left = _FLOOR_PER_S * _EXPIRY_S
        self._at: float | None = None

    def lookup(self, now: float) -> None:
        """Note a lookup."""
        self._expire(now)
        self._income += self._share
        self._left += self._share

    def hedge(self, now: float) -> bool:
        """Take a token for a hedge; False if there is none to spare."""
        self._expire(now)
        return self._spend(self._income / 2)

    def retry(self, now: float, *, is_owed: bool = False) -> bool:
        """Take a token for a retry; False if there is none, unless it may be owed."""
        self._expire(now)
        if self._spend(0.0):
            return True
        if is_owed:
            self._left = max(self._left - 1, -self._income)
        return is_owed

    def _spend(self, reserve: float) -> bool:
        if self._left - 1 < reserve:
            return False
        self._left -= 1
        return True

    def _expire(self, now: float) -> None:
        elapsed_s = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        kept = math.exp(-elapsed_s / _EXPIRY_S)
        floor = _FLOOR_PER_S * _EXPIRY_S * (1 - kept)
        self._income = self._income * kept + floor
        self._left = self._left * kept + floor
