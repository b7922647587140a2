"""Gives stores to other nodes: makes checkpoints of them, keeps these while they are read, and removes them.

Belongs to the event loop. The data plane sends the files themselves.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from query_service.dataplane.holding import DataPlaneStore
from query_service.dataplane.orders import DataPlane
from query_service.disk.directory import GIVEN_FOLDER
from query_service.replicas.replica import StoreReplica, TaskReplica, monotonic_and_wall_ms
from query_service.states.faults import TaskFault
from query_service.states.given import KEPT_S, is_over, is_reusable, most_given
from query_service.stores.engine import StoreClosed
from query_service.telemetry.metrics import NodeMetrics
from statehouse.contract.membership import TaskState
from statehouse.contract.topology import AnyTaskId
from statehouse.control.v1 import files_pb2
from statehouse.errors import LookupFailure, Reason
from statehouse.runtime.background import BackgroundWork
from statehouse.v1 import peer_service_pb2

log = structlog.get_logger(__name__)

_SWEPT_EVERY_S: Final = KEPT_S / 4


@dataclass(slots=True)
class _Given:
    """A checkpoint that other nodes may read. Times are of the monotonic clock, in seconds."""

    replica: StoreReplica
    path: Path
    manifest: peer_service_pb2.StoreManifest
    made_at: float
    used_at: float

    def size_of(self, file: str) -> int | None:
        """Return the bytes of a file, None if there is none of that name."""
        return next((each.size for each in self.manifest.files if each.name == file), None)


class GivenStores:
    """The checkpoints of a node's stores that other nodes may read."""

    def __init__(
        self, plane: DataPlane | None, replicas: Mapping[AnyTaskId, TaskReplica], metrics: NodeMetrics
    ) -> None:
        """`plane`: holds stores; None: none can be given."""
        self._plane, self._replicas, self._metrics = plane, replicas, metrics
        self._given: dict[str, _Given] = {}
        self._making = asyncio.Lock()  # one at a time: who asks meanwhile gets the same
        self._work = BackgroundWork()
        self._sweep: asyncio.TimerHandle | None = None

    async def offer(self, store: str, partition: int) -> peer_service_pb2.OfferStoreResponse:
        """Return a store's manifest, and the name that its checkpoint is read by.

        Raises:
            LookupFailure: INVALID_REQUEST, PARTITION_NOT_OWNED, PARTITION_RESTORING, OVERLOADED, TASK_FAILED.

        """
        task, replica = self._of(store, partition)
        async with self._making:
            name, given = self._made_lately(replica) or await self._made(task, replica)
        given.used_at = time.monotonic()
        # After the checkpoint's time, by the same clock.
        return peer_service_pb2.OfferStoreResponse(
            manifest=given.manifest, checkpoint=name, now_ms=monotonic_and_wall_ms()[1]
        )

    def granted(self, checkpoint: str, file: str, offset: int) -> files_pb2.FileGrant:
        """Return which file the data plane is to send.

        Raises:
            LookupFailure: INVALID_REQUEST, there is no such checkpoint any more, or no such file or offset.

        """
        given = self._given.get(checkpoint)
        if given is None:
            raise LookupFailure(Reason.INVALID_REQUEST, "this node has no such checkpoint, or no longer has it")
        size = given.size_of(file)
        if size is None or offset > size:
            raise LookupFailure(Reason.INVALID_REQUEST, f"the checkpoint has no file {file!r} of {offset} bytes")
        given.used_at = time.monotonic()
        self._metrics.given_bytes.labels(given.manifest.store).inc(size - offset)
        return files_pb2.FileGrant(path=str(given.path / file), offset=offset)

    def forget(self, replica: StoreReplica) -> None:
        """Remove what there is of a replica that is about to be closed."""
        for name in [name for name, given in self._given.items() if given.replica is replica]:
            self._remove(name)

    async def close(self) -> None:
        """Remove everything."""
        if self._sweep is not None:
            self._sweep.cancel()
        for name in list(self._given):
            self._remove(name)
        await self._work.finish()

    def _of(self, store: str, partition: int) -> tuple[TaskReplica, StoreReplica]:
        if self._plane is None:
            raise LookupFailure(Reason.INVALID_REQUEST, "this node's stores are not in files that others can read")
        for task in self._replicas.values():
            for replica in task.stores.values():
                if (replica.spec.name, replica.partition) != (store, partition):
                    continue
                if not (replica.spec.is_persistent and isinstance(replica.store, DataPlaneStore)):
                    raise LookupFailure(Reason.INVALID_REQUEST, f"store {store} is not in files that others can read")
                if task.state is not TaskState.RUNNING:
                    raise LookupFailure(Reason.PARTITION_RESTORING, f"partition {partition} is {task.state}")
                return task, replica
        raise LookupFailure(Reason.PARTITION_NOT_OWNED, f"this node has no partition {partition} of store {store!r}")

    def _made_lately(self, replica: StoreReplica) -> tuple[str, _Given] | None:
        now = time.monotonic()
        for name, given in self._given.items():
            if given.replica is replica and is_reusable(given.made_at, now):
                return name, given
        return None

    async def _made(self, task: TaskReplica, replica: StoreReplica) -> tuple[str, _Given]:
        assert self._plane is not None  # noqa: S101 - `_of` has seen it
        assert isinstance(replica.store, DataPlaneStore)  # noqa: S101 - the same
        self._remove_old()
        if len(self._given) >= most_given(len(self._replicas)):
            raise LookupFailure(Reason.OVERLOADED, f"this node gives {len(self._given)} stores already")
        began, name = time.monotonic(), secrets.token_hex(16)
        path = task.directory.store_path(replica.folder) / GIVEN_FOLDER / name
        try:
            await asyncio.to_thread(replica.save_checkpoint)
            made = await replica.store.engine.given(path)
        except BaseException as caught:
            self._work.start(asyncio.to_thread(shutil.rmtree, path, ignore_errors=True), "remove half a checkpoint")
            if isinstance(caught, StoreClosed):
                raise LookupFailure(Reason.PARTITION_NOT_OWNED, f"the store is being closed: {caught}") from caught
            if isinstance(caught, TaskFault):
                raise LookupFailure(Reason.TASK_FAILED, f"{caught.fault}: {caught}") from caught
            raise
        manifest = peer_service_pb2.StoreManifest(
            store=replica.spec.name,
            partition=replica.partition,
            engine=self._plane.engine,
            checkpoint=made.checkpoint,
            files=made.files,
        )
        now = time.monotonic()
        given = self._given[name] = _Given(replica, path, manifest, now, now)
        log.info(
            "store given to other nodes",
            store=replica.spec.name,
            partition=replica.partition,
            files=len(manifest.files),
            size_bytes=sum(each.size for each in manifest.files),
            took_s=round(now - began, 3),
        )
        if self._sweep is None:
            self._sweep_later()
        return name, given

    def _sweep_later(self) -> None:
        self._sweep = asyncio.get_running_loop().call_later(_SWEPT_EVERY_S, self._swept)

    def _swept(self) -> None:
        self._sweep = None
        self._remove_old()
        if self._given:
            self._sweep_later()

    def _remove_old(self) -> None:
        now = time.monotonic()
        for name in [name for name, each in self._given.items() if is_over(each.made_at, each.used_at, now)]:
            self._remove(name)

    def _remove(self, name: str) -> None:
        """Remove a checkpoint. What is being sent of it is sent to the end of its file."""
        path = self._given.pop(name).path
        self._work.start(asyncio.to_thread(shutil.rmtree, path, ignore_errors=True), "remove a given checkpoint")
