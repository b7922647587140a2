"""Replays: a store that is built from a changelog's first record on, beside the node's replica, to be compared with it.

It is read, opened and moved on as a replica is, but it belongs to no task and answers no lookup. So what it has is what
the log says, by the same rules. Once it has reached the log's end it follows, and shows moments. A log that compaction
cuts while it is read tells no less: what is compacted away has a later record, which is read, too.

There is one at a time. It is kept for a while, as callers look closer at what they have found, and then removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import structlog

from query_service.dataplane.holding import DataPlaneStore
from query_service.dataplane.orders import DataPlane
from query_service.disk.directory import TaskDirectory, TaskLocked
from query_service.replicas.opening import StoreOpener
from query_service.replicas.plane_replication import DataPlaneReplicator
from query_service.replicas.replica import StoreReplica, TaskReplica
from query_service.replicas.replication import OnDefect, Replicator
from query_service.states.lifecycle import StoreState
from query_service.states.task_events import NodeTask
from query_service.stores.resources import StoreResources
from query_service.telemetry.metrics import NodeMetrics
from statehouse.contract.membership import TaskState
from statehouse.contract.topology import Role, StoreSpec
from statehouse.runtime.background import BackgroundWork
from statehouse.settings import NodeSettings

log = structlog.get_logger(__name__)

FOLDER: Final = "replays"
"""Beside the folders of tasks, none of which is named so."""
KEPT_S: Final = 60.0
"""After its last use."""
_LOOKS_EVERY_S: Final = 0.5

OnProgress = Callable[[StoreReplica], Awaitable[None]]


class Replay:
    """A replay: its store, as a task of its own has it."""

    def __init__(self, task: TaskReplica, replica: StoreReplica) -> None:
        self.task, self.replica = task, replica
        self.failure: Exception | None = None
        self.is_at_end = asyncio.Event()
        """Set once it has been at the log's end, or has failed."""

    def is_of(self, spec: StoreSpec, partition: int) -> bool:
        """Whether it is of a partition of a store, as that is specified now, and still follows."""
        is_well = self.failure is None and self.replica.loss is None
        return is_well and (self.replica.spec, self.replica.partition) == (spec, partition)


