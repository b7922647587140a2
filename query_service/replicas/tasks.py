"""Tasks and global stores: drives the task machine and carries out its actions. Runs on the node's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog
from confluent_kafka import KafkaException

from query_service.dataplane.orders import DataPlane
from query_service.disk.cleanup import IdleFolders
from query_service.disk.directory import StateDirectory, TaskLocked
from query_service.replicas.fetching import FileRestores, FindPeers
from query_service.replicas.giving import GivenStores
from query_service.replicas.opening import StoreOpener
from query_service.replicas.plane_replication import DataPlaneReplicator, Reading
from query_service.replicas.replica import StoreReplica, TaskReplica, monotonic_and_wall_ms
from query_service.replicas.replica_events import ReplicaEvents
from query_service.replicas.replication import OnDefect, OnEnd, Replicator
from query_service.replicas.steps import TaskSteps, positions
from query_service.states.faults import Fault, FaultOutcome, fault_of
from query_service.states.ownership import with_dormant
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
from query_service.states.task_machine import RETRIES, TaskMachine
from query_service.stores.resources import StoreResources
from query_service.telemetry.listeners import Listeners
from query_service.telemetry.metrics import NodeMetrics
from statehouse.contract.assignment import Assignment
from statehouse.contract.consistency import ANSWERS_AS_ACTIVE
from statehouse.contract.membership import GlobalReport, ReplicaReport, TaskState
from statehouse.contract.topology import AnyTaskId, GlobalId, Role, StoreSpec, TaskId
from statehouse.errors import LookupFailure, Reason, StatehouseError
from statehouse.runtime.background import BackgroundWork, as_error
from statehouse.settings import NodeSettings

log = structlog.get_logger(__name__)

_FOLLOWED_BATCH_RECORDS = 1_000


class TaskManager:
    """Holds the node's task replicas and keeps them as the assignment wants them.

    A copy of a global store is held like a task.

    `on_change()` is called on the event loop whenever a task's state has changed. `on_defect(error)` is called on any
    thread when the machine or a replicator has met a defect: no task can go on then.
    """

    def __init__(
        self,
        settings: NodeSettings,
        client_id: str,
        on_change: Callable[[], None],
        on_defect: OnDefect,
        listeners: Listeners,
        metrics: NodeMetrics,
        resources: StoreResources,
        plane: DataPlane | None = None,
        peers: FindPeers | None = None,
    ) -> None:
        """`plane`: holds stores; None: all are held here. `peers`: finds who can give a store; None: nobody does."""
        self.replicas: dict[AnyTaskId, TaskReplica] = {}
        self._loop = asyncio.get_running_loop()
        self._directory, self._on_change = StateDirectory(settings.state_dir, settings.application_id), on_change
        self._on_defect, self._listeners, self._metrics = on_defect, listeners, metrics
        dormant = self._directory.dormant(lambda fault: metrics.fault(fault, FaultOutcome.PASSED_OVER))
        self._machine = TaskMachine({task: positions(checkpoints) for task, checkpoints in dormant.items()})
        self._idle_folders = IdleFolders(settings.state_cleanup_delay_ms / 1000)
        self._replica_events = ReplicaEvents(listeners)
        self._restorer = Replicator(
            "restore",
            settings.brokers,
            client_id,
            self._replica_events.batch,
            self._end_reached,
            self._replica_failed,
            on_defect,
            batch_records=settings.restore_batch_records,
        )
        self._follower = Replicator(
            "follow",
            settings.brokers,
            client_id,
            self._replica_events.batch,
            lambda _replica: None,
            self._replica_failed,
            on_defect,
            batch_records=_FOLLOWED_BATCH_RECORDS,
        )

        def reading(thread: Replicator, on_end: OnEnd, *, restores: bool) -> Reading:
            batch, failed = self._replica_events.batch, self._replica_failed
            held = None if plane is None else DataPlaneReplicator(plane, batch, on_end, failed, restores=restores)
            return Reading(thread, held)

        opener = StoreOpener(
            settings, client_id, resources, metrics, self._misplaced_found, plane, lambda: len(self.store_replicas())
        )
        restorer = reading(self._restorer, self._end_reached, restores=True)
        follower = reading(self._follower, lambda _replica: None, restores=False)
        self.given = GivenStores(plane, self.replicas, metrics)
        files = None
        if plane is not None and peers is not None:
            files = FileRestores(settings, plane, opener, peers, metrics)
        self._steps = TaskSteps(opener, restorer, follower, self._replica_events, metrics, self.given, files)
        self._under_way = BackgroundWork()
        self._restorer.start()
        self._follower.start()

    def assign(self, assignment: Assignment, wanted: Mapping[AnyTaskId, Role]) -> None:
        """Move towards the newest assignment. `wanted`: the tasks and global stores to hold, with the role in each."""
        actions = self._take(Assigned(assignment, wanted))
        if actions or not self._machine.is_settled:
            self._metrics.rebalances.inc()

    def store_replicas(self) -> list[StoreReplica]:
        """Return every open store replica. Safe to call from any thread."""
        return [replica for task in list(self.replicas.values()) for replica in list(task.stores.values())]

    def states(self) -> list[TaskState]:
        """Return the state of each task; a wanted task that is not opened yet counts as CREATED."""
        return self._machine.states

    def dormant_tasks(self) -> int:
        """Return how many tasks have state on disk but are not held. Safe to call from any thread."""
        return sum(task not in self.replicas for task in list(self._machine.dormant))

    def report(self) -> dict[TaskId, ReplicaReport]:
        """Return the heartbeat's reports of tasks: the held ones, and the others that have state on disk."""
        reports = {task: replica.report() for task, replica in self.replicas.items() if isinstance(task, TaskId)}
        return with_dormant(reports, self._machine.dormant)

    def global_report(self) -> dict[str, GlobalReport]:
        """Return the heartbeat's reports of global stores."""
        return {
            task.store: replica.global_report() for task, replica in self.replicas.items() if isinstance(task, GlobalId)
        }

    async def save_checkpoints(self) -> None:
        """Write the checkpoint of every task, one after the other."""
        for node_task in list(self._machine.tasks.values()):
            for action in self._machine.handle(CheckpointDue(node_task)):
                await asyncio.shield(self._begin(action))

    async def restore_anew(self, spec: StoreSpec, partition: int) -> AnyTaskId:
        """Begin to restore a replica from its log's start, as it differs from others; return its task.

        The task stops, and is opened again after a pause, as after a fault.

        Raises:
            LookupFailure: PARTITION_NOT_OWNED, or PARTITION_RESTORING: there is nothing to be restored.
            OSError: the disk refuses.

        """
        replica = self.replicas.get(spec.task_id(partition))
        store = None if replica is None else replica.of(spec, partition)
        if replica is None or store is None or replica.state is not TaskState.RUNNING:
            reason = Reason.PARTITION_NOT_OWNED if replica is None else Reason.PARTITION_RESTORING
            raise LookupFailure(reason, f"this node has no running replica of partition {partition} of {spec.name}")
        if spec.is_persistent:
            await asyncio.to_thread(replica.directory.condemn_store, store.folder)
        self._tell(store, lambda node_task: Failed(node_task, Fault.DIFFERED, "somebody has it restored"))
        return replica.task

    async def clean_up(self) -> None:
        """Begin to remove the folders that have been idle for the delay. The assignment must be known."""
        try:
            on_disk = await asyncio.to_thread(self._directory.on_disk)
        except OSError as error:
            log.warning("state directory can't be listed; idle state stays for now", error=str(error))
            self._metrics.fault(fault_of(error), FaultOutcome.PASSED_OVER)
            return
        self._take(FoldersIdle(self._idle_folders.due(on_disk, self._machine.in_use, monotonic_and_wall_ms()[0])))

    async def close(self) -> None:
        """Close every task, keeping its state on disk, and stop the threads."""
        self._take(NodeStops())
        await self._under_way.finish()
        await self.given.close()
        await asyncio.gather(asyncio.to_thread(self._restorer.stop), asyncio.to_thread(self._follower.stop))

    # Events.

    def _take(self, event: Event) -> list[Action]:
        """Bring an event to the machine, carry out its actions, and return them."""
        try:
            actions = self._machine.handle(event)
            for action in actions:
                self._carry_out(action)
            if actions or isinstance(event, Removed):
                self._on_change()
        except BaseException as caught:
            log.exception("defect in the task machine", received=type(event).__name__)
            self._on_defect(as_error(caught))
            return []
        return actions

    def _end_reached(self, store: StoreReplica) -> None:
        """Called on the restorer's thread."""
        self._loop.call_soon_threadsafe(self._tell, store, lambda node_task: EndReached(node_task, store.folder))

    def _misplaced_found(self) -> None:
        """Called on a replicator's thread."""
        self._loop.call_soon_threadsafe(self._on_change)

    def _replica_failed(self, store: StoreReplica, error: Exception) -> None:
        """Called on a replicator's thread."""
        self._loop.call_soon_threadsafe(self._tell, store, lambda node_task: Failed(node_task, *_named(error)))

    def _tell(self, store: StoreReplica, event: Callable[[NodeTask], Event]) -> None:
        """Bring an event about a store to the machine, unless its task was closed meanwhile."""
        replica = self.replicas.get(store.task_id)
        if replica is not None and replica.stores.get(store.folder) is store:
            self._take(event(replica.node_task))

    # Actions.

    def _carry_out(self, action: Action) -> None:
        match action:
            case RetryAfter(node_task, pause_s):
                self._metrics.paused(RETRIES.cause)
                self._loop.call_later(pause_s, self._take, RetryDue(node_task))
            case RoleChanged(node_task):
                self._change_role(self.replicas[node_task.task])
            case StateChanged(node_task, old, new):
                self._change_state(node_task, old, new)
            case Stopped(node_task, fault):
                log.error("task stopped", task=str(node_task.task), fault=fault.value, error=node_task.error)
                self._metrics.fault(fault, FaultOutcome.TASK_STOPPED)
            case NotSaved(node_task, fault, error):
                log.warning("checkpoint not written", task=str(node_task.task), error=error)
                self._metrics.fault(fault, FaultOutcome.PASSED_OVER)
            case Open(node_task):
                self.replicas[node_task.task] = TaskReplica(node_task, self._directory.task(node_task.task))
                self._begin(action)
            case _:
                self._begin(action)

    def _change_role(self, replica: TaskReplica) -> None:
        is_told = replica.state in {TaskState.RESTORING, TaskState.RUNNING}
        for store in replica.stores.values():
            if is_told:
                self._replica_events.role_changed(store, as_standby=replica.role not in ANSWERS_AS_ACTIVE)
            store.metrics = self._metrics.of(store.spec.name, replica.role)
            store.advanced.poke()  # reads that wait for the active must learn that the role changed

    def _change_state(self, node_task: NodeTask, old: TaskState, new: TaskState) -> None:
        self._listeners.on_task_state(node_task.task, old, new)
        for store in self.replicas[node_task.task].stores.values():
            store.advanced.poke()  # watches must learn that the store ends
        if new is TaskState.CLOSED:
            del self.replicas[node_task.task]
            log.info("task closed", task=str(node_task.task))

    def _begin(self, action: Action) -> asyncio.Task[None]:
        """Begin a step. When it ends, its event goes to the machine."""
        return self._under_way.start(self._until_done(action), type(action).__name__)

    async def _until_done(self, action: Action) -> None:
        self._take(await self._performed(action))

    async def _performed(self, action: Action) -> Event:
        """Carry out a step and return the event that it ends with. An error in a step stops only its task."""
        match action:
            case Save(node_task):
                return await self._save(node_task)
            case Close(node_task, has_failed):
                return await self._close(node_task, has_failed=has_failed)
            case Remove(task):
                return await self._remove(task)
            case Open(node_task) | Restore(node_task) | Follow(node_task):
                try:
                    return await self._advanced(action, self.replicas[node_task.task])
                except BaseException as caught:  # noqa: BLE001 - as the docstring says
                    return Failed(node_task, *_named(as_error(caught)), ends_step=True)
            case _:
                raise NotImplementedError(action)

    async def _advanced(self, step: Open | Restore | Follow, replica: TaskReplica) -> Event:
        match step:
            case Open(node_task):
                await self._steps.open(replica, lambda: self._machine.is_wanted(node_task.task))
                return Opened(node_task, frozenset(replica.stores))
            case Restore(node_task):
                await self._steps.restore(replica)
                return Restoring(node_task)
            case Follow(node_task, store):
                await self._steps.follow(replica, replica.stores[store])
                return Following(node_task, store)

    async def _save(self, node_task: NodeTask) -> Event:
        try:
            await self._steps.save(self.replicas[node_task.task])
        except BaseException as caught:  # noqa: BLE001 - the disk and the engine may raise anything
            return SaveFailed(node_task, *_named(as_error(caught)), is_copy=isinstance(caught, OSError))
        return Saved(node_task)

    async def _close(self, node_task: NodeTask, *, has_failed: bool) -> Event:
        try:
            return Closed(node_task, await self._steps.close(self.replicas[node_task.task], has_failed=has_failed))
        except BaseException as caught:
            as_error(caught)
            # If something is still wrong, the next opening shows it. A task that is never closed would wait for ever.
            log.exception("task not closed in order", task=str(node_task.task))
            return Closed(node_task, {})

    async def _remove(self, task: AnyTaskId) -> Event:
        """Remove a folder."""
        try:
            await asyncio.to_thread(self._directory.task(task).remove)
        except TaskLocked as error:
            log.debug("state not removed", task=str(task), error=str(error))
        except BaseException as caught:  # noqa: BLE001 - the disk may raise anything
            failure = as_error(caught)
            log.warning("state can't be removed", task=str(task), error=str(failure))
            self._metrics.fault(fault_of(failure), FaultOutcome.PASSED_OVER)
        else:
            log.info("removed state that was idle for state_cleanup_delay_ms", task=str(task))
            self._metrics.cleaned_up.inc()
            return Removed(task, is_gone=True)
        return Removed(task, is_gone=False)


def _named(error: Exception) -> tuple[Fault, str]:
    """Return the fault and the message of an error."""
    fault = Fault.BROKER if isinstance(error, KafkaException) else fault_of(error)
    # The message of an error that is not ours may say too little without its class: a KeyError's is only the key.
    return fault, str(error) if isinstance(error, StatehouseError | OSError) else f"{type(error).__name__}: {error}"
