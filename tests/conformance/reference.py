"""The reference: Python's own reads over RocksDB or memory, in this process."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from inspect import isawaitable
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

from google.protobuf.message import Message

from query_service.reads.admission import Admission
from query_service.reads.batches import batch_of
from query_service.reads.first_batch import FirstBatches
from query_service.reads.fleet_view import view_of
from query_service.reads.lookups import DiskLookup, LookupHandler
from query_service.reads.open_scans import OpenScans
from query_service.reads.scans import ScanHandler
from query_service.replicas.replica import StoreReplica, TaskReplica
from query_service.states.checkpoint import Checkpoint
from query_service.states.task_events import NodeTask
from query_service.stores.base import ChangelogRecord
from query_service.stores.catalog import open_store
from query_service.stores.resources import StoreResources
from query_service.telemetry.metrics import NodeMetrics
from statehouse.contract.assignment import Assignment, TaskAssignment
from statehouse.contract.membership import Member
from statehouse.contract.processor_reports import ProcessorReport
from statehouse.contract.topology import AnyTaskId, StoreSpec, TaskId
from statehouse.rpc.requests import refuse_unreadable
from statehouse.v1 import query_service_pb2, types_pb2
from tests.conformance.scene import EPOCH, NODE, OTHER, Held, Scene
from tests.conformance.subject import MAX_BATCH_ENTRIES, MAX_MESSAGE_BYTES

_TOPIC_ID: Final = "topic-id"
_RESPONSES: Final = {
    "Get": query_service_pb2.GetResponse,
    "BatchGet": query_service_pb2.BatchGetResponse,
    "Scan": query_service_pb2.ScanResponse,
    "ScanWindows": query_service_pb2.ScanWindowsResponse,
    "ScanSessions": query_service_pb2.ScanSessionsResponse,
}
"""What the methods return that answer with bytes."""


class ReferenceNode:
    """Answers by the handlers that the node's services call."""

    def __init__(self, scene: Scene, directory: Path, open_scans: OpenScans, *, in_memory: bool) -> None:
        self._metrics, self._directory, self._in_memory = NodeMetrics(), directory, in_memory
        self._replicas: dict[AnyTaskId, TaskReplica] = {}
        self._resources = StoreResources()
        for held in scene.held:
            self._hold(held, scene.spec(held.store))
        now = time.monotonic()
        admission = Admission(
            types_pb2.Host(instance_id=NODE, host="127.0.0.1", port=7101),
            self._replicas,
            lambda: scene.is_confirmed,
            {store: ProcessorReport(now - ms / 1000, backlog) for store, (ms, backlog) in scene.reports.items()},
            first_batches=FirstBatches(scene.proven),
        )
        admission.view = view_of(_assignment(scene, self._replicas), _members(), placements=scene.placements)
        self._lookups = LookupHandler(
            admission,
            open_scans,
            self._metrics,
            max_batch_entries=MAX_BATCH_ENTRIES,
            max_message_bytes=MAX_MESSAGE_BYTES,
        )
        scans = ScanHandler(admission, open_scans, max_message_bytes=MAX_MESSAGE_BYTES)
        self._handlers: Mapping[str, Callable[[Any], Any]] = {
            "Get": self._lookups.get,
            "BatchGet": lambda request: self._lookups.batch_get(batch_of(request.SerializeToString())),
            "Scan": scans.scan,
            "Count": scans.count,
            "FetchWindows": self._lookups.fetch_windows,
            "FetchSessions": self._lookups.fetch_sessions,
            "GetAsOf": self._lookups.get_as_of,
            "GetHistory": self._lookups.get_history,
            "ScanWindows": scans.scan_windows,
            "ScanSessions": scans.scan_sessions,
        }

    async def answer(self, method: str, request: Any) -> Message:
        """See Node."""
        refuse_unreadable(request)
        found = self._handlers[method](request)
        if isawaitable(found):
            found = await found
        if isinstance(found, DiskLookup):
            found = await found.complete()
        return _RESPONSES[method].FromString(found) if isinstance(found, bytes) else cast("Message", found)

    def close(self) -> None:
        """Close the stores."""
        self._lookups.close()
        for task in self._replicas.values():
            for replica in task.stores.values():
                replica.store.close()

    def _hold(self, held: Held, spec: StoreSpec) -> None:
        """Open a replica, and have it apply its records."""
        task = spec.task_id(held.partition)
        node_task = NodeTask(task, held.role, ((spec, held.partition),), held.state, held.error)
        task_replica = self._replicas.setdefault(task, TaskReplica(node_task, cast("Any", None)))
        path = self._directory / f"{spec.name}-{held.partition}"
        replica = StoreReplica(
            spec,
            held.partition,
            open_store(replace(spec, in_memory=self._in_memory), path, self._resources),
            Checkpoint(spec.changelog_topic, _TOPIC_ID, 0, 1, misplaced=0),
            self._metrics.of(spec.name, held.role),
            since_ms=held.since_ms,
        )
        records = [ChangelogRecord(*entry, offset) for offset, entry in enumerate(held.entries)]
        for index, reason in replica.apply(records, len(records)):
            replica.note_skipped(index, reason)
        if held.asked_ms_ago is not None:
            replica.note_end(len(records) + held.behind, time.monotonic() - held.asked_ms_ago / 1000, 1)
        replica.topic_change = held.topic_change
        task_replica.stores[replica.folder] = replica


@asynccontextmanager
async def reference(scene: Scene, directory: Path, *, in_memory: bool) -> AsyncIterator[ReferenceNode]:
    """Open a node of Python's; a `Subject` once `in_memory` is set."""
    with ExitStack() as opened:
        open_scans = OpenScans(max_open=4, timeout_s=60.0)
        opened.callback(open_scans.close)
        node = ReferenceNode(scene, directory, open_scans, in_memory=in_memory)
        opened.callback(node.close)
        yield node


REFERENCES: Final = MappingProxyType(
    {"rocksdb": partial(reference, in_memory=False), "memory": partial(reference, in_memory=True)}
)


def _assignment(scene: Scene, replicas: Mapping[AnyTaskId, TaskReplica]) -> Assignment:
    """Return an assignment by which the node has its roles, and the other node is the active of all else."""
    roles = defaultdict(lambda: TaskAssignment(OTHER))
    for task, replica in replicas.items():
        if isinstance(task, TaskId):
            is_active = replica.role.name == "ACTIVE"
            roles[task] = TaskAssignment(NODE, (OTHER,)) if is_active else TaskAssignment(OTHER, (NODE,))
    tasks = [TaskId(spec.sub_topology, each) for spec in scene.stores for each in range(spec.partition_count)]
    return Assignment(
        EPOCH,
        stores=MappingProxyType({spec.name: spec for spec in scene.stores}),
        tasks=MappingProxyType({task: roles[task] for task in tasks}),
    )


def _members() -> Mapping[str, Member]:
    return {name: Member(name, "i", "127.0.0.1", port) for name, port in ((NODE, 7101), (OTHER, 7102))}
