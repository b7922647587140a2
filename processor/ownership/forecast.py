"""What the controller will do, ahead of time: its own planner, on nodes that restore whatever they are given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from processor.ownership.model import NodeView, PlannerSettings, ReplicaView
from processor.ownership.planner import plan
from statehouse.assignment import TaskAssignment
from statehouse.topology import TaskId

# A step takes a plan, and the largest fleet's takes a second: far beyond any change that is worth looking at.
STEPS_MAX: Final = 10_000

_RESTORED: Final = ReplicaView(restored=True, lag=0)
_NOBODY: Final = TaskAssignment()


@dataclass(frozen=True, slots=True)
class Change:
    """Other holders of a task, with the planner's reason."""

    task: TaskId
    was: TaskAssignment
    now: TaskAssignment

    @property
    def is_active_moved(self) -> bool:
        """Whether another node answers first from now on."""
        return self.was.active is not None and self.was.active != self.now.active

    @property
    def built(self) -> frozenset[str]:
        """The nodes that begin to hold the task."""
        return frozenset(self.now.replicas) - frozenset(self.was.replicas)


@dataclass(frozen=True, slots=True)
class Load:
    """What a node holds; an active of an ephemeral task counts like any other."""

    node: str
    rack: str
    capacity: int
    actives: int
    standbys: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """A step is an epoch; between two of them everything assigned restores."""

    steps: tuple[tuple[Change, ...], ...]
    before: tuple[Load, ...]
    after: tuple[Load, ...]
    tasks: Mapping[TaskId, TaskAssignment]
    """The assignment after the last step."""
    is_complete: bool
    """Whether nothing is left to do; False if it takes more than the most steps."""


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
    """Return the steps to where planning comes to rest.

    Args:
        nodes: the live nodes, as they report themselves.
        current: the assignment in force, of every task there is.
        settings: what to aim at.
        ephemeral: tasks without copies, as in `plan`.
        added: further nodes, there from the first step on.
        removed: those of the nodes that are drained. They, and those that are leaving already, leave when they are no
            task's active any more; when nobody takes their tasks, without that.
        steps_max: the most steps.

    """
    fleet = {name: replace(view, leaving=view.leaving or name in removed) for name, view in nodes.items()}
    fleet |= added or {}
    leaving = {name for name, view in fleet.items() if view.leaving}
    tasks = dict(current)
    steps: list[tuple[Change, ...]] = []
    is_complete = False
    while not is_complete and len(steps) < steps_max:
        planned = plan(current, fleet, tasks, settings, ephemeral=ephemeral).tasks
        step = tuple(Change(task, tasks[task], now) for task, now in planned.items() if now != tasks[task])
        if step:
            steps.append(step)
            tasks = dict(planned)
            fleet = _restored(fleet, tasks)
        serving = {holders.active for holders in tasks.values()} if step else set()
        gone = leaving - serving
        fleet = {name: view for name, view in fleet.items() if name not in gone}
        leaving -= gone
        is_complete = not step and not gone
    return Forecast(
        tuple(steps), tuple(_loads(nodes, current)), tuple(_loads(fleet, tasks)), tasks, is_complete=is_complete
    )


def _restored(fleet: Mapping[str, NodeView], tasks: Mapping[TaskId, TaskAssignment]) -> dict[str, NodeView]:
    """Let every node hold, caught up, what it is assigned; what it is no longer assigned it keeps on disk."""
    replicas = {
        name: {task: replace(view, restored=False) for task, view in node.replicas.items()}
        for name, node in fleet.items()
    }
    for task, holders in tasks.items():
        for name in holders.replicas:
            if name in replicas:
                replicas[name][task] = _RESTORED
    return {name: replace(node, replicas=replicas[name]) for name, node in fleet.items()}


def _loads(nodes: Mapping[str, NodeView], tasks: Mapping[TaskId, TaskAssignment]) -> Iterator[Load]:
    actives = Counter(holders.active for holders in tasks.values())
    standbys = Counter(node for holders in tasks.values() for node in holders.standbys)
    for name, view in sorted(nodes.items()):
        yield Load(name, view.rack, view.capacity, actives[name], standbys[name])
