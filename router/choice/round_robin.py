"""Round robin among the copies of a global store, which are equally good."""

from __future__ import annotations

import itertools
from collections import defaultdict

from router.fleet.table import PartitionRoutes
from statehouse.contract.topology import GlobalId


class RoundRobin:
    """Counts the lookups of each global store.

    Each store has its own count: with one count for all, a caller that asks stores in a fixed pattern would always ask
    the same copy of each.
    """

    def __init__(self) -> None:
        self._counts: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)

    def take(self, routes: PartitionRoutes) -> int:
        """Return the turn for `ask_order`: 0, 1, … for a global store, 0 for other stores: their replicas differ."""
        return next(self._counts[routes.store]) if isinstance(routes.task, GlobalId) else 0
