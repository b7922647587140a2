"""Late answers: how long to wait before asking another replica too, and which nodes are slow. Pure.

The delay is a quantile of the recent times of the same kind of lookup, so that only the slowest few are hedged ("The
Tail at Scale", Dean and Barroso, 2013). Each node has its own window, and the *median* node's quantile counts, the
lower of two: a node that becomes slow must not teach the router that slow is normal.

If most of a node's latest attempts were late, the node is slow. Slow is not dead: it answers, and is asked after the
others. This is TiKV's slow score, counted per attempt: five late ones in a row make a node slow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

_WINDOW: Final = 128
# A quantile of fewer answers means little.
_LEAST_ANSWERS: Final = 20
# Sorting a window takes longer than adding to it.
_RECKON_EVERY: Final = 16
_DEFAULT_DELAY_S: Final = 0.05
# An answer counts as late after this many hedge delays; at the default quantile one in twenty takes longer than one.
_LATE: Final = 2.0
# The weight of the latest attempt in a node's score, and the score at which a node is slow.
_WEIGHT: Final = 1 / 8
_SLOW: Final = 0.45

CallKind = tuple[str, str]
"""Calls with similar durations: the store (empty for a batch over several) and the method."""


@dataclass(slots=True)
class _Windows:
    """The latest answer times of one kind of lookup, by node, in seconds, and the delay computed from them.

    Each has the number of answers that it stands for.
    """

    by_node: dict[str, deque[tuple[float, float]]] = field(default_factory=dict)
    delay_s: float | None = None
    unreckoned: int = 0


class AnswerTimes:
    """Answer times, and the nodes that answer late. Durations in seconds; nodes by instance id.

    The share `quantile` of the answers comes before the hedge delay, which is always within `least_s` to `most_s`.
    """

    def __init__(self, *, quantile: float, least_s: float, most_s: float) -> None:
        self._quantile, self._least_s, self._most_s = quantile, least_s, most_s
        self._kinds: dict[CallKind, _Windows] = {}
        self._scores: dict[str, float] = {}

    def hedge_delay_s(self, kind: CallKind) -> float:
        """Return how long to wait for an answer before asking another replica too."""
        windows = self._kinds.get(kind)
        known = None if windows is None else windows.delay_s
        return min(max(_DEFAULT_DELAY_S if known is None else known, self._least_s), self._most_s)

    def late_after_s(self, kind: CallKind) -> float:
        """Return the seconds after which an answer counts as late against its node."""
        return min(_LATE * self.hedge_delay_s(kind), self._most_s)

    def answered(self, kind: CallKind, node: str, took_s: float, weight: float = 1.0) -> bool:
        """Note an answer; True if it was late and the node is slow.

        `weight`: how many answers this time stands for. The proxy tells some times of the answers that came before the
        delay, and each later time on its own. If all had the same weight, the delay would become another quantile's.
        """
        is_slow = self._note(node, is_late=took_s > self.late_after_s(kind))
        self._add(kind, node, took_s, weight)
        return is_slow

    def overtaken(self, kind: CallKind, node: str, waited_s: float) -> bool:
        """Note that a hedge answered first after this wait for the node; True if the node is slow.

        Its answer would have taken longer. Without these times the quantile would miss the slowest answers and sink
        again and again.
        """
        self._add(kind, node, waited_s)
        return self._note(node, is_late=True)

    def retain(self, nodes: Collection[str], stores: Collection[str]) -> None:
        """Forget nodes and stores that no longer exist."""
        self._scores = {node: score for node, score in self._scores.items() if node in nodes}
        self._kinds = {kind: windows for kind, windows in self._kinds.items() if not kind[0] or kind[0] in stores}
        for windows in self._kinds.values():
            windows.by_node = {node: answers for node, answers in windows.by_node.items() if node in nodes}

    def _note(self, node: str, *, is_late: bool) -> bool:
        score = self._scores.get(node, 0.0)
        score += (is_late - score) * _WEIGHT
        self._scores[node] = score
        return is_late and score >= _SLOW

    def _add(self, kind: CallKind, node: str, took_s: float, weight: float = 1.0) -> None:
        windows = self._kinds.setdefault(kind, _Windows())
        windows.by_node.setdefault(node, deque(maxlen=_WINDOW)).append((took_s, weight))
        windows.unreckoned += 1
        if windows.unreckoned >= _RECKON_EVERY:
            windows.unreckoned = 0
            windows.delay_s = self._reckon(windows)

    def _reckon(self, windows: _Windows) -> float | None:
        """Return the median node's quantile, None if no node has given enough answers."""
        quantiles = sorted(
            _quantile(answers, self._quantile) for answers in windows.by_node.values() if len(answers) >= _LEAST_ANSWERS
        )
        return quantiles[(len(quantiles) - 1) // 2] if quantiles else None


def _quantile(answers: Collection[tuple[float, float]], share: float) -> float:
    """Return the first time, of times with weights, that more than this share of the weight doesn't exceed."""
    times = sorted(answers)
    left = share * sum(weight for _, weight in times)
    for took_s, weight in times:
        left -= weight
        if left < 0:
            return took_s
    return times[-1][0]
