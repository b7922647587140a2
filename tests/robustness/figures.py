"""A history in numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.robustness.checker import Violation, is_excused
from tests.robustness.history import History


@dataclass(frozen=True, slots=True)
class Figures:
    """What a report says of a run. Latencies are from when a lookup was due, of answered ones.

    Attributes:
        failed: lookups that nobody answered and no fault excuses.
        excused: by bound, those that a fault left no replica for.
        max_staleness_ms: the largest that an answer admitted to.
        longest_gap_s: longest time without an answer of any key, and which one it was.
        moves: replicas that appeared on a node in an epoch, and changes of the active.

    """

    seconds: float
    lookups: int
    failed: int
    excused: dict[str, int]
    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float
    max_staleness_ms: int
    longest_gap_s: float
    gap_key: str
    writes: int
    epochs: int
    moves: int
    faults: int


def figures(history: History) -> Figures:
    """Count."""
    answered = [lookup for lookup in history.lookups if lookup.answered]
    latencies = sorted(1000 * lookup.took_s for lookup in answered)
    excused = Counter(lookup.bound for lookup in history.lookups if is_excused(lookup, history.faults))
    gap_key, longest = max(gaps(history).items(), key=lambda gap: gap[1], default=("", 0.0))
    first, last = span(history)
    during = [epoch for epoch in history.epochs if epoch.at >= first]
    return Figures(
        seconds=last - first,
        lookups=len(history.lookups),
        failed=len(history.lookups) - len(answered) - excused.total(),
        excused=dict(excused),
        p50_ms=percentile(latencies, 0.5),
        p99_ms=percentile(latencies, 0.99),
        p999_ms=percentile(latencies, 0.999),
        max_ms=percentile(latencies, 1.0),
        max_staleness_ms=max((lookup.staleness_ms or 0 for lookup in answered), default=0),
        longest_gap_s=longest,
        gap_key=gap_key,
        writes=len(history.writes),
        epochs=len(during),
        moves=_moves(history, first),
        faults=len(history.faults),
    )


def limits_kept(history: History, p99_ms: float | None, gap_s: float | None) -> list[Violation]:
    """Return which limits on times a run breaks; they are for a machine that has nothing else to do."""
    found = []
    numbers = figures(history)
    if p99_ms is not None and numbers.p99_ms >= p99_ms:
        found.append(Violation("p99", numbers.seconds, f"{numbers.p99_ms:.1f} ms, the limit is {p99_ms:g}"))
    if gap_s is not None and numbers.longest_gap_s > gap_s:
        message = f"{numbers.longest_gap_s:.2f} s without an answer for {numbers.gap_key}, the limit is {gap_s:g}"
        found.append(Violation("gap", numbers.seconds, message))
    return found


def span(history: History) -> tuple[float, float]:
    """Return when the first lookup was due and the last ended."""
    first = min((lookup.due_at for lookup in history.lookups), default=0.0)
    return first, max((lookup.done_at for lookup in history.lookups), default=first)


def gaps(history: History) -> dict[str, float]:
    """Return the longest time between two answers for each key, from the first lookup's due time on to the last."""
    first, last = span(history)
    ends: dict[str, list[float]] = {lookup.key: [first] for lookup in history.lookups}
    for lookup in history.lookups:
        if lookup.answered:
            ends[lookup.key].append(lookup.done_at)
    return {key: max(after - before for before, after in pairwise([*at, last])) for key, at in ends.items()}


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return a percentile of sorted numbers by nearest rank, 0 of none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _moves(history: History, since: float) -> int:
    moves = 0
    for before, after in pairwise(history.epochs):
        if after.at >= since:
            moves += sum(was != now for was, now in zip(before.actives, after.actives, strict=True))
            moves += sum(len(set(now) - set(was)) for was, now in zip(before.replicas, after.replicas, strict=True))
    return moves
