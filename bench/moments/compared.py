"""Figures of two ways that take turns, and what one costs more than the other. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles

_QUARTERS = 4


@dataclass(frozen=True, slots=True)
class Turn:
    """A measured turn; `has`: with what is looked at. `costs` are per unit of work, whatever the unit."""

    has: bool
    costs: float


@dataclass(frozen=True, slots=True)
class Compared:
    """What turns with something cost, as ratios to those without: the median of all, and the middle half."""

    without: float
    with_it: float
    ratio: float
    low: float
    high: float

    @property
    def percent(self) -> float:
        """What it costs more, percent."""
        return 100 * (self.ratio - 1)

    def __str__(self) -> str:
        return f"{self.percent:+.1f} % ({100 * (self.low - 1):+.1f} to {100 * (self.high - 1):+.1f})"


def compared(runs: Sequence[Sequence[Turn]]) -> Compared:
    """Compare each turn with the mean of those before and after it, so that what drifts doesn't count.

    Args:
        runs: of each run its turns in order, of both ways by turns, at least three.

    """
    ratios = [ratio for run in runs for ratio in _ratios(run)]
    low, _, high = quantiles(ratios, n=_QUARTERS) if len(ratios) > 1 else ratios * (_QUARTERS - 1)
    costs = {has: median(turn.costs for run in runs for turn in run if turn.has == has) for has in (False, True)}
    return Compared(costs[False], costs[True], median(ratios), low, high)


def _ratios(run: Sequence[Turn]) -> Iterator[float]:
    for before, turn, after in zip(run, run[1:], run[2:], strict=False):
        beside = (before.costs + after.costs) / 2
        yield turn.costs / beside if turn.has else beside / turn.costs
