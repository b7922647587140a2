"""Replication by the data plane: it reads changelogs, writes its stores and reports. Replicas learn of it here."""

from __future__ import annotations

import asyncio
import base64
from concurrent.futures import Future
from functools import partial
from typing import Any, Final

from query_service.dataplane.engine import DataPlaneEngine
from query_service.dataplane.holding import DataPlaneStore
from query_service.dataplane.orders import DataPlane, error_of
from query_service.replicas.replica import LogLost, Progress, StoreReplica
from query_service.replicas.replication import OnApplied, OnEnd, OnFailure, Replicator
from statehouse.control.v1 import engine_pb2, serving_pb2

_FOR_EVER: Final = 2**63 - 1


class DataPlaneReplicator:
    """Has the data plane read changelogs into its stores, which `Replicator` does on a thread.

    The callbacks are as `Replicator`'s, and run on the event loop.
    """

    def __init__(
        self,
        plane: DataPlane,
        on_batch: OnApplied,
        on_end: OnEnd,
        on_failure: OnFailure,
        *,
        restores: bool,
        apart: int | None = None,
    ) -> None:
        """`restores`: whether stores have far to read, and are not to hold up others.

        `apart`: a replica of its own is read into, beside the node's; so many bytes a second, 0 without a bound.
        """
        self._plane, self._restores, self._apart = plane, restores, apart
        self._loop = asyncio.get_running_loop()
        self._on_batch, self._on_end, self._on_failure = on_batch, on_end, on_failure

    def add(self, replica: StoreReplica, engine: DataPlaneEngine) -> Future[Any]:
        """Start to read a replica's partition from its position on. The future is done once that is so."""
        self._plane.report_to(engine.store, partial(self._take, replica, engine))
        replica.on_lost = lambda: self._loop.call_soon_threadsafe(self._give_up, replica, engine)
        replica.on_end_known = lambda: self._know_end(replica, engine)
        self._know_end(replica, engine)
        topic, partition = replica.topic_partition
        follow = engine_pb2.EngineFollow(
            store=engine.store,
            topic=topic,
            topic_id=base64.urlsafe_b64decode(replica.topic_id + "=="),
            partition=partition,
            partition_count=replica.spec.partition_count,
            checkpoint=replica.present_checkpoint().to_json().encode(),
            restores=self._restores,
            apart=self._apart is not None,
            bytes_a_second=self._apart or 0,
        )
        return self._plane.begin(engine_pb2.EngineOrder(follow=follow))

    def remove(self, engine: DataPlaneEngine) -> Future[Any]:
        """Stop reading a replica's partition. Once the future is done, nothing more is written to the store."""
        return self._plane.begin(engine_pb2.EngineOrder(leave=engine_pb2.EngineLeave(store=engine.store)))

    def _take(self, replica: StoreReplica, engine: DataPlaneEngine, report: engine_pb2.EngineReport) -> None:
        if report.HasField("fault"):
            is_lost = report.fault.kind == engine_pb2.ENGINE_FAULT_KIND_LOST
            self._fail(replica, engine, LogLost(report.fault.message) if is_lost else error_of(report.fault))
            return
        engine.see(report.segments, report.stream_time_ms)
        engine.know_oldest(report)
        replica.advanced_to(_progress(report))
        for each in report.skipped:
            replica.note_skipped(each.offset, each.reason)
        if records := report.puts + report.deletes:
            self._on_batch(replica, records)
        if replica.loss is not None:
            self._give_up(replica, engine)
        elif report.at_end or replica.is_at_known_end:
            self._on_end(replica)

    def _give_up(self, replica: StoreReplica, engine: DataPlaneEngine) -> None:
        """Fail a replica that was marked as lost."""
        if replica.loss is not None:
            self._fail(replica, engine, replica.loss)

    def _know_end(self, replica: StoreReplica, engine: DataPlaneEngine) -> None:
        if (last := replica.last_end()) is not None:
            self._plane.know_end(
                serving_pb2.ServingEnd(
                    store=engine.store,
                    offset=last.offset,
                    holds_until_us=_FOR_EVER if last.holds_until is None else int(last.holds_until * 1e6),
                    at_end_us=None if last.at_end is None else int(last.at_end * 1e6),
                )
            )

    def _fail(self, replica: StoreReplica, engine: DataPlaneEngine, error: Exception) -> None:
        self._plane.forget(engine.store)
        self._on_failure(replica, error)


def _progress(report: engine_pb2.EngineReport) -> Progress:
    first = report.first_misplaced
    return Progress(
        report.position,
        report.records_end,
        puts=report.puts,
        deletes=report.deletes,
        size=report.bytes,
        took_s=report.took_us / 1e6,
        late=report.late,
        expired_segments=report.expired_segments,
        stream_time_ms=report.stream_time_ms,
        unreadable=len(report.skipped),
        misplaced=report.misplaced,
        first_misplaced=(first.offset, first.expected) if report.misplaced else None,
    )


class Reading:
    """Has changelogs read into replicas: by the data plane into its stores, into others by a thread."""

    def __init__(self, thread: Replicator, plane: DataPlaneReplicator | None) -> None:
        self._thread, self._plane = thread, plane

    def add(self, replica: StoreReplica) -> Future[Any]:
        """Start to read a replica's partition from its position on; done once it is read."""
        if self._plane is not None and isinstance(replica.store, DataPlaneStore):
            return self._plane.add(replica, replica.store.engine)
        return self._thread.add(replica)

    def remove(self, replica: StoreReplica) -> Future[Any]:
        """Stop reading a replica's partition; done once the replica isn't used any more."""
        if self._plane is not None and isinstance(replica.store, DataPlaneStore):
            return self._plane.remove(replica.store.engine)
        return self._thread.remove(replica)
