"""What a node of a scene holds and knows, and what answers for it: every subject opens the stores by itself."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, cast

from query_service.dataplane.holding import DataPlaneStore
from query_service.reads.admission import Admission
from query_service.reads.first_batch import FirstBatches
from query_service.reads.fleet_view import view_of
from query_service.reads.lookups import LookupHandler
from query_service.reads.open_scans import OpenScans
from query_service.reads.scans import ScanHandler
from query_service.replicas.replica import StoreReplica, TaskReplica
from query_service.states.checkpoint import Checkpoint
from query_service.states.task_events import NodeTask
from query_service.stores.base import ChangelogRecord, StateStore
from query_service.telemetry.metrics import NodeMetrics
from statehouse.contract.assignment import Assignment, TaskAssignment
from statehouse.contract.membership import Member
from statehouse.contract.processor_reports import ProcessorReport
from statehouse.contract.topology import AnyTaskId, TaskId
from statehouse.v1 import types_pb2
from tests.conformance.scene import ENDS_VALID_S, EPOCH, NODE, OTHER, Held, Scene
from tests.conformance.subject import MAX_BATCH_ENTRIES, MAX_MESSAGE_BYTES

_TOPIC_ID: Final = "topic-id"


class Holding:
    """The replicas of a scene's node, and what answers for them."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.metrics = scene, NodeMetrics()
        self.replicas: dict[AnyTaskId, TaskReplica] = {}
        now = time.monotonic()
        self.reports: Mapping[str, ProcessorReport] = {
            store: ProcessorReport(now - ms / 1000, backlog) for store, (ms, backlog) in scene.reports.items()
        }
        self.admission = Admission(
            types_pb2.Host(instance_id=NODE, host="127.0.0.1", port=7101),
            self.replicas,
            lambda: scene.is_confirmed,
            self.reports,
            first_batches=FirstBatches(scene.proven),
        )

    def add(
        self,
        held: Held,
        store: StateStore,
        *,
        topic_id: str = _TOPIC_ID,
    ) -> StoreReplica:
        """Add an open store that has no records yet, and return its replica."""
        spec = self.scene.spec(held.store)
        task = spec.task_id(held.partition)
        node_task = NodeTask(task, held.role, ((spec, held.partition),), held.state, held.error)
        task_replica = self.replicas.setdefault(task, TaskReplica(node_task, cast("Any", None)))
        replica = StoreReplica(
            spec,
            held.partition,
            store,
            Checkpoint(spec.changelog_topic, topic_id, 0, 1, misplaced=0),
            self.metrics.of(spec.name, held.role),
            since_ms=held.since_ms,
            ends_valid_s=ENDS_VALID_S,
            pinned=store.engine.pinned if isinstance(store, DataPlaneStore) else None,
            latest=store.engine.latest if isinstance(store, DataPlaneStore) else None,
        )
        replica.topic_change = held.topic_change
        task_replica.stores[replica.folder] = replica
        return replica

    def assign(self) -> None:
        """Have the node read the assignment, by which it has the roles that its replicas have."""
        placements = self.scene.placements
        self.admission.view = view_of(_assignment(self.scene, self.replicas), _members(), placements=placements)

    def lookups(self, open_scans: OpenScans) -> LookupHandler:
        """Return what answers lookups."""
        return LookupHandler(
            self.admission,
            open_scans,
            self.metrics,
            max_batch_entries=MAX_BATCH_ENTRIES,
            max_message_bytes=MAX_MESSAGE_BYTES,
        )

    def scans(self, open_scans: OpenScans) -> ScanHandler:
        """Return what answers scans and counts."""
        return ScanHandler(self.admission, open_scans, max_message_bytes=MAX_MESSAGE_BYTES)

    def close(self) -> None:
        """Close the stores."""
        for task in self.replicas.values():
            for replica in task.stores.values():
                replica.store.close()


def apply(replica: StoreReplica, held: Held) -> None:
    """Have a replica apply its records."""
    records = [ChangelogRecord(*entry, offset) for offset, entry in enumerate(held.entries)]
    for index, reason in replica.apply(records, len(records)):
        replica.note_skipped(index, reason)


def know_end(replica: StoreReplica, held: Held) -> None:
    """Tell a replica that has its records what is known of its log's end."""
    if held.asked_ms_ago is not None:
        asked_at = time.monotonic() - held.asked_ms_ago / 1000
        replica.note_end(len(held.entries) + held.behind, asked_at, 1)


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
