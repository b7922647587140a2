"""Tasks and global stores: carries out what the assignment asks for. Opens, restores, hands to the follower, closes.

Runs on the node's event loop; slow steps (RocksDB, admin calls) run in worker threads. Each task has one
driver at a time, which works until the task is what the newest assignment wants, so an assignment may
change in any state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog
from confluent_kafka import KafkaException

from query_service.checkpoint import Checkpoint
from query_service.cleanup import Leftovers
from query_service.disk import CheckpointUnreadable, StateDirectory, TaskLocked, store_folder
from query_service.faults import Fault, Outcome, fault_of
from query_service.lifecycle import TaskState, role_changes
from query_service.listeners import Listeners
from query_service.metrics import NodeMetrics
from query_service.opening import StoreOpener
from query_service.ownership import states_of_wanted, with_dormant
from query_service.replica import StoreReplica, TaskReplica, monotonic_and_wall_ms
from query_service.replication import OnDefect, Replicator
from query_service.reporting import ReplicaReporter
from query_service.stores.resources import StoreResources
from statehouse.assignment import Assignment
from statehouse.consistency import ANSWERS_AS_ACTIVE
from statehouse.errors import StatehouseError
from statehouse.kafka import clients
from statehouse.membership import GlobalReport, ReplicaReport
from statehouse.topology import GlobalId, HeldId, Role, TaskId

log = structlog.get_logger(__name__)

_RETRY_FIRST_S = 1.0
_RETRY_MAX_S = 30.0
_FOLLOWED_BATCH_RECORDS = 1_000


class TaskManager:
    """Holds the node's task replicas and keeps them as the assignment wants them.

    A copy of a global store is held like a task.

    `on_change()` is called on the event loop whenever a task's state changed, `on_defect(error)` on a replicator's
    thread when that ends by a defect: no task can go on then.
    """

    def __init__(
        self,
        bootstrap: str,
        client_id: str,
        directory: StateDirectory,
        on_change: Callable[[], None],
        on_defect: OnDefect,
        listeners: Listeners,
        metrics: NodeMetrics,
        *,
        resources: StoreResources,
        restore_batch_records: int,
        tail_bytes: int,
        ends_hold_s: float,
        cleanup_delay_s: float,
    ) -> None:
        self.replicas: dict[HeldId, TaskReplica] = {}
        self._loop = asyncio.get_running_loop()
        admin = clients.RenewedAdmin(bootstrap, f"{client_id}-tasks")
        self._opener = StoreOpener(admin, resources, metrics, tail_bytes=tail_bytes, ends_hold_s=ends_hold_s)
        self._directory = directory
        self._on_change = on_change
        self._assignment = Assignment()
        self._wanted: dict[HeldId, Role] = {}
        self._drivers: dict[HeldId, asyncio.Task[None]] = {}
        self._retries: dict[HeldId, float] = {}
        self._listeners, self._metrics = listeners, metrics
        self._reporter = ReplicaReporter(listeners)
        self._leftovers = Leftovers(cleanup_delay_s)
        self._dormant = directory.dormant(lambda fault: metrics.fault(fault, Outcome.PASSED_OVER))
        self._restorer = Replicator(
            "restore",
            bootstrap,
            client_id,
            self._reporter.batch,
            self._end_reached,
            self._replica_failed,
            on_defect,
            batch_records=restore_batch_records,
        )
        self._follower = Replicator(
            "follow",
            bootstrap,
            client_id,
            self._reporter.batch,
            lambda _replica: None,
            self._replica_failed,
            on_defect,
            batch_records=_FOLLOWED_BATCH_RECORDS,
        )
        self._restorer.start()
        self._follower.start()

    def assign(self, assignment: Assignment, wanted: Mapping[HeldId, Role]) -> None:
        """Take the newest assignment."""
        self._assignment, self._wanted = assignment, dict(wanted)
        changes = role_changes({task: replica.role for task, replica in self.replicas.items()}, wanted)
        for task, role in changes.items():
            self._change_role(self.replicas[task], role)
        unsettled = [task for task in {*self._wanted, *self.replicas} if not self._is_settled(task)]
        for task in unsettled:
            self._drive(task)
        if unsettled or changes:
            self._metrics.rebalance()
        if changes:
            self._on_change()

    def _change_role(self, replica: TaskReplica, role: Role) -> None:
        replica.role = role
        if replica.is_in(TaskState.RESTORING, TaskState.RUNNING):
            for store in replica.stores.values():
                self._reporter.role_changed(store, as_standby=role not in ANSWERS_AS_ACTIVE)
        for store in replica.stores.values():
            store.metrics = self._metrics.of(store.spec.name, role)
            store.advanced.poke()  # whoever waits to read from the active must learn that it is another

    def store_replicas(self) -> list[StoreReplica]:
        """Return every open store replica. Safe to call from any thread."""
        return [replica for task in list(self.replicas.values()) for replica in list(task.stores.values())]

    def states(self) -> list[TaskState]:
        """Return the state of each replica; one that is still to be opened counts as created."""
        return states_of_wanted(self._wanted, {task: replica.state for task, replica in self.replicas.items()})

    def dormant_tasks(self) -> int:
        """Return of how many tasks there is state on disk beside those held."""
        return len(self._dormant.keys() - self.replicas.keys())

    def report(self) -> dict[TaskId, ReplicaReport]:
        """Return what the heartbeat says of tasks: the replicas held, and what else is on disk."""
        held = {task: replica.report() for task, replica in self.replicas.items() if isinstance(task, TaskId)}
        dormant = {
            task: {store: checkpoint.position for store, checkpoint in checkpoints.items()}
            for task, checkpoints in self._dormant.items()
        }
        return with_dormant(held, dormant)

    def global_report(self) -> dict[str, GlobalReport]:
        """Return what the heartbeat says of global stores."""
        return {
            held.store: replica.global_report() for held, replica in self.replicas.items() if isinstance(held, GlobalId)
        }

    async def save_checkpoints(self) -> None:
        """Write every running task's checkpoint, in the stores and as readable copies."""
        for task in list(self.replicas.values()):
            if task.is_in(TaskState.RUNNING, TaskState.RESTORING) and task.task not in self._drivers:
                await self._save(task)

    async def clean_up(self) -> None:
        """Begin to remove what has lain idle on the disk for the delay. The assignment must be known."""
        try:
            on_disk = await asyncio.to_thread(self._directory.on_disk)
        except OSError as error:
            log.warning("state directory can't be listed; idle state stays for now", error=str(error))
            self._metrics.fault(fault_of(error), Outcome.PASSED_OVER)
            return
        in_use = {*self._wanted, *self.replicas, *self._drivers}
        for task in self._leftovers.due(on_disk, in_use, monotonic_and_wall_ms()[0]):
            self._drivers[task] = self._loop.create_task(self._remove(task))

    async def _remove(self, task: HeldId) -> None:
        """Remove a folder; as the task's driver, so that nothing opens it meanwhile."""
        try:
            await asyncio.to_thread(self._directory.task(task).remove)
        except TaskLocked as error:
            log.debug("state not removed", task=str(task), error=str(error))
        except OSError as error:
            log.warning("state can't be removed", task=str(task), error=str(error))
            self._metrics.fault(fault_of(error), Outcome.PASSED_OVER)
        else:
            log.info("state removed that nobody has needed for state_cleanup_delay_ms", task=str(task))
            self._metrics.cleaned_up()
            if isinstance(task, TaskId):
                self._dormant.pop(task, None)
            self._on_change()
        finally:
            del self._drivers[task]
        self._drive(task)

    async def close(self) -> None:
        """Close every task, keeping its state on disk, and stop the threads."""
        self.assign(self._assignment, {})
        while self._drivers:
            await asyncio.wait(list(self._drivers.values()))
        await asyncio.gather(asyncio.to_thread(self._restorer.stop), asyncio.to_thread(self._follower.stop))

    async def _save(self, task: TaskReplica) -> None:
        """Write a task's checkpoint.

        A store that can't be written fails its task. Of a running task the readable copy alone may fail: that costs a
        longer restore some day. One that can't write even its first does not come up.
        """
        try:
            await asyncio.to_thread(_write_checkpoints, task)
        except Exception as error:  # noqa: BLE001 - whatever the disk or the engine says
            if self.replicas.get(task.task) is not task or not task.is_in(TaskState.RUNNING, TaskState.RESTORING):
                return  # closed meanwhile
            if task.is_in(TaskState.RESTORING) or not isinstance(error, OSError):
                self._fail(task, error)
                return
            log.warning("checkpoint not written", task=str(task.task), error=str(error))
            self._metrics.fault(fault_of(error), Outcome.PASSED_OVER)

    def _drive(self, task: HeldId) -> None:
        """Make sure that something works towards what is wanted of a task."""
        if task not in self._drivers:
            self._drivers[task] = self._loop.create_task(self._driver(task))

    def _is_settled(self, task: HeldId) -> bool:
        """Whether a task is held, or isn't, as the newest assignment wants it."""
        replica = self.replicas.get(task)
        if replica is None or task not in self._wanted:
            return replica is None and task not in self._wanted
        return replica.holds(self._assignment.partitions_of(task))

    async def _driver(self, task: HeldId) -> None:
        try:
            while not self._is_settled(task):
                if task in self.replicas:
                    await self._close(self.replicas[task])
                else:
                    await self._open(task, self._wanted[task])
                self._on_change()
        except Exception:
            log.exception("defect in a task's life", task=str(task))
        finally:
            del self._drivers[task]

    async def _open(self, task: HeldId, role: Role) -> None:
        """Lock the folder, open the stores, start to restore."""
        partitions = self._assignment.partitions_of(task)
        replica = TaskReplica(task, role, partitions, self._directory.task(task), self._listeners)
        self.replicas[task] = replica
        if isinstance(task, TaskId):
            self._dormant.pop(task, None)  # before any of it may be wiped
        try:
            if any(spec.is_persistent for spec, _ in partitions):
                await asyncio.to_thread(replica.directory.acquire)
                folders = {store_folder(*each) for each in partitions}
                await asyncio.to_thread(replica.directory.remove_others, folders)
            for spec, partition in partitions:
                store = await asyncio.to_thread(self._opener.open, spec, partition, replica.directory, replica.role)
                replica.stores[store.folder] = store
            replica.to(TaskState.RESTORING)
            for store in replica.stores.values():
                store.metrics = self._metrics.of(store.spec.name, replica.role)  # it may have changed meanwhile
                self._reporter.restoring(store)
                await asyncio.wrap_future(self._restorer.add(store))
        except Exception as error:  # noqa: BLE001 - whatever it is, it stops this task alone
            self._fail(replica, error)

    async def _close(self, replica: TaskReplica) -> None:
        """Stop reading and answering, write the checkpoint, release the folder."""
        failed = replica.is_in(TaskState.ERROR)
        if replica.state is not TaskState.CREATED:
            replica.to(TaskState.SUSPENDED)
        for store in replica.stores.values():
            store.closing = True
            await asyncio.wrap_future(self._restorer.remove(store))
            await asyncio.wrap_future(self._follower.remove(store))
            self._reporter.ended(store)
        checkpoints = await asyncio.to_thread(_close_stores, replica, failed=failed)
        replica.to(TaskState.CLOSED)
        del self.replicas[replica.task]
        if checkpoints and isinstance(replica.task, TaskId):
            self._dormant[replica.task] = checkpoints
        log.info("task closed", task=str(replica.task))

    def _end_reached(self, store: StoreReplica) -> None:
        """Called on the restorer's thread."""
        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._restored(store)))

    async def _restored(self, store: StoreReplica) -> None:
        """Hand a store that has reached the end to the follower; with all of them there the task runs."""
        replica = self.replicas.get(store.held_as)
        if replica is None or replica.stores.get(store.folder) is not store:
            return
        if not replica.is_in(TaskState.RESTORING) or store.restored:
            return
        store.restored = True
        try:
            await self._follow(replica, store)
        except Exception as error:  # noqa: BLE001 - whatever it is, the end is told but once: closing mends it
            self._fail(replica, error)

    async def _follow(self, replica: TaskReplica, store: StoreReplica) -> None:
        await asyncio.wrap_future(self._restorer.remove(store))
        if not replica.is_in(TaskState.RESTORING):
            return  # closed meanwhile
        if (loss := store.outran_retention()) is not None:
            self._fail(replica, loss)
            return
        self._reporter.restored(store, as_standby=replica.role not in ANSWERS_AS_ACTIVE)
        await asyncio.wrap_future(self._follower.add(store))
        # Not before: the last of the task's stores to get here makes it run, and nobody looks after the others then.
        store.following = True
        if replica.is_in(TaskState.RESTORING) and all(each.following for each in replica.stores.values()):
            # From here on a crash must leave something to report: what a node kept is what it gets back first.
            await self._save(replica)
        if replica.is_in(TaskState.RESTORING) and all(each.following for each in replica.stores.values()):
            replica.to(TaskState.RUNNING)
            self._retries.pop(replica.task, None)
            self._on_change()

    def _replica_failed(self, store: StoreReplica, error: Exception) -> None:
        """Called on a replicator's thread."""

        def fail() -> None:
            replica = self.replicas.get(store.held_as)
            if replica is not None and replica.stores.get(store.folder) is store:
                self._fail(replica, error)

        self._loop.call_soon_threadsafe(fail)

    def _fail(self, replica: TaskReplica, error: Exception) -> None:
        """Put a task into ERROR and try it again later: closing and opening restores what can be restored."""
        if replica.state not in {TaskState.CREATED, TaskState.RESTORING, TaskState.RUNNING}:
            return  # it has failed already, or is being closed
        fault = Fault.BROKER if isinstance(error, KafkaException) else fault_of(error)
        # Of what is not ours the message alone may say nothing: a KeyError's is the key.
        message = str(error) if isinstance(error, StatehouseError | OSError) else f"{type(error).__name__}: {error}"
        log.error("task stopped", task=str(replica.task), fault=fault.value, error=message)
        self._metrics.fault(fault, Outcome.TASK_STOPPED)
        replica.to(TaskState.ERROR, f"{fault}: {message}")
        delay_s = self._retries.get(replica.task, _RETRY_FIRST_S)
        self._retries[replica.task] = min(delay_s * 2, _RETRY_MAX_S)
        self._loop.call_later(delay_s, self._retry, replica)
        self._on_change()

    def _retry(self, replica: TaskReplica) -> None:
        """Close a failed task; its driver then opens it anew if it is still wanted."""
        if self.replicas.get(replica.task) is not replica or replica.state is not TaskState.ERROR:
            return

        async def reopen() -> None:
            try:
                await self._close(replica)
                self._on_change()
            except Exception:
                log.exception("defect in a task's life", task=str(replica.task))
            finally:
                del self._drivers[replica.task]
            self._drive(replica.task)

        if replica.task in self._drivers:
            self._loop.call_later(_RETRY_FIRST_S, self._retry, replica)
        else:
            self._drivers[replica.task] = self._loop.create_task(reopen())