class Replays:
    """A node's replays, one at a time; callers take turns. Lives on the event loop.

    `on_defect(error)` is called when the thread that reads has met a defect. `stores_held` returns how many stores the
    node has.
    """

    def __init__(
        self,
        settings: NodeSettings,
        client_id: str,
        resources: StoreResources,
        plane: DataPlane | None,
        on_defect: OnDefect,
        stores_held: Callable[[], int],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings, self._client_id, self._plane, self._on_defect = settings, client_id, plane, on_defect
        self._path = settings.state_dir.expanduser() / settings.application_id / FOLDER
        self._resources, self._stores_held = resources, stores_held
        self._opener: StoreOpener | None = None  # it has a client
        self._thread: Replicator | None = None
        self._read_no_more: Callable[[], Future[Any]]  # what `_read` has begun
        self._held: Replay | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._turn = asyncio.Lock()
        self._background = BackgroundWork()

    def replicas(self) -> list[StoreReplica]:
        """Return what is read for now, so that it learns of its log's end. Safe to call from any thread."""
        held = self._held
        return [] if held is None else [held.replica]

    @asynccontextmanager
    async def of(
        self, spec: StoreSpec, partition: int, bytes_per_second: int, on_progress: OnProgress
    ) -> AsyncIterator[Replay]:
        """Replay a partition's log to its end, and hold what it says as long as the context lasts.

        Args:
            spec: the store.
            partition: the partition.
            bytes_per_second: how fast the log is read; 0: as fast as it goes.
            on_progress: called from time to time until the end is reached.

        Raises:
            TaskFault: the disk refuses; the log lacks records that it needs; its topic has changed.
            KafkaException: the broker can't be reached, or refuses.

        """
        async with self._turn:
            self._keep()
            try:
                if self._held is None or not self._held.is_of(spec, partition):
                    await self._end()
                    await self._begin(spec, partition, bytes_per_second)
                held = self._held
                assert held is not None  # noqa: S101 - it was begun
                await self._brought_to_end(held, on_progress)
                yield held
            except BaseException:
                await asyncio.shield(self._end())
                raise
            self._timer = self._loop.call_later(KEPT_S, self._end_unused)

    async def close(self) -> None:
        """End what is held, and the thread."""
        async with self._turn:
            self._keep()
            await self._end()
        await self._background.finish()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.stop)

    def _keep(self) -> None:
        """Have what is held not end by itself."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_unused(self) -> None:
        self._timer = None
        self._background.start(self._end_in_turn(), "end a replay")

    async def _end_in_turn(self) -> None:
        async with self._turn:
            if self._timer is None:  # else somebody has used it meanwhile
                await self._end()

    async def _begin(self, spec: StoreSpec, partition: int, bytes_per_second: int) -> None:
        """Begin one. If the caller leaves meanwhile, it is begun all the same: what is half open can't be closed."""
        begun = asyncio.ensure_future(self._begun(spec, partition, bytes_per_second))
        try:
            await asyncio.shield(begun)
        except asyncio.CancelledError:
            await asyncio.wait([begun])
            raise

    async def _begun(self, spec: StoreSpec, partition: int, bytes_per_second: int) -> None:
        """Open an empty store, and begin to read its log."""
        await asyncio.to_thread(self._clear)
        opener = self._opener = self._opener or self._new_opener()
        directory = TaskDirectory(self._path / f"{self._client_id}.{spec.name}_{partition}")
        if spec.is_persistent:
            await asyncio.to_thread(directory.acquire)
        try:
            replica = await asyncio.to_thread(opener.open, spec, partition, directory, Role.STANDBY)
        except BaseException:
            directory.release()
            raise
        node_task = NodeTask(spec.task_id(partition), Role.STANDBY, ((spec, partition),), TaskState.RUNNING)
        self._held = Replay(TaskReplica(node_task, directory), replica)
        await asyncio.wrap_future(self._read(replica, bytes_per_second, restores=True))
        log.info("replay of a log begun", store=spec.name, partition=partition, end=replica.restored_to)

    async def _brought_to_end(self, held: Replay, on_progress: OnProgress) -> None:
        """Wait until a replay is at the log's end, and have it follow from there on."""
        replica = held.replica
        while not held.is_at_end.is_set():
            await on_progress(replica)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOKS_EVERY_S):
                    await held.is_at_end.wait()
        if held.failure is not None:
            raise held.failure
        if replica.state is StoreState.RESTORING:
            replica.to(StoreState.RESTORED)
            await asyncio.wrap_future(self._read_no_more())
            if (loss := replica.outran_retention()) is not None:
                raise loss
            await asyncio.wrap_future(self._read(replica, 0, restores=False))
            replica.to(StoreState.FOLLOWING)

    async def _end(self) -> None:
        """Remove what is held. Nobody reads it any more."""
        held, self._held = self._held, None
        if held is None:
            return
        held.replica.to(StoreState.CLOSING)
        try:
            await asyncio.wrap_future(self._read_no_more())
        finally:
            await asyncio.to_thread(_remove, held)
        log.info("replay of a log ended", store=held.replica.spec.name, partition=held.replica.partition)

    def _new_opener(self) -> StoreOpener:
        return StoreOpener(
            self._settings,
            f"{self._client_id}-replay",
            self._resources,
            NodeMetrics(),  # of its own: what is written again is no traffic of the store's
            lambda: None,
            self._plane,
            self._stores_held,
        )

    def _clear(self) -> None:
        """Remove what processes have left that were killed."""
        for folder in self._path.glob("*/"):
            with suppress(TaskLocked, OSError):
                TaskDirectory(folder).remove()

    def _read(self, replica: StoreReplica, bytes_per_second: int, *, restores: bool) -> Future[Any]:
        if self._plane is not None and isinstance(replica.store, DataPlaneStore):
            reader = DataPlaneReplicator(
                self._plane,
                lambda _replica, _records: None,
                self._end_reached,
                self._failed,
                restores=restores,
                apart=bytes_per_second,
            )
            self._read_no_more = partial(reader.remove, replica.store.engine)
            return reader.add(replica, replica.store.engine)
        if self._thread is None:
            self._thread = Replicator(
                "replay",
                self._settings.brokers,
                self._client_id,
                lambda _replica, _records: None,
                self._end_reached,
                self._failed,
                self._on_defect,
                batch_records=self._settings.restore_batch_records,
            )
            self._thread.start()
        self._read_no_more = partial(self._thread.remove, replica)
        return self._thread.add(replica)

    def _end_reached(self, replica: StoreReplica) -> None:
        """Called on any thread."""
        self._loop.call_soon_threadsafe(self._note, replica, None)

    def _failed(self, replica: StoreReplica, error: Exception) -> None:
        """Called on any thread."""
        self._loop.call_soon_threadsafe(self._note, replica, error)

    def _note(self, replica: StoreReplica, error: Exception | None) -> None:
        held = self._held
        if held is not None and held.replica is replica:
            held.failure = held.failure or error
            held.is_at_end.set()


def _remove(held: Replay) -> None:
    """Close a store and remove its folder. Runs in a thread."""
    try:
        held.replica.store.close()
    finally:
        held.task.directory.release()
        if held.task.directory.path.exists():
            try:
                held.task.directory.remove()
            except OSError as error:
                log.warning("a replay's folder can't be removed", path=str(held.task.directory.path), error=str(error))
