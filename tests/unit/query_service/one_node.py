"""A node that is active for some partitions of one store, without a broker."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from query_service.reads.admission import Admission
from query_service.reads.fleet_view import view_of
from query_service.replicas.replica import StoreReplica, TaskReplica
from query_service.states.checkpoint import Checkpoint
from query_service.states.task_events import NodeTask
from query_service.stores.base import ChangelogRecord
from query_service.stores.key_value import KeyValueStore
from query_service.stores.memory_engine import MemoryEngine
from query_service.telemetry.metrics import NodeMetrics
from statehouse.contract.assignment import Assignment, TaskAssignment
from statehouse.contract.membership import TaskState
from statehouse.contract.partitioning import partition_for
from statehouse.contract.processor_reports import ProcessorReport
from statehouse.contract.topology import AnyTaskId, Role, StoreSpec, TaskId
from statehouse.v1 import types_pb2

PARTITIONS = 3
SPEC = StoreSpec("s", "t", PARTITIONS, 0, value_serde="string")


def admission_of(
    metrics: NodeMetrics,
    held: Sequence[int],
    keys: Iterable[str],
    reports: Mapping[str, ProcessorReport] = MappingProxyType({}),
) -> Admission:
    """Return the admission of a node that holds these partitions, with the keys' upper case as values.

    Partition 0 is at its end, partition 1 is 5 records behind, and so on.
    """
    keys = list(keys)
    replicas: dict[AnyTaskId, TaskReplica] = {}
    for partition in held:
        task = TaskId(0, partition)
        at = Checkpoint("t", "id", 0, 1)
        replica = StoreReplica(SPEC, partition, KeyValueStore(MemoryEngine(10**6)), at, metrics.of("s", Role.ACTIVE))
        records = [ChangelogRecord(key.encode(), key.upper().encode(), 0) for key in keys]
        mine = [record for record in records if partition_for(record.key, PARTITIONS) == partition]
        replica.apply(mine, len(mine))
        replica.note_end(len(mine) + 5 * partition, time.monotonic(), 1)
        held_task = NodeTask(task, Role.ACTIVE, ((SPEC, partition),), TaskState.RUNNING)
        replicas[task] = TaskReplica(held_task, cast("Any", None))
        replicas[task].stores[replica.folder] = replica
    admission = Admission(types_pb2.Host(instance_id="n"), replicas, lambda: True, reports)
    tasks = {TaskId(0, partition): TaskAssignment("n") for partition in range(PARTITIONS)}
    admission.view = view_of(Assignment(7, stores=MappingProxyType({"s": SPEC}), tasks=MappingProxyType(tasks)), {})
    return admission
