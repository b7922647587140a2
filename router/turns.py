"""Turns among the copies of a global store, which are equals."""

from __future__ import annotations

import itertools
from collections import defaultdict

from router.table import PartitionRoutes
from statehouse.topology import GlobalId


class Turns:
    """Counts what is asked of each global store.

    Each store is counted by itself: with one count for all, a caller that asks stores in a fixed pattern would always
    ask the same copy of each.
    """

    def __init__(self) -> None:
        self._counts: defaultdict[str, itertools.count[int]] = defaultdict(itertools.count)

    def take(self, routes: PartitionRoutes) -> int:
        """Return the turn for `ask_order`: 0, 1, … for a global store, 0 for others, whose replicas are no equals."""
        return next(self._counts[routes.store]) if isinstance(routes.task, GlobalId) else 0
