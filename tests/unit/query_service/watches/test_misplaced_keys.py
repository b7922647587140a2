"""A watch of one key that is open when the store's first misplaced record is found."""

from __future__ import annotations

import asyncio
import time
from types import MappingProxyType
from typing import Any, cast

import pytest

from query_service.reads.admission import Admission
from query_service.reads.fleet_view import view_of
from query_service.reads.open_scans import OpenScans
from query_service.reads.serde_fetches import SerdeFetches
from query_service.replicas.replica import StoreReplica, TaskReplica
from query_service.replicas.tail import Compaction, Tail
from query_service.states.checkpoint import Checkpoint
from query_service.states.lifecycle import StoreState
from query_service.states.task_events import NodeTask
from query_service.stores.base import ChangelogRecord
from query_service.stores.key_value import KeyValueStore
from query_service.stores.memory_engine import MemoryEngine
from query_service.telemetry.metrics import NodeMetrics
from query_service.watches.watch_handler import WatchHandler
from statehouse.contract.assignment import Assignment, TaskAssignment
from statehouse.contract.membership import TaskState
from statehouse.contract.partitioning import partition_for
from statehouse.contract.placement import StorePlacement
from statehouse.contract.topology import Role, StoreSpec, TaskId
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2, types_pb2

SPEC = StoreSpec("s", "t", 2, 0, value_serde="string", foreign=True)


@pytest.mark.parametrize("is_of_a_key", [True, False])
async def test_a_key_watch_ends_once_changes_may_be_elsewhere(*, is_of_a_key: bool) -> None:
    replica = StoreReplica(
        SPEC,
        0,
        KeyValueStore(MemoryEngine(10**6)),
        Checkpoint("t", "id", 0, 1, misplaced=0),
        NodeMetrics().of("s", Role.ACTIVE),
        tail=Tail(10_000, Compaction(None), 0),
    )
    replica.to(StoreState.RESTORED)
    replica.note_end(0, time.monotonic(), 1)
    task = TaskId(0, 0)
    held = TaskReplica(NodeTask(task, Role.ACTIVE, ((SPEC, 0),), TaskState.RUNNING), cast("Any", None))
    held.stores[replica.folder] = replica
    admission = Admission(types_pb2.Host(instance_id="n"), {task: held}, lambda: True, {})
    assignment = Assignment(
        1, stores=MappingProxyType({"s": SPEC}), tasks=MappingProxyType({task: TaskAssignment("n")})
    )
    admission.view = view_of(assignment, {})
    request = query_service_pb2.WatchRequest(store="s", partition=0)
    if is_of_a_key:
        request.key.text = next(key for key in map(str, range(9)) if partition_for(key.encode(), 2) == 0)

    sent: asyncio.Queue[query_service_pb2.WatchResponse] = asyncio.Queue()
    scans, fetches = OpenScans(max_open=1, timeout_s=5.0), SerdeFetches(timeout_s=1.0)
    handler = WatchHandler(admission, scans, cast("Any", None), fetches, max_watches=1)
    watch = asyncio.create_task(handler.watch(request, sent.put))
    async with asyncio.timeout(10.0):
        while not (await sent.get()).current:
            pass
        admission.view = view_of(assignment, {}, placements={"s": StorePlacement(MappingProxyType({1: 1}))})
        replica.apply([ChangelogRecord(b"k", b"v", 1, 0)], 1)
        if is_of_a_key:
            with pytest.raises(LookupFailure) as refused:
                await watch
            assert refused.value.reason is Reason.KEYS_MISPLACED
        else:
            assert (await sent.get()).events, "a watch of the whole partition goes on"
            watch.cancel()
