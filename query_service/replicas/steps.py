"""Steps: carries out the slow work of tasks, on the disk, the stores and the threads that read logs.

Nothing is decided here. The task machine begins each step, and never runs two steps of a task that could disturb each
other. Slow parts (RocksDB, files, admin calls) run in worker threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from query_service.disk.directory import CheckpointUnreadable, store_folder
from query_service.replicas.fetching import FileRestores
from query_service.replicas.giving import GivenStores
from query_service.replicas.opening import StoreOpener
from query_service.replicas.plane_replication import Reading
from query_service.replicas.replica import StoreReplica, TaskReplica
from query_service.replicas.replica_events import ReplicaEvents
from query_service.states.checkpoint import Checkpoint
from query_service.states.lifecycle import StoreState
from query_service.states.ownership import Positions
from query_service.telemetry.metrics import NodeMetrics
from statehouse.contract.consistency import ANSWERS_AS_ACTIVE
from statehouse.contract.topology import StoreSpec
from statehouse.runtime.background import as_error

log = structlog.get_logger(__name__)


class TaskSteps:
    """Opens, restores, follows, saves and closes. A step that raises an error fails its task."""

    def __init__(
        self,
        opener: StoreOpener,
        restorer: Reading,
        follower: Reading,
        replica_events: ReplicaEvents,
        metrics: NodeMetrics,
        given: GivenStores,
        files: FileRestores | None,
    ) -> None:
        """`given`: what other nodes read of the stores. `files`: brings stores from them; None: logs are read."""
        self._opener, self._restorer, self._follower = opener, restorer, follower
        self._given, self._files = given, files
        self._replica_events, self._metrics = replica_events, metrics

    async def open(self, replica: TaskReplica, is_wanted: Callable[[], bool]) -> None:
        """Lock the folder and open the stores. `is_wanted`: whether the node shall still have the task."""
        partitions = replica.node_task.partitions
        if any(spec.is_persistent for spec, _ in partitions):
            await asyncio.to_thread(replica.directory.acquire)
            folders = {store_folder(*each) for each in partitions}
            await asyncio.to_thread(replica.directory.remove_others, folders)
        for spec, partition in partitions:
            store = await self._opened(spec, partition, replica, is_wanted)
            replica.stores[store.folder] = store

    async def _opened(
        self, spec: StoreSpec, partition: int, replica: TaskReplica, is_wanted: Callable[[], bool]
    ) -> StoreReplica:
        """Open a store: of the state on disk, of another node's files, or empty."""
        if self._files is None:
            store = await asyncio.to_thread(self._opener.open, spec, partition, replica.directory, replica.role)
        else:
            store = await self._brought(self._files, spec, partition, replica, is_wanted)
        self._metrics.opened(spec.name, store.restored_by)
        return store

    async def _brought(
        self,
        files: FileRestores,
        spec: StoreSpec,
        partition: int,
        replica: TaskReplica,
        is_wanted: Callable[[], bool],
    ) -> StoreReplica:
        """Open a store, which may be brought from another node before."""
        found = await asyncio.to_thread(self._opener.look, spec, partition, replica.directory)
        try:
            brought = await files.bring(found, replica.transfers, is_wanted)
            if brought.is_anew:
                found = await asyncio.to_thread(self._opener.look, spec, partition, replica.directory)
                if found.kept is None and brought.peer:
                    files.passed_over(found, brought, brought.peer, found.fault, found.reason)
            store = await asyncio.to_thread(self._opener.replica_of, found, replica.role)
        except BaseException:
            await asyncio.to_thread(found.close)
            raise
        finally:
            replica.transfers.pop(found.path.name, None)
        if found.kept is not None and brought.peer:
            store.restored_by = f"peer {brought.peer}"
        store.passed_over = tuple(brought.passed_over)
        return store

    async def restore(self, replica: TaskReplica) -> None:
        """Make the restorer read for every store."""
        for store in replica.stores.values():
            store.metrics = self._metrics.of(store.spec.name, replica.role)  # may have changed since opening
            self._replica_events.restoring(store)
            if self._files is not None:
                self._files.reads(store)
            await asyncio.wrap_future(self._restorer.add(store))

    async def follow(self, replica: TaskReplica, store: StoreReplica) -> None:
        """Have the follower read for a store, in place of the restorer.

        Raises:
            LogLost: the restore may have missed tombstones because it took too long, or the topic was recreated.

        """
        store.to(StoreState.RESTORED)
        if self._files is not None:
            self._files.has_read(store)
        await asyncio.wrap_future(self._restorer.remove(store))
        if (loss := store.outran_retention()) is not None:
            raise loss
        self._replica_events.restored(store, as_standby=replica.role not in ANSWERS_AS_ACTIVE)
        await asyncio.wrap_future(self._follower.add(store))
        store.to(StoreState.FOLLOWING)

    async def save(self, replica: TaskReplica) -> None:
        """Write the checkpoint, into the stores and as a readable copy."""
        await asyncio.to_thread(_write_checkpoints, replica)

    async def close(self, replica: TaskReplica, *, has_failed: bool) -> Positions:
        """Stop reading, write the checkpoint, close the stores, release the folder; return the positions on disk."""
        for store in replica.stores.values():
            store.to(StoreState.CLOSING)
            self._given.forget(store)
            if self._files is not None:
                self._files.forget(store)
            removals = (asyncio.wrap_future(each.remove(store)) for each in (self._restorer, self._follower))
            for error in await asyncio.gather(*removals, return_exceptions=True):
                # The store is closed all the same: otherwise its folder would stay locked, and never open again.
                if isinstance(error, BaseException):
                    log.warning("reading not ended in order", task=str(replica.task), error=repr(error))
            self._replica_events.ended(store)
        return positions(await asyncio.to_thread(_close_stores, replica, has_failed=has_failed))


def positions(checkpoints: Mapping[str, Checkpoint]) -> Positions:
    """Return the position of each store."""
    return {store: checkpoint.position for store, checkpoint in checkpoints.items()}


def _write_checkpoints(replica: TaskReplica) -> dict[str, Checkpoint]:
    # A store in memory is gone when the process ends, so its position must not be written to disk.
    with replica.directory.writing:
        stores = {name: store for name, store in replica.stores.items() if store.spec.is_persistent}
        checkpoints = {name: store.save_checkpoint() for name, store in stores.items()}
        if checkpoints:
            replica.directory.write_checkpoints(checkpoints)
        return checkpoints


def _close_stores(replica: TaskReplica, *, has_failed: bool) -> dict[str, Checkpoint]:
    """Write the checkpoints if possible, close the stores in any case, and return the checkpoints on disk.

    The folder is released in any case: else it could be opened only after the end of this process. Runs in a
    worker thread, when no thread writes to the stores any more.
    """
    checkpoints: dict[str, Checkpoint] | None = None
    with replica.directory.writing:
        try:
            try:
                if not has_failed:
                    checkpoints = _write_checkpoints(replica)
            except BaseException as caught:  # noqa: BLE001 - a full or broken disk must not keep the task open
                log.warning("checkpoint not written", task=str(replica.task), error=str(as_error(caught)))
            for store in replica.stores.values():
                try:
                    store.store.close()
                except BaseException as caught:  # noqa: BLE001 - as above
                    log.warning("store not closed in order", task=str(replica.task), error=str(as_error(caught)))
            return replica.directory.read_checkpoints() if checkpoints is None else checkpoints
        except CheckpointUnreadable as error:
            log.warning("checkpoint file can't be read", task=str(replica.task), error=str(error))
            return {}
        finally:
            replica.directory.release()
