"""Assignments and members made up for the router's tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from statehouse.contract.assignment import Assignment, TaskAssignment
from statehouse.contract.membership import Member, NodeState, ReplicaReport, StorePosition, TaskState
from statehouse.contract.topology import Role, StoreSpec, SubTopology, TaskId

STORE = "scores"


def assignment(
    holders: Sequence[TaskAssignment], epoch: int = 1, *, key_serde: str = "string", value_serde: str = "string"
) -> Assignment:
    """One store, one partition per entry of `holders`."""
    spec = StoreSpec(STORE, f"app-{STORE}-changelog", len(holders), 0, key_serde=key_serde, value_serde=value_serde)
    tasks = {TaskId(0, number): holder for number, holder in enumerate(holders)}
    return Assignment(
        epoch, stores={STORE: spec}, sub_topologies={0: SubTopology(0, "query", len(holders))}, tasks=tasks
    )


def report(
    position: int | None = 10, end: int | None = 10, state: str = TaskState.RUNNING, role: Role = Role.STANDBY
) -> ReplicaReport:
    """A replica's report on the one store."""
    return ReplicaReport(role, state, {STORE: StorePosition(position, end)})


def member(
    instance_id: str,
    reports: Mapping[int, ReplicaReport] | None = None,
    *,
    port: int = 1,
    incarnation: str = "first",
    started_at_ms: int = 1,
) -> Member:
    """A node with its reports by partition; it reports nothing else."""
    return Member(
        instance_id,
        incarnation,
        "127.0.0.1",
        port,
        started_at_ms=started_at_ms,
        state=NodeState.RUNNING,
        replicas={TaskId(0, number): item for number, item in (reports or {}).items()},
    )


def members(*items: Member) -> dict[str, Member]:
    """By instance id."""
    return {item.instance_id: item for item in items}
