"""What the planner plans with: the nodes as they report themselves, and one working slot a task."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType

from statehouse.assignment import TaskAssignment
from statehouse.topology import TaskId


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """What the assignment aims at; names and defaults are Kafka Streams'."""

    num_standby_replicas: int = 1
    """Copies beside the active. With none, a lost node's partitions are unreadable until restored elsewhere."""
    acceptable_recovery_lag: int = 10_000
    """A restored replica at most this many records behind counts as caught up."""
    max_warmup_replicas: int = 2
    """Replicas built at once for moves that nobody forced; bounds the load of a rebalance on the brokers."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """What a node says of its state for a task, dormant state on disk included."""

    restored: bool
    """Whether it answers lookups."""
    lag: int | None = None
    """Records behind, None if unknown."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A live node. A task it does not list, it holds nothing of."""

    rack: str = ""
    replicas: Mapping[TaskId, ReplicaView] = field(default_factory=lambda: MappingProxyType({}))
    leaving: bool = False
    """It shuts down: it keeps serving what it has, and gets nothing new."""
    held_back: str = ""
    """Why it is treated like one that leaves, as long as others can be given its tasks; empty if it is not."""
    capacity: int = 1
    """Weight of its share; at least 1."""


class Standing(IntEnum):
    """How near a node is to serving a task; smaller is nearer."""

    CAUGHT_UP = 0
    RESTORED = 1
    RESTORING = 2
    UNKNOWN = 3
    NOTHING = 4


def standing_of(view: ReplicaView | None, acceptable_lag: int) -> Standing:
    """Judge a replica.

    An unknown lag is never taken for a small one: a replica that can't say how far it is, is not caught up.
    """
    if view is None:
        return Standing.NOTHING
    if view.restored:
        return Standing.CAUGHT_UP if view.lag is not None and view.lag <= acceptable_lag else Standing.RESTORED
    return Standing.UNKNOWN if view.lag is None else Standing.RESTORING


@dataclass(frozen=True, slots=True)
class Plan:
    """Who holds each task, and what is still short of the aim."""

    tasks: Mapping[TaskId, TaskAssignment]
    under_replicated: tuple[TaskId, ...] = ()
    """Tasks with fewer copies than asked for, because there are fewer nodes."""
    deferred: tuple[TaskId, ...] = ()
    """Tasks whose surplus copies are kept for now only because the hand-over is fresh: plan again later."""
    moves_waiting: int = 0
    """Active moves that balance asks for and that wait for a warm-up, or for the budget to start one."""


@dataclass(slots=True)
class Slot:
    """A task while it is being planned."""

    task: TaskId
    was: TaskAssignment
    views: dict[str, ReplicaView] = field(default_factory=dict)
    """Live nodes that hold state for it."""
    active: str | None = None
    target: str | None = None
    """Where balance wants the active, while it can't go there yet."""
    standbys: list[str] = field(default_factory=list)
    surplus: list[str] = field(default_factory=list)
    """Holders beyond the wanted copies."""
    warm_up: str | None = None
    reasons: list[str] = field(default_factory=list)

    def held_by(self, node: str) -> bool:
        """Whether the plan so far has the node hold it in any role."""
        return (
            node == self.active or node == self.warm_up or node in self.standbys or node in self.surplus  # noqa: PLR1714
        )


class Fleet:
    """The live nodes, indexed for planning. Everything iterates in a fixed order."""

    def __init__(self, nodes: Mapping[str, NodeView], settings: PlannerSettings) -> None:
        """Index the nodes."""
        self.settings = settings
        self.live = {node: nodes[node] for node in sorted(nodes)}
        staying = [node for node, view in self.live.items() if not view.leaving]
        steady = [node for node in staying if not self.live[node].held_back]
        # A fleet that leaves as a whole has nowhere to hand over to: its nodes keep what they have.
        self.accepting = {node: self.live[node].capacity for node in steady or staying or self.live}
        """The nodes that may be given something, with their capacities."""
        racks = {self.live[node].rack for node in self.accepting}
        # With one rack, or one node in each, spreading over racks says nothing that spreading over nodes does not.
        self.racks = tuple(sorted(racks)) if 1 < len(racks) < len(self.accepting) else ()

    def rack(self, node: str) -> str:
        """Return a node's rack."""
        return self.live[node].rack

    def fill(self, count: int, node: str | None) -> float:
        """Return how full a count makes a node, to compare nodes by; nobody is a node of capacity 1."""
        return count / (self.live[node].capacity if node in self.live else 1)

    def standing(self, slot: Slot, node: str) -> Standing:
        """Return how near a node is to serving a task."""
        return standing_of(slot.views.get(node), self.settings.acceptable_recovery_lag)

    def is_caught_up(self, slot: Slot, node: str) -> bool:
        """Whether the node's replica may be the active of a hand-over."""
        return self.standing(slot, node) is Standing.CAUGHT_UP

    def rank(self, slot: Slot, node: str) -> tuple[Standing, int]:
        """Return a sort key, the most caught-up first; the caught-up are equals."""
        standing = self.standing(slot, node)
        view = slot.views.get(node)
        if standing is Standing.CAUGHT_UP or view is None or view.lag is None:
            return standing, 0
        return standing, view.lag

    def why_not_accepting(self, node: str) -> str:
        """Say in words why a live node gets nothing new."""
        view = self.live[node]
        return f"{node} is leaving" if view.leaving else view.held_back

    def describe(self, slot: Slot, node: str) -> str:
        """Say in words how near a node is to serving a task."""
        view = slot.views.get(node)
        if view is None:
            return "holds nothing of it"
        lag = "unknown lag" if view.lag is None else f"lag {view.lag}"
        return f"is restored, {lag}" if view.restored else f"has state to start from, {lag}"


def slots_of(tasks: Iterable[TaskId], current: Mapping[TaskId, TaskAssignment], fleet: Fleet) -> list[Slot]:
    """Open a slot for each task, in order, with the views of all who hold something of it."""
    nothing = TaskAssignment()
    slots = {task: Slot(task, current.get(task, nothing)) for task in sorted(set(tasks))}
    for node, view in fleet.live.items():
        for task, replica in view.replicas.items():
            slot = slots.get(task)
            if slot is not None:
                slot.views[node] = replica
    return list(slots.values())


def spread(nodes: Collection[str], fleet: Fleet) -> int:
    """Count the racks that nodes stand in."""
    return len({fleet.rack(node) for node in nodes})