def _write_checkpoints(replica: TaskReplica) -> dict[str, Checkpoint]:
    # What is in memory is gone with the process: its place must not outlive it.
    with replica.directory.writing:
        stores = {name: store for name, store in replica.stores.items() if store.spec.is_persistent}
        checkpoints = {name: store.save_checkpoint() for name, store in stores.items()}
        if checkpoints:
            replica.directory.write_checkpoints(checkpoints)
        return checkpoints


def _close_stores(replica: TaskReplica, *, failed: bool) -> dict[str, Checkpoint]:
    """Write what can be written, close whatever happens, and return the places that the disk now tells.

    Runs in a worker thread, with no writer left.
    """
    checkpoints: dict[str, Checkpoint] | None = None
    with replica.directory.writing:
        try:
            if not failed:
                checkpoints = _write_checkpoints(replica)
        except Exception as error:  # noqa: BLE001 - a full or broken disk must not keep the task open
            log.warning("checkpoint not written", task=str(replica.task), error=str(error))
        for store in replica.stores.values():
            try:
                store.store.close()
            except Exception as error:  # noqa: BLE001 - as above
                log.warning("store not closed in order", task=str(replica.task), error=str(error))
        try:
            return replica.directory.read_checkpoints() if checkpoints is None else checkpoints
        except CheckpointUnreadable as error:
            log.warning("checkpoint file can't be read", task=str(replica.task), error=str(error))
            return {}
        finally:
            replica.directory.release()
