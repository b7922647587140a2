"""Predicts the controller's steps: runs its planner on simulated nodes that restore every task they get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from processor.ownership.planning.model import NodeView, PlannerSettings, ReplicaView
from processor.ownership.planning.planner import plan
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.topology import TaskId

# Each step needs a plan, up to a second in the largest fleet; no real change takes this many steps.
STEPS_MAX: Final = 10_000

_RESTORED: Final = ReplicaView(restored=True, lag=0)


@dataclass(frozen=True, slots=True)
class AssignmentChange:
    """A change of a task's holders, with the planner's reason."""

    task: TaskId
    was: TaskAssignment
    now: TaskAssignment

    @property
    def is_active_moved(self) -> bool:
        """Whether the task gets another active."""
        return self.was.active is not None and self.was.active != self.now.active

    @property
    def built(self) -> frozenset[str]:
        """The nodes that are new holders of the task."""
        return frozenset(self.now.replicas) - frozenset(self.was.replicas)


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """The number of tasks that a node holds; an ephemeral task counts like any other."""

    node: str
    rack: str
    capacity: int
    actives: int
    standbys: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """The predicted steps. Each step is an epoch; between two steps all assigned tasks are restored."""

    steps: tuple[tuple[AssignmentChange, ...], ...]
    before: tuple[NodeLoad, ...]
    after: tuple[NodeLoad, ...]
    is_complete: bool
    """Whether the last step reaches the end; False if that needs more than `steps_max` steps."""


def forecast(
    nodes: Mapping[str, NodeView],
    current: Mapping[TaskId, TaskAssignment],
    settings: PlannerSettings,
    *,
    ephemeral: Collection[TaskId] = frozenset(),
    added: Mapping[str, NodeView] | None = None,
    removed: Collection[str] = (),
    steps_max: int = STEPS_MAX,
) -> Forecast:
    """Return the steps until the planner changes nothing more.

    Args:
        nodes: the live nodes, as they report themselves.
        current: the assignment in force, with all tasks.
        settings: the aims of the planner.
        ephemeral: tasks without copies, as in `plan`.
        added: further nodes, there from the first step on.
        removed: nodes to drain. They, and nodes that are already leaving, leave when they are the active of no task
            any more; if no node takes their tasks, they leave anyway.
        steps_max: the largest number of steps.

    """
    fleet = {name: replace(view, leaving=view.leaving or name in removed) for name, view in nodes.items()}
    fleet |= added or {}
    leaving = {name for name, view in fleet.items() if view.leaving}
    tasks = dict(current)
    steps: list[tuple[AssignmentChange, ...]] = []
    is_complete = False
    while not is_complete and len(steps) < steps_max:
        planned = plan(current, fleet, tasks, settings, ephemeral=ephemeral).tasks
        step = tuple(AssignmentChange(task, tasks[task], now) for task, now in planned.items() if now != tasks[task])
        if step:
            steps.append(step)
            tasks = dict(planned)
            fleet = _restored(fleet, tasks)
        serving = {holders.active for holders in tasks.values()} if step else set()
        gone = leaving - serving
        fleet = {name: view for name, view in fleet.items() if name not in gone}
        leaving -= gone
        is_complete = not step and not gone
    return Forecast(tuple(steps), tuple(_loads(nodes, current)), tuple(_loads(fleet, tasks)), is_complete=is_complete)


def _restored(fleet: Mapping[str, NodeView], tasks: Mapping[TaskId, TaskAssignment]) -> dict[str, NodeView]:
    """Return the nodes with all assigned tasks caught up; tasks no longer assigned stay on disk."""
    replicas = {
        name: {task: replace(view, restored=False) for task, view in node.replicas.items()}
        for name, node in fleet.items()
    }
    for task, holders in tasks.items():
        for name in holders.replicas:
            if name in replicas:
                replicas[name][task] = _RESTORED
    return {name: replace(node, replicas=replicas[name]) for name, node in fleet.items()}


def _loads(nodes: Mapping[str, NodeView], tasks: Mapping[TaskId, TaskAssignment]) -> Iterator[NodeLoad]:
    actives = Counter(holders.active for holders in tasks.values())
    standbys = Counter(node for holders in tasks.values() for node in holders.standbys)
    for name, view in sorted(nodes.items()):
        yield NodeLoad(name, view.rack, view.capacity, actives[name], standbys[name])
