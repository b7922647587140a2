"""The task machine: decides what a node does with its tasks and its copies of global stores. No I/O, no clock.

Events go in, actions come out. The driver carries the actions out in their order, and brings an event when a step has
ended. The node is one driver (`replicas.tasks`), the simulation is another. The idea comes from dask's worker state
machine.

The rules:

- Opening a task, closing it and removing its folder each run alone: none of them begins while another step of the same
  task runs. So a step need not check whether another step has closed or removed what it works on.
- An assignment may change in any state. When a step ends, the machine compares the task with the newest assignment, and
  takes the next step.
- A task that fails goes to ERROR. After a pause it is closed and opened again. The pause doubles with each failure in a
  row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from query_service.states.faults import Fault
from query_service.states.lifecycle import next_state, role_changes
from query_service.states.ownership import Positions
from query_service.states.task_events import (
    Action,
    Assigned,
    CheckpointDue,
    Close,
    Closed,
    EndReached,
    Event,
    Failed,
    FoldersIdle,
    Follow,
    Following,
    NodeStops,
    NodeTask,
    NotSaved,
    Open,
    Opened,
    Partitions,
    Remove,
    Removed,
    Restore,
    Restoring,
    RetryAfter,
    RetryDue,
    RoleChanged,
    Save,
    Saved,
    SaveFailed,
    StateChanged,
    Stopped,
)
from statehouse.contract.assignment import Assignment
from statehouse.contract.membership import TaskState
from statehouse.contract.topology import AnyTaskId, Role, StoreSpec, TaskId
from statehouse.runtime.backoff import BackoffByKey, BackoffPolicy

RETRIES: Final = BackoffPolicy("task", first_s=1.0, longest_s=30.0)

_LIVE: Final = frozenset({TaskState.CREATED, TaskState.RESTORING, TaskState.RUNNING})


class TaskMachine:
    """All tasks of a node.

    `tasks` has those that are being opened, are open, or are being closed. `dormant` has the other tasks on disk,
    with their positions.
    """

    def __init__(self, dormant: Mapping[TaskId, Positions]) -> None:
        self.tasks: dict[AnyTaskId, NodeTask] = {}
        self.dormant: dict[TaskId, Positions] = dict(dormant)
        self._assignment = Assignment()
        self._wanted: Mapping[AnyTaskId, Role] = {}
        self._is_stopping = False
        self._steps: dict[AnyTaskId, int] = {}  # how many are under way, by task; none is 0
        self._backoff: BackoffByKey[AnyTaskId] = BackoffByKey(RETRIES)

    @property
    def states(self) -> list[TaskState]:
        """The state of each held task; a wanted task that is not opened yet counts as CREATED."""
        waiting = (TaskState.CREATED for task in self._wanted if task not in self.tasks)
        return [*(node_task.state for node_task in self.tasks.values()), *waiting]

    @property
    def in_use(self) -> set[AnyTaskId]:
        """The tasks whose folders are not idle."""
        return {*self._wanted, *self.tasks, *self._steps}

    def is_wanted(self, task: AnyTaskId) -> bool:
        """Whether the newest assignment wants a task as it is being opened; if not, it will be closed."""
        return self._is_as_wanted(task)

    @property
    def is_settled(self) -> bool:
        """Whether the node holds exactly what the newest assignment wants."""
        return all(self._is_as_wanted(task) for task in {*self._wanted, *self.tasks})

    def handle(self, event: Event) -> list[Action]:  # noqa: C901, PLR0911, PLR0912 - a line an event
        """Handle an event. Return the actions to carry out, in this order."""
        match event:
            case Assigned():
                return [] if self._is_stopping else self._assigned(event)
            case NodeStops():
                self._is_stopping = True
                return self._assigned(Assigned(Assignment(), {}))
            case Opened():
                return self._opened(event)
            case Restoring(node_task):
                self._end(node_task.task)
                return self._next(node_task.task)
            case EndReached():
                return self._end_reached(event)
            case Following():
                return self._following(event)
            case CheckpointDue(node_task):
                return self._checkpoint_due(node_task)
            case Saved() | SaveFailed():
                return self._save_ended(event)
            case Failed():
                return self._failed(event)
            case RetryDue(node_task):
                node_task.is_retry_due = True
                return self._next(node_task.task) if self._is_current(node_task) else []
            case Closed():
                return self._closed(event)
            case FoldersIdle(folders):
                return [action for task in folders for action in self._remove(task)]
            case Removed():
                return self._removed(event)

    # Events.

    def _assigned(self, event: Assigned) -> list[Action]:
        self._assignment, self._wanted = event.assignment, dict(event.wanted)
        actions: list[Action] = []
        for task, role in role_changes(
            {task: node_task.role for task, node_task in self.tasks.items()}, event.wanted
        ).items():
            self.tasks[task].role = role
            actions.append(RoleChanged(self.tasks[task]))
        for task in {**event.wanted, **self.tasks}:
            actions += self._next(task)
        return actions

    def _opened(self, event: Opened) -> list[Action]:
        node_task = event.node_task
        self._end(node_task.task)
        node_task.stores = event.stores
        if node_task.state is not TaskState.CREATED:
            return self._next(node_task.task)  # the task has failed meanwhile
        restoring = self._to(node_task, TaskState.RESTORING)
        if not self._is_as_wanted(node_task.task):
            return restoring + self._close(node_task)
        return [*restoring, self._begin(node_task.task, Restore(node_task))]

    def _end_reached(self, event: EndReached) -> list[Action]:
        node_task, store = event.node_task, event.store
        if not self._is_current(node_task) or node_task.state is not TaskState.RESTORING or store in node_task.restored:
            return []
        node_task.restored.add(store)
        return [self._begin(node_task.task, Follow(node_task, store))]

    def _following(self, event: Following) -> list[Action]:
        node_task = event.node_task
        self._end(node_task.task)
        node_task.following.add(event.store)
        return self._next(node_task.task)

    def _checkpoint_due(self, node_task: NodeTask) -> list[Action]:
        if not self._is_current(node_task) or node_task.state not in {TaskState.RESTORING, TaskState.RUNNING}:
            return []
        if node_task.task in self._steps:
            return []  # the next checkpoint is due soon
        return [self._begin(node_task.task, Save(node_task))]

    def _save_ended(self, event: Saved | SaveFailed) -> list[Action]:
        node_task = event.node_task
        self._end(node_task.task)
        if isinstance(event, SaveFailed):
            # A running task may go on without the readable copy: its next restore takes longer. A task that can't write
            # even its first checkpoint does not start to run.
            if node_task.state is TaskState.RESTORING or not event.is_copy:
                return self._fail(node_task, event.fault, event.error)
            return [NotSaved(node_task, event.fault, event.error), *self._next(node_task.task)]
        if self._follows_all(node_task):
            self._backoff.succeeded(node_task.task)
            return [*self._to(node_task, TaskState.RUNNING), *self._next(node_task.task)]
        return self._next(node_task.task)

    def _failed(self, event: Failed) -> list[Action]:
        if event.ends_step:
            self._end(event.node_task.task)
        return self._fail(event.node_task, event.fault, event.error) if self._is_current(event.node_task) else []

    def _closed(self, event: Closed) -> list[Action]:
        node_task = event.node_task
        self._end(node_task.task)
        actions = self._to(node_task, TaskState.CLOSED)
        del self.tasks[node_task.task]
        if event.on_disk and isinstance(node_task.task, TaskId):
            self.dormant[node_task.task] = event.on_disk
        return actions + self._next(node_task.task)

    def _removed(self, event: Removed) -> list[Action]:
        self._end(event.task)
        if event.is_gone and isinstance(event.task, TaskId):
            self.dormant.pop(event.task, None)
        return self._next(event.task)

    # Steps.

    def _next(self, task: AnyTaskId) -> list[Action]:
        """Begin the next step of a task towards the newest assignment, if one is due."""
        node_task = self.tasks.get(task)
        if self._steps.get(task):
            # The end of the running step calls this again. A task that is to go answers no more meanwhile: it would
            # claim the role that it had before the newest assignment.
            return [] if node_task is None or self._is_as_wanted(task) else self._suspend(node_task)
        if node_task is None:
            return self._open(task) if task in self._wanted else []
        if not self._is_as_wanted(task) or node_task.is_retry_due or node_task.state is TaskState.SUSPENDED:
            return self._close(node_task)
        if self._follows_all(node_task):
            # From now on a node that crashes must find a checkpoint to report: it gets back first what it has on disk.
            return [self._begin(task, Save(node_task))]
        return []

    def _open(self, task: AnyTaskId) -> list[Action]:
        node_task = NodeTask(task, self._wanted[task], self._assignment.partitions_of(task))
        self.tasks[task] = node_task
        if isinstance(task, TaskId):
            self.dormant.pop(task, None)  # before opening may wipe any of it
        return [self._begin(task, Open(node_task))]

    def _suspend(self, node_task: NodeTask) -> list[Action]:
        if node_task.state not in {TaskState.RESTORING, TaskState.RUNNING}:
            return []
        return self._to(node_task, TaskState.SUSPENDED)

    def _close(self, node_task: NodeTask) -> list[Action]:
        has_failed = node_task.state is TaskState.ERROR
        suspended = self._to(node_task, TaskState.SUSPENDED) if has_failed else self._suspend(node_task)
        return [*suspended, self._begin(node_task.task, Close(node_task, has_failed))]

    def _remove(self, task: AnyTaskId) -> list[Action]:
        return [] if task in self.in_use else [self._begin(task, Remove(task))]

    def _fail(self, node_task: NodeTask, fault: Fault, error: str) -> list[Action]:
        """Put a task into ERROR. Later it is closed and opened again, which restores whatever can be restored."""
        if node_task.state not in _LIVE:
            return self._next(node_task.task)  # the task has failed already, or is being closed
        pause_s = self._backoff.failed(node_task.task)
        node_task.error = f"{fault}: {error}"
        actions = [*self._to(node_task, TaskState.ERROR), Stopped(node_task, fault), RetryAfter(node_task, pause_s)]
        return actions + self._next(node_task.task)

    # Questions.

    def _is_current(self, node_task: NodeTask) -> bool:
        """Whether `node_task` still stands for its task: the task has not been closed since."""
        return self.tasks.get(node_task.task) is node_task

    def _is_as_wanted(self, task: AnyTaskId) -> bool:
        """Whether a task is as the newest assignment wants it: held with the same partitions, or not held."""
        node_task = self.tasks.get(task)
        if node_task is None or task not in self._wanted:
            return node_task is None and task not in self._wanted
        return _stored(node_task.partitions) == _stored(self._assignment.partitions_of(task))

    @staticmethod
    def _follows_all(node_task: NodeTask) -> bool:
        """Whether a restoring task has nothing left to restore, because the follower reads for all its stores."""
        return node_task.state is TaskState.RESTORING and node_task.following == node_task.stores

    def _to(self, node_task: NodeTask, state: TaskState) -> list[Action]:
        old, node_task.state = node_task.state, next_state(node_task.state, state)
        return [StateChanged(node_task, old, state)]

    def _begin(self, task: AnyTaskId, step: Action) -> Action:
        self._steps[task] = self._steps.get(task, 0) + 1
        return step

    def _end(self, task: AnyTaskId) -> None:
        self._steps[task] -= 1
        if not self._steps[task]:
            del self._steps[task]


def _stored(partitions: Partitions) -> list[tuple[StoreSpec, int]]:
    return [(spec.stored, number) for spec, number in partitions]
