"""The planner's data: the nodes as they report themselves, and a working slot for each task."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType

from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.topology import TaskId


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """The aims of the assignment; the names are from Kafka Streams."""

    num_standby_replicas: int
    """Copies besides the active. With 0, the partitions of a lost node are unreadable until restored elsewhere."""
    acceptable_recovery_lag: int
    """A restored replica at most this many records behind counts as caught up."""
    max_warmup_replicas: int
    """Replicas built at once for voluntary moves; bounds the load of a rebalance on the brokers."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A node's report of its state for a task, dormant state on disk included."""

    restored: bool
    """Whether it answers lookups."""
    lag: int | None = None
    """Records behind; None if unknown."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """A live node. It has no state of tasks that it doesn't list."""

    rack: str = ""
    replicas: Mapping[TaskId, ReplicaView] = field(default_factory=lambda: MappingProxyType({}))
    leaving: bool = False
    """The node is shutting down: it serves its tasks, and gets nothing new."""
    damped: str = ""
    """Why the node is treated like a leaving one while others can take its tasks; empty if it isn't."""
    capacity: int = 1
    """The weight of the node's share; at least 1."""
    refuses: str = ""
    """Why the node is taken for gone though its session lasts; none of its replicas counts as restored then."""


class Readiness(IntEnum):
    """How near a node is to serving a task; smaller is nearer."""

    CAUGHT_UP = 0
    RESTORED = 1
    RESTORING = 2
    UNKNOWN = 3
    NOTHING = 4


def readiness_of(view: ReplicaView | None, acceptable_lag: int) -> Readiness:
    """Return the readiness of a replica.

    An unknown lag never counts as small: a replica that can't report its lag isn't caught up.
    """
    if view is None:
        return Readiness.NOTHING
    if view.restored:
        return Readiness.CAUGHT_UP if view.lag is not None and view.lag <= acceptable_lag else Readiness.RESTORED
    return Readiness.UNKNOWN if view.lag is None else Readiness.RESTORING


@dataclass(frozen=True, slots=True)
class Plan:
    """The holders of each task, and the tasks that don't meet the aim yet."""

    tasks: Mapping[TaskId, TaskAssignment]
    under_replicated: tuple[TaskId, ...] = ()
    """Tasks with fewer copies than asked for, because there are too few nodes."""
    deferred: tuple[TaskId, ...] = ()
    """Tasks that keep surplus copies only because their hand-over is recent: plan again later."""


@dataclass(slots=True)
class Slot:
    """A task while it is being planned."""

    task: TaskId
    was: TaskAssignment
    views: dict[str, ReplicaView] = field(default_factory=dict)
    """Live nodes with state of the task."""
    active: str | None = None
    target: str | None = None
    """The node to which balance will move the active; it isn't ready yet."""
    standbys: list[str] = field(default_factory=list)
    surplus: list[str] = field(default_factory=list)
    """Holders in excess of the wanted copies."""
    warm_up: str | None = None
    reasons: list[str] = field(default_factory=list)

    def is_on(self, node: str) -> bool:
        """Whether the plan so far gives the node this task in any role."""
        return (
            node == self.active or node == self.warm_up or node in self.standbys or node in self.surplus  # noqa: PLR1714
        )


class LiveNodes:
    """The live nodes, indexed for planning. All iterations have a fixed order."""

    def __init__(self, nodes: Mapping[str, NodeView], settings: PlannerSettings) -> None:
        """Index the nodes."""
        self.settings = settings
        self.live = {node: nodes[node] for node in sorted(nodes)}
        staying = [node for node, view in self.live.items() if not view.leaving]
        steady = [node for node in staying if not self.live[node].damped]
        # If all nodes are leaving there is no node to hand over to: they keep their tasks.
        self.accepting = {node: self.live[node].capacity for node in steady or staying or self.live}
        """Nodes that may get tasks -> their capacities."""
        racks = {self.live[node].rack for node in self.accepting}
        # With one rack, or one node per rack, spreading over nodes is enough.
        self.racks = tuple(sorted(racks)) if 1 < len(racks) < len(self.accepting) else ()

    def rack(self, node: str) -> str:
        """Return the rack of a node."""
        return self.live[node].rack

    def fill(self, count: int, node: str | None) -> float:
        """Return a count divided by the node's capacity, to compare nodes; None counts as a node of capacity 1."""
        return count / (self.live[node].capacity if node in self.live else 1)

    def readiness(self, slot: Slot, node: str) -> Readiness:
        """Return how ready a node is to serve a task."""
        return readiness_of(slot.views.get(node), self.settings.acceptable_recovery_lag)

    def is_caught_up(self, slot: Slot, node: str) -> bool:
        """Whether the node's replica may become the active in a hand-over."""
        return self.readiness(slot, node) is Readiness.CAUGHT_UP

    def rank(self, slot: Slot, node: str) -> tuple[Readiness, int]:
        """Return a sort key, the most caught-up first; all caught-up nodes are equal."""
        readiness = self.readiness(slot, node)
        view = slot.views.get(node)
        if readiness is Readiness.CAUGHT_UP or view is None or view.lag is None:
            return readiness, 0
        return readiness, view.lag

    def why_not_accepting(self, node: str) -> str:
        """Return in words why a live node gets nothing new."""
        view = self.live[node]
        return f"{node} is leaving" if view.leaving else view.damped

    def describe(self, slot: Slot, node: str) -> str:
        """Return in words how ready a node is to serve a task."""
        if self.live[node].refuses:
            return self.live[node].refuses
        view = slot.views.get(node)
        if view is None:
            return "holds nothing of it"
        lag = "unknown lag" if view.lag is None else f"lag {view.lag}"
        return f"is restored, {lag}" if view.restored else f"has state to start from, {lag}"


def slots_of(tasks: Iterable[TaskId], current: Mapping[TaskId, TaskAssignment], fleet: LiveNodes) -> list[Slot]:
    """Make a slot for each task, in order, with the views of all nodes that have state of it."""
    nothing = TaskAssignment()
    slots = {task: Slot(task, current.get(task, nothing)) for task in sorted(set(tasks))}
    for node, view in fleet.live.items():
        for task, replica in view.replicas.items():
            slot = slots.get(task)
            if slot is not None:
                slot.views[node] = replica
    return list(slots.values())


def spread(nodes: Collection[str], fleet: LiveNodes) -> int:
    """Return the number of racks of these nodes."""
    return len({fleet.rack(node) for node in nodes})
