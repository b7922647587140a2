"""Tracks how far each node is from its share of the planned replicas, to find the least loaded node fast."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from processor.ownership.planning.model import LiveNodes, Slot
from processor.ownership.planning.shares import exact_shares


class Loads:
    """Replica counts of the accepting nodes, grouped by rack and by excess over their shares.

    Nodes are compared by distance from the exact share, not by count divided by capacity: with that, a node with a
    large capacity would stay several tasks below its share if each of many small nodes had a fraction of a task too
    much.

    Also counts the used pairs (active, standby): the standbys for one node's actives should be on many nodes, so that
    each of them takes over a little when the node dies.
    """

    def __init__(self, tasks: int, fleet: LiveNodes) -> None:
        """Start with every accepting node at zero; shares are computed for the copies of this number of tasks."""
        self._fleet = fleet
        copies = min(1 + fleet.settings.num_standby_replicas, len(fleet.accepting))
        shares = exact_shares(tasks * copies, fleet.accepting, most=tasks)
        self.one = shares.one
        """The value of one replica in an excess."""
        self._excess = {node: -share for node, share in shares.of.items()}
        self._count = dict.fromkeys(fleet.accepting, 0)
        self._rack = {node: fleet.rack(node) if fleet.racks else "" for node in fleet.accepting}
        # Dicts, not sets: iteration must not depend on the hash seed.
        self._levels: dict[str, dict[int, dict[str, None]]] = {}
        for node, rack in self._rack.items():
            self._levels.setdefault(rack, {}).setdefault(self._excess[node], {})[node] = None
        self._pairs: dict[str, dict[str, int]] = {}
        self._total = 0
        self._capacity = sum(fleet.accepting.values())

    def excess(self, node: str) -> int:
        """Return a node's count minus its exact share (negative if below), where `one` stands for one replica."""
        return self._excess[node]

    def add(self, node: str | None, change: int) -> None:
        """Change the count of a node."""
        if node is None or node not in self._count:
            return
        levels = self._levels[self._rack[node]]
        level = levels[self._excess[node]]
        del level[node]
        if not level:
            del levels[self._excess[node]]
        self._count[node] += change
        self._excess[node] += change * self.one
        self._total += change
        levels.setdefault(self._excess[node], {})[node] = None

    def add_all(self, nodes: Iterable[str], change: int) -> None:
        """Change the counts of several nodes."""
        for node in nodes:
            self.add(node, change)

    def move(self, old: str, new: str) -> None:
        """Move one replica between nodes."""
        self.add(old, -1)
        self.add(new, 1)

    def pair(self, slot: Slot, *standbys: str) -> None:
        """Count the pairs (active, standby) of a task."""
        if slot.active is not None:
            row = self._row(slot.active)
            for node in standbys or slot.standbys:
                if node in row:
                    row[node] += 1

    @property
    def lowest(self) -> int:
        """The excess of the least loaded node."""
        return min(excess for levels in self._levels.values() for excess in levels)

    def is_even(self) -> bool:
        """Whether the excesses of any two nodes differ by at most one replica."""
        excesses = [excess for levels in self._levels.values() for excess in levels]
        return max(excesses) - min(excesses) <= self.one

    def has_room(self, node: str) -> bool:
        """Whether a node is below its share of the replicas placed so far plus one."""
        return (self._count[node] - 1) * self._capacity < self._total * self._fleet.accepting[node]

    def least(
        self, taken: Collection[str], racks: Collection[str], active: str | None, *, strict: bool = False
    ) -> str | None:
        """Return the least loaded node that isn't taken, outside the given racks if possible (always if `strict`).

        If nodes are equal, return the one with the fewest standbys for this active.
        """
        outside = [levels for rack, levels in self._levels.items() if rack not in racks or not self._fleet.racks]
        found = self._least_of(outside, taken, active)
        if found is None and not strict:
            found = self._least_of(list(self._levels.values()), taken, active)
        return found

    def _least_of(
        self, groups: list[dict[int, dict[str, None]]], taken: Collection[str], active: str | None
    ) -> str | None:
        row = self._row(active)
        for excess in sorted({excess for levels in groups for excess in levels}):
            nodes = [node for levels in groups for node in levels.get(excess, ()) if node not in taken]
            if nodes:
                return min(nodes, key=row.__getitem__)
        return None

    def _row(self, active: str | None) -> dict[str, int]:
        row = self._pairs.get(active or "")
        if row is None:
            row = self._pairs[active or ""] = dict.fromkeys(self._count, 0)
        return row
