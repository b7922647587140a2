"""The retry budget: a bound on the calls beyond one per lookup when the fleet is slow. Pure.

A quick fleet gets few hedges and retries. A slow fleet gets many: without a bound they double its load exactly when it
can bear the least. As in Finagle's `RetryBudget`, each lookup pays in a share of a token, a little comes in each second
so that a quiet router has some too, and unspent tokens expire: the budget is always a share of the *recent* traffic.

A hedge saves time, a retry saves the lookup: hedges leave half of the income to the retries. A retry at a node that is
known to be well always goes ahead, because then only one node is slow, not the fleet; its token is owed.
"""

from __future__ import annotations

import math

# Tokens live about as long as in Finagle.
_EXPIRY_S = 10.0


class RetryBudget:
    """A token bucket. Times are of one monotonic clock, in seconds.

    In any span of time it grants at most `percent` of the lookups in and shortly before the span, plus `per_s` per
    second; retries that always go ahead are not bounded.
    """

    def __init__(self, percent: float, per_s: float) -> None:
        self._share, self._floor = percent / 100, per_s * _EXPIRY_S
        self._income = self._left = self._floor
        self._at: float | None = None

    def lookup(self, now: float, count: int = 1) -> None:
        """Note lookups."""
        self._expire(now)
        self._income += self._share * count
        self._left += self._share * count

    def hedge(self, now: float) -> bool:
        """Take a token for a hedge; return False if none is left for hedges."""
        self._expire(now)
        return self._spend(self._income / 2)

    def retry(self, now: float, *, is_owed: bool = False) -> bool:
        """Take a token for a retry; return False if none is left and it may not be owed."""
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
        floor = self._floor * (1 - kept)
        self._income = self._income * kept + floor
        self._left = self._left * kept + floor
