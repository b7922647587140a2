"""The tasks of a simulated node: the real task machine, its actions carried out on a simulated disk and network.

The counterpart of `TaskManager`, its steps and its replication threads. The seed decides which faults a step meets: a
broker that can't be asked, a disk that refuses.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from query_service.dataplane.holding import DataPlaneKeyValue
from query_service.disk.cleanup import IdleFolders
from query_service.replicas.replica import StoreReplica, TaskReplica
from query_service.states.checkpoint import Checkpoint
from query_service.states.faults import Fault
from query_service.states.keep_or_wipe import Changelog as ChangelogFacts
from query_service.states.keep_or_wipe import restore_start
from query_service.states.lifecycle import StoreState
from query_service.states.task_events import (
    Action,
    CheckpointDue,
    Close,
    Closed,
    EndReached,
    Event,
    Failed,
    FoldersIdle,
    Follow,
    Following,
    NodeTask,
    Open,
    Opened,
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
)
from query_service.states.task_machine import TaskMachine
from query_service.stores.memory_engine import MemoryEngine
from statehouse.contract.membership import TaskState
from statehouse.contract.topology import AnyTaskId, Role, TaskId
from tests.simulation.kafka import Changelog, Kafka
from tests.simulation.world import KAFKA

if TYPE_CHECKING:
    from tests.simulation.node import SimulatedNode

_RESTORE_STEP_S = 0.1
_FETCHED = 500
_REFUSED_SHARE = 0.03
"""Of the steps that a disk refuses."""
_TALLY = SimpleNamespace(add=lambda _started, _size: None)
_UNCOUNTED: Any = SimpleNamespace(
    applied=lambda *_arguments, **_options: None,
    writes=SimpleNamespace(flushed=lambda _took_s, _now_s: None),
    skipped=lambda: None,
    reads=defaultdict(lambda: _TALLY),
)
_ALONE = (Open, Close, Remove)


class _NumberedEngine(MemoryEngine):
    """The engine in memory, with the number that a store of the data plane has."""

    def __init__(self, store: int) -> None:
        super().__init__(sys.maxsize)
        self.store = store


class SimulatedTasks:
    """The tasks of one process of a node. `on_change()`: something about them has changed."""

    def __init__(
        self, node: SimulatedNode, kafka: Kafka, cleanup_delay_s: float, on_change: Callable[[], None]
    ) -> None:
        self._node, self._world, self._kafka, self._on_change = node, node.world, kafka, on_change
        self.machine = TaskMachine({task: _positions(stores) for task, stores in node.at.disk.items()})
        self.replicas: dict[AnyTaskId, TaskReplica] = {}
        self.running_since: dict[AnyTaskId, float] = {}
        self.active_since: dict[AnyTaskId, float] = {}
        self.without_first_batch_until: dict[tuple[str, int], float] = {}
        """When a replica of a store's partition last read on from before the end of the store's first batch."""
        self._idle_folders = IdleFolders(cleanup_delay_s)
        self._under_way: dict[AnyTaskId, list[Action]] = defaultdict(list)
        self._wiped: set[NodeTask] = set()

    def take(self, event: Event) -> None:
        """Bring an event to the machine, and carry out what it decides."""
        actions = self.machine.handle(event)
        for action in actions:
            self._carry_out(action)
        if actions or isinstance(event, Removed):
            self._on_change()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held, and nothing under way."""
        return not self.machine.tasks and not any(self._under_way.values())

    def stores(self, *states: TaskState) -> list[tuple[TaskReplica, StoreReplica]]:
        """Return the stores of the tasks in one of these states."""
        return [
            (replica, store)
            for replica in self.replicas.values()
            if replica.state in states
            for store in replica.stores.values()
        ]

    def checkpoints_due(self) -> None:
        for node_task in list(self.machine.tasks.values()):
            self.take(CheckpointDue(node_task))

    def clean_up(self) -> None:
        idle = self._idle_folders.due(list(self._node.at.disk), self.machine.in_use, self._world.now)
        self.take(FoldersIdle(idle))

    def fail(self, task: AnyTaskId, *, wiped: bool) -> None:
        """A task's disk or store breaks, and with `wiped` what was on it is gone."""
        node_task = self.machine.tasks[task]
        if wiped:
            self._wiped.add(node_task)
        self.take(Failed(node_task, Fault.DEFECT, "broken by the simulation"))

    def save_all(self) -> None:
        """Write what would be on the disk if nothing were lost."""
        for replica in self.replicas.values():
            if replica.state in {TaskState.RUNNING, TaskState.RESTORING}:
                self._save(replica)

    # Actions.

    def _carry_out(self, action: Action) -> None:  # noqa: C901 - a few lines an action
        world = self._world
        match action:
            case RetryAfter(node_task, pause_s):
                self._node.later(pause_s, self.take, RetryDue(node_task))
            case RoleChanged(node_task):
                self._note_role(node_task)
            case StateChanged(node_task, _, new):
                self._note_state(node_task, new)
            case Open(node_task):
                self.replicas[node_task.task] = TaskReplica(node_task, cast(Any, None))
                self._note_role(node_task)
                self._begin(action, world.rng.uniform(0.02, 0.3), self._opened)
            case Restore():
                self._begin(action, 0.005, self._restoring)
            case Follow(node_task, store):
                self.replicas[node_task.task].stores[store].to(StoreState.RESTORED)
                self._begin(action, world.rng.uniform(0.005, 0.05), self._followed)
            case Save():
                self._begin(action, world.rng.uniform(0.005, 0.05), self._saved)
            case Close(node_task):
                for replica in self.replicas[node_task.task].stores.values():
                    replica.to(StoreState.CLOSING)
                self._begin(action, world.rng.uniform(0.01, 0.1), self._closed)
            case Remove():
                self._begin(action, world.rng.uniform(0.01, 0.1), self._removed)

    def _note_role(self, node_task: NodeTask) -> None:
        if node_task.role is Role.ACTIVE:
            self.active_since[node_task.task] = self._world.now

    def _note_state(self, node_task: NodeTask, new: TaskState) -> None:
        task, world = node_task.task, self._world
        if new is TaskState.RUNNING:
            self.running_since[task] = world.now
            world.counts["restores"] += 1
        else:
            self.running_since.pop(task, None)
        if new is TaskState.CLOSED:
            del self.replicas[task]
            self.active_since.pop(task, None)
        world.note(self._node.name, "{} is {} as {}", task, new.value, node_task.role.name)

    def _begin(self, action: Any, seconds: float, ended: Callable[[Any], Event]) -> None:
        """Begin a step that ends after a time."""
        task = action.task if isinstance(action, Remove) else action.node_task.task
        others = self._under_way[task]
        if others and (isinstance(action, _ALONE) or isinstance(others[0], _ALONE)):
            self._world.break_rule(
                "no step of a task disturbs another",
                f"{self._node.name} begins {type(action).__name__} of {task} during {type(others[0]).__name__}",
            )
        others.append(action)

        def end() -> None:
            event = ended(action)
            others.remove(action)
            self.take(event)

        self._node.later(seconds, end)

    def _is_refused(self) -> bool:
        if self._world.disks_refuse and self._world.rng.random() < _REFUSED_SHARE:
            self._world.counts["steps that failed"] += 1
            return True
        return False

    def _opened(self, action: Open) -> Event:
        node_task = action.node_task
        if not self._world.net.is_well(self._node.machine, KAFKA, self._world.now):
            return Failed(node_task, Fault.BROKER, "the log's ends can't be asked for", ends_step=True)
        if self._is_refused():
            return Failed(node_task, Fault.DISK_REFUSED, "refused by the simulation", ends_step=True)
        replica = self.replicas[node_task.task]
        for spec, partition in node_task.partitions:
            store = self._open_store(node_task, self._kafka.changelogs[spec.name, partition])
            replica.stores[store.folder] = store
        return Opened(node_task, frozenset(replica.stores))

    def _open_store(self, node_task: NodeTask, log: Changelog) -> StoreReplica:
        spec, wall_ms = log.spec, int(self._world.time() * 1000)
        checkpoint = (
            self._node.at.disk.get(node_task.task, {}).get(spec.name) if isinstance(node_task.task, TaskId) else None
        )
        facts = ChangelogFacts(spec.changelog_topic, "id", 0, log.end, None)
        position = restore_start(checkpoint, "", facts, wall_ms).position or 0
        place = Checkpoint(spec.changelog_topic, "id", position, wall_ms)
        if checkpoint is not None and checkpoint.position == position:
            place = replace(place, batch=checkpoint.batch, records_end=checkpoint.records_end)
        # As far as its snapshot and its answers go, it is one of the data plane's.
        engine: Any = _NumberedEngine(next(self._world.numbers))
        kept = DataPlaneKeyValue(engine)
        kept.apply(log.state_at(position), place)
        store = StoreReplica(
            spec,
            log.partition,
            kept,
            place,
            _UNCOUNTED,
            restored_to=log.end,
            ends_valid_s=self._node.session_timeout_s,
        )
        self._world.recorder.opened(self._node, store)
        return store

    def _restoring(self, action: Restore) -> Event:
        for store in self.replicas[action.node_task.task].stores.values():
            self._world.recorder.followed(store, restores=True)
        self._restore(action.node_task)
        return Restoring(action.node_task)

    def _restore(self, node_task: NodeTask) -> None:
        """Read a little for each store that the restorer has; it tells of every end that it reaches."""
        stores = (
            [store for store in self.replicas[node_task.task].stores.values() if store.state is StoreState.RESTORING]
            if node_task.state is TaskState.RESTORING
            else []
        )
        if not stores:
            return
        budget = max(1, int(self._node.at.restore_records_per_s * _RESTORE_STEP_S))
        for store in stores if self._is_in_touch() else ():
            if budget > 0:
                budget -= self.read(store, budget)
            if store.position >= self.log_of(store).end:
                self._node.later(0.001, self.take, EndReached(node_task, store.folder))
        self._node.later(_RESTORE_STEP_S, self._restore, node_task)

    def _followed(self, action: Follow) -> Event:
        node_task = action.node_task
        if self._is_refused():
            return Failed(node_task, Fault.DEFECT, "refused by the simulation", ends_step=True)
        store = self.replicas[node_task.task].stores[action.store]
        store.to(StoreState.FOLLOWING)
        self._world.recorder.followed(store, restores=False)
        if self._is_in_touch():
            self.read(store, _FETCHED)
        self.log_of(store).watchers.append(partial(self._written, store))
        return Following(node_task, action.store)

    def _saved(self, action: Save) -> Event:
        if self._is_refused():
            return SaveFailed(
                action.node_task, Fault.DISK_FULL, "refused by the simulation", self._world.rng.random() < 0.5
            )
        self._save(self.replicas[action.node_task.task])
        return Saved(action.node_task)

    def _closed(self, action: Close) -> Event:
        node_task, disk = action.node_task, self._node.at.disk
        if not action.has_failed:
            self._save(self.replicas[node_task.task])
        for store in self.replicas[node_task.task].stores.values():
            self._world.recorder.closed(store)
        if node_task in self._wiped:
            self._wiped.discard(node_task)
            disk.pop(cast(TaskId, node_task.task), None)
        return Closed(node_task, _positions(disk.get(cast(TaskId, node_task.task), {})))

    def _removed(self, action: Remove) -> Event:
        if self._is_refused():
            return Removed(action.task, is_gone=False)
        self._node.at.disk.pop(cast(TaskId, action.task), None)
        self._world.counts["folders removed"] += 1
        return Removed(action.task, is_gone=True)

    def _save(self, replica: TaskReplica) -> None:
        """Write the places of the stores."""
        if isinstance(replica.task, TaskId) and replica.stores:
            places = {store.spec.name: store.save_checkpoint() for store in replica.stores.values()}
            self._node.at.disk[replica.task] = places
            for store in replica.stores.values():
                self._world.recorder.saved(store)

    # The logs.

    def log_of(self, store: StoreReplica) -> Changelog:
        return self._kafka.changelogs[store.spec.name, store.partition]

    def _is_in_touch(self) -> bool:
        net, machine = self._world.net, self._node.machine
        return net.is_open(machine, KAFKA) and net.is_open(KAFKA, machine)

    def read(self, store: StoreReplica, limit: int = _FETCHED) -> int:
        """Apply what the log has beyond the store's position; return how many records that were."""
        log = self.log_of(store)
        if log.first_batch_end is None or store.position < log.first_batch_end:
            self.without_first_batch_until[store.spec.name, store.partition] = self._world.now
        records, position = log.read(store.position, limit)
        if records:
            store.apply(records, records[-1].offset + 1)
        store.reach(position)
        self._world.recorder.read(store, at_end=position >= log.end)
        return len(records)

    def _written(self, store: StoreReplica) -> bool:
        """Something was written to the changelog: fetch it. False: this replica follows it no more."""
        node = self._node
        if not node.is_alive or store.state is not StoreState.FOLLOWING:
            return False
        if self._world.net.is_open(node.machine, KAFKA):
            self._world.net.send(KAFKA, node.machine, lambda: node.enter(self._fetched, store))
        return True

    def _fetched(self, store: StoreReplica) -> None:
        if store.state is StoreState.FOLLOWING:
            self.read(store)


def _positions(stores: Mapping[str, Checkpoint]) -> dict[str, int]:
    return {store: checkpoint.position for store, checkpoint in stores.items()}
