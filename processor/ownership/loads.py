"""How many replicas each node has in the plan so far, indexed so that the least loaded is found at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from processor.ownership.model import Fleet, Slot


class Loads:
    """Replica counts of the accepting nodes, grouped by rack and count.

    Also counts which pairs (active, standby) are in use: the standbys of one node's actives should be spread over
    many nodes, so that when it dies many take over a little each.
    """

    def __init__(self, fleet: Fleet) -> None:
        """Start with every accepting node at zero."""
        self._fleet = fleet
        self._count = dict.fromkeys(fleet.accepting, 0)
        self._rack = {node: fleet.rack(node) if fleet.racks else "" for node in fleet.accepting}
        # Dicts, not sets: iteration must not depend on the hash seed.
        self._levels: dict[str, dict[int, dict[str, None]]] = {}
        for node, rack in self._rack.items():
            self._levels.setdefault(rack, {}).setdefault(0, {})[node] = None
        self._pairs: dict[str, dict[str, int]] = {}
        self._total = 0

    def of(self, node: str) -> int:
        """Return a node's replicas; a leaving node counts as none."""
        return self._count.get(node, 0)

    def add(self, node: str | None, change: int) -> None:
        """Change a node's count."""
        if node is None or node not in self._count:
            return
        levels = self._levels[self._rack[node]]
        level = levels[self._count[node]]
        del level[node]
        if not level:
            del levels[self._count[node]]
        self._count[node] += change
        self._total += change
        levels.setdefault(self._count[node], {})[node] = None

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
        """The least loaded node's count."""
        return min((count for levels in self._levels.values() for count in levels), default=0)

    def is_even(self) -> bool:
        """Whether no two nodes differ by more than one."""
        counts = [count for levels in self._levels.values() for count in levels]
        return not counts or max(counts) - min(counts) <= 1

    def has_room(self, node: str) -> bool:
        """Whether a node has less than its share of all replicas."""
        return self._count[node] * len(self._count) < self._total + len(self._count)

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
        for count in sorted({count for levels in groups for count in levels}):
            nodes = [node for levels in groups for node in levels.get(count, ()) if node not in taken]
            if nodes:
                return min(nodes, key=row.__getitem__)
        return None

    def _row(self, active: str | None) -> dict[str, int]:
        row = self._pairs.get(active or "")
        if row is None:
            row = self._pairs[active or ""] = dict.fromkeys(self._count, 0)
        return row
