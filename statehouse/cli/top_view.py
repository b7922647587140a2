"""What `statehouse top` shows of a fleet: totals, and what is worst first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from statehouse.client import Fleet, Node, Task
from statehouse.client.restore_rates import RunningRestore
from statehouse.contract.membership import TaskState

LATE_MS: Final = 3_000
"""Heartbeats come each second by default; a node whose last one is older may be silent."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node, with what it holds.

    Attributes:
        restoring: replicas that it restores.
        lag: the largest lag of a task that it holds and doesn't restore. None if none is known.
        lookups_per_s: lookups that it has answered a second, lately. None if it doesn't say.

    """

    node: str
    state: str
    address: str
    actives: int
    standbys: int
    restoring: int
    lag: int | None
    heartbeat_age_ms: int
    reachable: bool
    lookups_per_s: float | None

    @property
    def is_well(self) -> bool:
        """Whether nothing about it asks for attention."""
        return self.state == "RUNNING" and self.reachable and self.heartbeat_age_ms <= LATE_MS


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task, or a global store, by its active's last report.

    Attributes:
        state: of the active's replica; "no active", or "not reported".
        lag: of the active, or the largest of a global store's copies. None if unknown.

    """

    task: str
    state: str
    active: str | None
    lag: int | None
    replicas: int
    reason: str

    @property
    def is_well(self) -> bool:
        """Whether its active runs."""
        return self.state == TaskState.RUNNING


@dataclass(frozen=True, slots=True)
class TopView:
    """A fleet at one moment.

    Attributes:
        nodes: those that aren't well first.
        tasks: those that aren't well first, then those with the largest lag.

    """

    fleet: Fleet
    nodes: Sequence[NodeRow]
    tasks: Sequence[TaskRow]
    restores: Sequence[RunningRestore]
    lookups_per_s: float | None
    tasks_by_state: Mapping[str, int] = field(default_factory=dict)
    lag: int | None = None
    """The largest lag of an active."""


def top_view(
    fleet: Fleet, restores: Sequence[RunningRestore], lookups_per_s: Mapping[str, float] | None = None
) -> TopView:
    """Return what there is to see; `lookups_per_s` by instance id, of nodes that count lookups."""
    rates = lookups_per_s or {}
    tasks = sorted(map(_task, fleet.tasks), key=lambda row: (row.is_well, -(row.lag or 0), row.task))
    lags = [row.lag for row in tasks if row.lag is not None]
    return TopView(
        fleet,
        _nodes(fleet, rates),
        tasks,
        sorted(restores, key=lambda each: -(each.left or 0)),
        sum(rates.values()) if rates else None,
        Counter(row.state for row in tasks),
        max(lags, default=None),
    )


def _nodes(fleet: Fleet, rates: Mapping[str, float]) -> list[NodeRow]:
    actives = Counter(task.active for task in fleet.tasks)
    standbys = Counter(name for task in fleet.tasks for name in task.standbys)
    restoring: Counter[str] = Counter()
    lags: dict[str, int] = {}
    for task in fleet.tasks:
        for replica in task.replicas:
            if replica.state == TaskState.RESTORING:
                restoring[replica.instance_id] += 1
            elif replica.lag is not None:
                lags[replica.instance_id] = max(replica.lag, lags.get(replica.instance_id, 0))

    def row(node: Node) -> NodeRow:
        name = node.host.instance_id
        return NodeRow(
            name,
            node.state,
            f"{node.host.host}:{node.host.port}",
            actives[name],
            standbys[name],
            restoring[name],
            lags.get(name),
            node.heartbeat_age_ms,
            node.reachable,
            rates.get(name),
        )

    return sorted(map(row, fleet.nodes), key=lambda each: (each.is_well, each.node))


def _task(task: Task) -> TaskRow:
    if any(replica.role == "GLOBAL" for replica in task.replicas):
        # Every node has a copy, and nobody is its active: the worst copy counts.
        states = {replica.state for replica in task.replicas}
        state = next(iter(states)) if len(states) == 1 else "on some nodes"
        lags = [replica.lag for replica in task.replicas if replica.lag is not None]
        return TaskRow(task.task, state, None, max(lags, default=None), len(task.replicas), task.reason)
    active = next((replica for replica in task.replicas if replica.instance_id == task.active), None)
    state = "no active" if task.active is None else "not reported" if active is None else active.state
    lag = None if active is None else active.lag
    return TaskRow(task.task, state, task.active, lag, len(task.replicas), task.reason)
