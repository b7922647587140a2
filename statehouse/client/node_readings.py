"""What a node says of itself, as immutable values; and of that its restores and its counts of lookups. Pure.

Routers know of nodes by heartbeats. A node's own answer is newer and says more: how far a restore is, and how often
each partition was asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from statehouse.client.conversion import role_name, same_named
from statehouse.client.restore_rates import RestoreSample
from statehouse.contract.membership import TaskState
from statehouse.v1 import node_service_pb2

ReplicaPlace = tuple[str, str, int]
"""A task, one of its stores, and the store's partition."""


UNDER_WAY: Final = frozenset({TaskState.CREATED, TaskState.RESTORING})
"""States of a task that restores: it is only created while its stores are opened, and files for them fetched."""


@dataclass(frozen=True, slots=True)
class ReplicaReading:
    """A replica of a store's partition, as its node describes it; None is unknown."""

    task: str
    role: str
    state: str
    error: str
    store: str
    partition: int
    position: int | None
    end: int | None
    lag: int | None
    staleness_ms: int | None
    restored_from: int | None
    restored_records: int
    lookups: int | None
    oldest_batch: int | None
    restored_by: str = ""
    """What its state came from: `disk`, `log`, or `peer` with a node's instance id; empty if it doesn't say."""
    passed_over: tuple[str, ...] = ()
    """What it did not come from, and why."""

    @property
    def place(self) -> ReplicaPlace:
        """Which of the node's replicas it is."""
        return self.task, self.store, self.partition


@dataclass(frozen=True, slots=True)
class TransferReading:
    """Files of a store's partition that a node fetches from another one, `peer`, as it describes them."""

    task: str
    role: str
    store: str
    partition: int
    peer: str
    size_bytes: int
    done_bytes: int

    @property
    def place(self) -> ReplicaPlace:
        """Which of the node's replicas they are for."""
        return self.task, self.store, self.partition


@dataclass(frozen=True, slots=True)
class NodeReading:
    """A node's answer. `at_s`: when it came, seconds of a clock that only grows."""

    instance_id: str
    incarnation: str
    state: str
    epoch: int
    replicas: tuple[ReplicaReading, ...]
    heartbeats_failing_ms: int | None
    at_s: float
    transfers: tuple[TransferReading, ...] = ()

    def lookups(self) -> dict[ReplicaPlace, int]:
        """Return how many lookups each replica has answered; of those that count them."""
        return {each.place: each.lookups for each in self.replicas if each.lookups is not None}

    def restores(self) -> Iterator[RestoreSample]:
        """Yield where each restore is."""
        for each in self.replicas:
            if each.state in UNDER_WAY:
                yield RestoreSample(
                    self.instance_id,
                    each.task,
                    each.role,
                    each.store,
                    each.partition,
                    each.position,
                    each.restored_from,
                    each.end,
                )
        for files in self.transfers:
            yield RestoreSample(
                self.instance_id,
                files.task,
                files.role,
                files.store,
                files.partition,
                files.done_bytes,
                0,
                files.size_bytes,
                files.peer,
            )


def read_node(answer: node_service_pb2.GetNodeResponse, at_s: float) -> NodeReading:
    """Read a node's answer."""
    return same_named(
        NodeReading,
        answer,
        instance_id=answer.host.instance_id,
        replicas=tuple(_replica(task, store) for task in answer.tasks for store in task.stores),
        at_s=at_s,
        transfers=tuple(
            same_named(TransferReading, each, task=task.task, role=role_name(task.role))
            for task in answer.tasks
            for each in task.transfers
        ),
    )


def _replica(task: node_service_pb2.TaskReplica, store: node_service_pb2.StoreReplica) -> ReplicaReading:
    return same_named(
        ReplicaReading,
        store,
        task=task.task,
        role=role_name(task.role),
        state=task.state,
        error=task.error,
        end=store.end_offset if store.HasField("end_offset") else None,
        passed_over=tuple(store.passed_over),
    )
