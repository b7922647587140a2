"""How far each node is from its share of the replicas in the plan so far, so that the least loaded is found at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from processor.ownership.model import Fleet, Slot
from processor.ownership.shares import exact_shares


class Loads:
    """Replica counts of the accepting nodes, grouped by rack and by how far they are above their shares.

    Distances from the exact share are compared, not counts divided by capacities: that would leave a node of a large
    capacity tasks short of its share when each of many small ones had a fraction of a task too much.

    Also counts which pairs (active, standby) are in use: the standbys of one node's actives should be spread over
    many nodes, so that when it dies many take over a little each.
    """

    def __init__(self, tasks: int, fleet: Fleet) -> None:
        """Start with every accepting node at zero, its share being that of so many tasks' copies."""
        self._fleet = fleet
        copies = min(1 + fleet.settings.num_standby_replicas, len(fleet.accepting))
        shares = exact_shares(tasks * copies, fleet.accepting, most=tasks)
        self.one = shares.one
        """What one replica is in an excess."""
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
        """Return how far an accepting node is above its exact share, below 0 if it is under it; in units of `one`."""
        return self._excess[node]

    def add(self, node: str | None, change: int) -> None:
        """Change a node's count."""
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
        """Move one replica."""
        self.add(old, -1)
        self.add(new, 1)

    def pair(self, slot: Slot, *standbys: str) -> None:
        """Count a task's pairs of active and standby."""
        if slot.active is not None:
            row = self._row(slot.active)
            for node in standbys or slot.standbys:
                if node in row:
                    row[node] += 1

    @property
    def lowest(self) -> int:
        """The least loaded node's excess."""
        return min(excess for levels in self._levels.values() for excess in levels)

    def is_even(self) -> bool:
        """Whether no two nodes' excesses differ by more than one replica."""
        excesses = [excess for levels in self._levels.values() for excess in levels]
        return max(excesses) - min(excesses) <= self.one

    def has_room(self, node: str) -> bool:
        """Whether a node has less than its share of the replicas placed so far, and one."""
        return (self._count[node] - 1) * self._capacity < self._total * self._fleet.accepting[node]

    def least(
        self, taken: Collection[str], racks: Collection[str], active: str | None, *, strict: bool = False
    ) -> str | None:
        """Return the least loaded node that is not taken, outside some racks if there is one (always if `strict`).

        Among equals the one with the fewest standbys of this active.
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
