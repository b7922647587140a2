"""A node before a store's first batch: what it refuses, and from when on it answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

import pytest

from query_service.reads.admission import Admission
from query_service.reads.first_batch import FirstBatches
from query_service.reads.fleet_view import view_of
from query_service.replicas.replica import StoreReplica, TaskReplica
from query_service.states.checkpoint import Checkpoint
from query_service.states.lifecycle import StoreState
from query_service.states.task_events import NodeTask
from query_service.stores.base import ChangelogRecord
from query_service.stores.key_value import KeyValueStore
from query_service.stores.memory_engine import MemoryEngine
from query_service.telemetry.metrics import NodeMetrics
from statehouse.contract.assignment import Assignment, TaskAssignment
from statehouse.contract.membership import TaskState
from statehouse.contract.processor_reports import ProcessorReports
from statehouse.contract.topology import Role, StoreSpec, TaskId
from statehouse.control.v1 import commits_pb2
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import types_pb2

SPEC = StoreSpec("s", "t", 1, 0, value_serde="string", committed=True)
TASK = TaskId(0, 0)


class Node:
    """A node that holds a store of one partition, whose log ended at `end` when it was opened."""

    def __init__(self, engine: MemoryEngine | None = None, *, end: int = 0, spec: StoreSpec = SPEC) -> None:
        self.engine = engine or MemoryEngine(10**6)
        at = self.engine.checkpoint() or Checkpoint("t", "id", 0, 1)
        self.replica = StoreReplica(
            spec, 0, KeyValueStore(self.engine), at, NodeMetrics().of("s", Role.ACTIVE), restored_to=end
        )
        held = TaskReplica(NodeTask(TASK, Role.ACTIVE, ((spec, 0),), TaskState.RUNNING), cast("Any", None))
        held.stores[self.replica.folder] = self.replica
        self.reports, self.is_read = ProcessorReports(), True
        first_batches = FirstBatches(self.reports.proven, lambda: self.is_read)
        host = types_pb2.Host(instance_id="n")
        self.admission = Admission(host, {TASK: held}, lambda: True, self.reports.latest, first_batches=first_batches)
        self.sees(spec)

    def sees(self, spec: StoreSpec) -> None:
        assignment = Assignment(
            7, stores=MappingProxyType({"s": spec}), tasks=MappingProxyType({TASK: TaskAssignment("n")})
        )
        self.admission.view = view_of(assignment, {})

    def follow(self) -> None:
        self.replica.to(StoreState.RESTORED)
        self.replica.to(StoreState.FOLLOWING)

    def apply(self, offsets: Sequence[int], position: int) -> None:
        self.replica.apply([ChangelogRecord(b"k%d" % at, b"v", 0, at) for at in offsets], position)

    def hears(self, end: int, **fields: Any) -> None:
        commit = commits_pb2.Commit(store="s", query_id="q", **fields)
        commit.changelog_ends.add(topic="t", partition=0, offset=end)
        self.reports.take(commit, time.monotonic())

    @property
    def refusal(self) -> Reason | None:
        served = self.admission.store("s")
        try:
            self.admission.admit(served, 0, types_pb2.Freshness(), types_pb2.Forwarding())
        except LookupFailure as failure:
            return failure.reason
        return None


def test_an_empty_log_that_is_read_to_its_end_proves_nothing() -> None:
    node = Node()
    node.follow()
    assert node.refusal is Reason.STORE_NOT_BUILT
    node.replica.reach(9)  # a batch that was aborted leaves offsets
    assert node.refusal is Reason.STORE_NOT_BUILT
    assert not node.admission.is_built(node.replica)


def test_the_first_batch_counts_when_all_of_it_is_there() -> None:
    node = Node()
    node.follow()
    node.apply([0, 1], 2)
    assert node.refusal is Reason.STORE_NOT_BUILT
    node.hears(4)
    assert node.refusal is Reason.STORE_NOT_BUILT, "a key of its other half would be called absent"
    node.hears(40)  # the next batch's: it need not be there
    node.apply([2], 4)
    assert node.refusal is None
    assert node.admission.is_built(node.replica)
    node.reports.forget("s")
    assert node.refusal is None, "what was built stays so until the store is opened again"


def test_commits_that_are_still_being_read_are_waited_for() -> None:
    node = Node()
    node.follow()
    node.is_read = False
    assert node.refusal is Reason.PARTITION_RESTORING
    node.is_read = True
    assert node.refusal is Reason.STORE_NOT_BUILT


def test_records_that_were_there_when_it_was_opened_are_whole_batches() -> None:
    node = Node(end=3)
    node.apply([0, 1], 3)
    node.follow()
    assert node.refusal is None


def test_records_that_came_while_it_was_opened_may_be_a_part() -> None:
    node = Node(end=0)
    node.apply([0, 1], 2)  # read before the store was found to be at the end that it was opened with
    node.follow()
    assert node.refusal is Reason.STORE_NOT_BUILT
    node.hears(2)
    assert node.refusal is None


def test_a_store_with_entries_on_disk_needs_no_report() -> None:
    before = Node(end=3)
    before.apply([0, 1], 3)
    before.replica.save_checkpoint()
    node = Node(before.engine, end=3)
    node.follow()
    node.is_read = False
    assert node.refusal is None


@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"no_batch": True, "input_backlog": 0}, None),
        ({"no_batch": True, "input_backlog": 5}, Reason.STORE_NOT_BUILT),
        ({"no_batch": True}, Reason.STORE_NOT_BUILT),
        ({"idle": True, "stopped": True}, None),
    ],
)
def test_a_processor_may_say_that_there_was_nothing_to_commit(fields: dict[str, Any], refusal: Reason | None) -> None:
    node = Node()
    node.follow()
    node.hears(0, **fields)
    assert node.refusal is refusal


def test_a_store_that_nobody_commits_into_is_as_before() -> None:
    assert Node(spec=replace(SPEC, committed=False)).refusal is None


def test_the_newest_assignment_decides_who_commits() -> None:
    node = Node(spec=replace(SPEC, committed=False))
    node.follow()
    node.sees(SPEC)  # the processor was updated; the store is open already
    assert node.refusal is Reason.STORE_NOT_BUILT
    assert SPEC.stored == replace(SPEC, committed=False).stored, "and stays open"


def test_an_application_that_begins_anew_is_unbuilt_in_a_new_topic() -> None:
    node = Node()
    node.follow()
    node.apply([0], 500)
    node.hears(500)
    assert node.refusal is None
    node.reports.forget("s")  # reset: the topic is another one, and the store is opened again
    anew = Node()
    anew.follow()
    assert anew.refusal is Reason.STORE_NOT_BUILT
    anew.hears(500)  # even if the node had not read that the records are gone
    assert anew.refusal is Reason.STORE_NOT_BUILT
    anew.apply([0], 3)
    anew.hears(3)
    assert anew.refusal is None
