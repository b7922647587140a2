"""How fast counters grow that somebody else counts: a sample now and then gives a rate. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

Counted = TypeVar("Counted", bound=Hashable)
Amount = TypeVar("Amount", int, float)


def grown(before: Mapping[Counted, Amount], after: Mapping[Counted, Amount]) -> dict[Counted, Amount]:
    """Return by how much each counter grew. One that wasn't there, or that counts less than before, began at zero."""
    return {key: count - last if (last := before.get(key, 0)) <= count else count for key, count in after.items()}


class CounterRates(Generic[Counted]):
    """Takes counts, which begin anew where a process does. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._counts: Mapping[Counted, int] = {}
        self._at_s: float | None = None

    def take(self, counts: Mapping[Counted, int], now_s: float) -> dict[Counted, float]:
        """Return how fast each counter has grown since the last counts; of those that were among them."""
        before, before_s = self._counts, self._at_s
        self._counts, self._at_s = dict(counts), now_s
        if before_s is None or now_s <= before_s:
            return {}
        return {key: count / (now_s - before_s) for key, count in grown(before, counts).items() if key in before}
