"""Medians, spreads and ratios of the figures of all rounds; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Self

from bench.measure import METRICS
from bench.shape import Side


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of one side in one round of a plan."""

    plan: str
    round: int
    side: Side
    work: str
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Spread:
    """Several values, summarized."""

    median: float
    least: float
    most: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Summarize values; there must be at least one."""
        return cls(median(values), min(values), max(values), len(values))


@dataclass(frozen=True, slots=True)
class Line:
    """A figure on all sides, and our figure divided by each other side's of the same round.

    With TLS it's the other way round: what is left of the plain figure. A division by 0 has no ratio.
    """

    plan: str
    work: str
    metric: str
    sides: Mapping[Side, Spread]
    ratios: Mapping[Side, Spread]


def lines(measured: Iterable[Measured]) -> list[Line]:
    """Return a line for each figure, in the order in which they were first measured."""
    found: dict[tuple[str, str, str], dict[Side, dict[int, float]]] = {}
    for each in measured:
        for metric in METRICS:
            if metric in each.figures:
                sides = found.setdefault((each.plan, each.work, metric), {})
                sides.setdefault(each.side, {})[each.round] = each.figures[metric]
    return [
        Line(
            plan,
            work,
            metric,
            {side: Spread.of(list(rounds.values())) for side, rounds in sides.items()},
            {
                side: Spread.of(ratios)
                for side, rounds in sides.items()
                if side is not Side.OURS and (ratios := _ratios(side, sides.get(Side.OURS, {}), rounds))
            },
        )
        for (plan, work, metric), sides in found.items()
    ]


def _ratios(side: Side, ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    divided, by = (theirs, ours) if side is Side.OURS_TLS else (ours, theirs)
    return [divided[number] / by[number] for number in divided if by.get(number)]
