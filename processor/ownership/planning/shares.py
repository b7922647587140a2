"""Shares in proportion to capacities, exact and rounded.

Exact shares are integers over a common denominator, so comparisons never depend on rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shares:
    """The share of each node: `of[node] / one`."""

    of: Mapping[str, int]
    one: int

    def rounded(self, held: Mapping[str, int]) -> dict[str, int]:
        """Return whole shares by largest remainder; of nodes with equal remainders, one that holds more gets more."""
        whole = {node: share // self.one for node, share in self.of.items()}
        left = sum(self.of.values()) // self.one - sum(whole.values())
        ranked = sorted(self.of, key=lambda node: (-(self.of[node] % self.one), whole[node] - held.get(node, 0), node))
        for node in ranked[:left]:
            whole[node] += 1
        return whole


def exact_shares(total: int, capacities: Mapping[str, int], most: int) -> Shares:
    """Divide `total` in proportion to the capacities, at most `most` for each node.

    The excess over `most` goes to the other nodes, in proportion. `total` must be at most `most` times the nodes.
    """
    left, open_ = total, dict(capacities)
    while True:
        weight = sum(open_.values())
        full = [node for node, capacity in open_.items() if left * capacity > most * weight]
        if not full:
            break
        left -= most * len(full)
        for node in full:
            del open_[node]
    one = max(weight, 1)
    return Shares({node: left * open_[node] if node in open_ else most * one for node in capacities}, one)
