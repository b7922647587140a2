"""Members: the nodes' reports in the members topic, as immutable values.

States travel as text. A node of a newer version may report a state that this version does not know. Such a state is
passed on unchanged; it means only that the node or task is in none of the states known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from google.protobuf.message import DecodeError

from statehouse.contract.formats import MEMBER
from statehouse.contract.topology import Role, TaskId, checked_name
from statehouse.control.v1 import members_pb2
from statehouse.errors import ContractError
from statehouse.errors.checked import (
    CAPACITY_MAX,
    PARTITIONS_MAX,
    checked_count,
    checked_host,
    checked_id,
    checked_list,
    checked_port,
    checked_record,
    checked_text,
)


class NodeState(StrEnum):
    """The state of a whole node: Kafka Streams' `KafkaStreams.State`, without the states of its threads."""

    CREATED = "CREATED"
    REBALANCING = "REBALANCING"
    RUNNING = "RUNNING"
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    NOT_RUNNING = "NOT_RUNNING"
    ERROR = "ERROR"


class TaskState(StrEnum):
    """The state of a task's replica, or of a global store's copy."""

    CREATED = "created"
    RESTORING = "restoring"
    RUNNING = "running"
    SUSPENDED = "suspended"
    CLOSED = "closed"
    ERROR = "error"


SILENT = "SILENT"
"""What a router calls the state of a node that it hasn't heard for a session: its last word may be that it runs."""
LEAVING_STATES: frozenset[str] = frozenset({NodeState.PENDING_SHUTDOWN, NodeState.NOT_RUNNING, NodeState.ERROR})
"""States in which a node gives up its tasks and stores."""

FORGET_AFTER_SESSIONS = 30
"""Session timeouts after which a silent member that the assignment doesn't name is forgotten.

By then no lookup waits for it: the record is kept only so that people see which node is missing.
"""

STARTED_AHEAD_MAX_MS = 7 * 24 * 3_600_000
"""A process can't have started more than this after a record that it wrote, or after it is read: clocks are not that
wrong."""

_SHOWN = 100
_INCARNATION = re.compile(r"[0-9A-Za-z+]{1,64}")
_ROLES = frozenset(role.value for role in Role)


@dataclass(frozen=True, slots=True)
class StorePosition:
    """The next offset a store needs, and the largest end offset its node knows; None is unknown.

    Attributes:
        misplaced: how many of the records that the replica has read stand in another partition than the partitioner
            gives their keys; None if its state was not checked from the start.
        topic_change: how the store's topic differs from what the store needs; empty if it doesn't.
        placement_log: stands for the log that `misplaced` is of; 0 if that isn't told (`placement.log_number`).

    """

    position: int | None
    end_offset: int | None = None
    misplaced: int | None = None
    topic_change: str = ""
    placement_log: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """A replica, as its node reports it. `state`: a `TaskState`, or one of a newer version."""

    role: Role
    state: str
    stores: Mapping[str, StorePosition]

    @property
    def is_restored(self) -> bool:
        """Whether it answers lookups."""
        return self.state == TaskState.RUNNING


@dataclass(frozen=True, slots=True)
class GlobalReport:
    """A node's report on its copy of a global store; positions by partition of the store's topic.

    `state`: as in `ReplicaReport`.
    """

    state: str
    positions: Mapping[int, StorePosition]


@dataclass(frozen=True, slots=True)
class Member:
    """A node's heartbeat. `state`: a `NodeState`, or one of a newer version."""

    instance_id: str
    incarnation: str
    host: str
    port: int
    started_at_ms: int = 0
    rack: str = ""
    version: str = ""
    state: str = NodeState.CREATED
    epoch: int = 0
    heartbeat: int = 0
    replicas: Mapping[TaskId, ReplicaReport] = field(default_factory=lambda: MappingProxyType({}))
    global_replicas: Mapping[str, GlobalReport] = field(default_factory=lambda: MappingProxyType({}))
    capacity: int = 1
    """The node's weight when tasks are shared out."""
    dynamic: bool = False
    """Whether its instance id was generated for this run."""
    returns: bool = False
    """Whether the process stops, and another one is to be back within the session timeout."""

    @property
    def incarnation_order(self) -> tuple[int, str]:
        """Sort key of processes under one instance id: the greater is the newer."""
        return self.started_at_ms, self.incarnation


_PLAIN: Final = tuple(each.name for each in fields(Member) if each.name not in {"replicas", "global_replicas"})
"""The fields that are the same on the wire."""


def target(host: str, port: int) -> str:
    """Return an advertised address in gRPC's form, `host:port` or `[host]:port`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def encode_member(member: Member) -> tuple[bytes, bytes]:
    """Return the record (key, value) of a heartbeat."""
    replicas = [
        members_pb2.Replica(
            task=str(task),
            role=members_pb2.Role.ValueType(report.role.value),
            state=report.state,
            stores=[
                members_pb2.StorePosition(store=store, placement_log=at.placement_log, **_of_any_position(at))
                for store, at in report.stores.items()
            ],
        )
        for task, report in sorted(member.replicas.items())
    ]
    global_replicas = [
        members_pb2.GlobalReplica(
            store=store,
            state=report.state,
            partitions=[
                members_pb2.PartitionPosition(partition=partition, **_of_any_position(at))
                for partition, at in sorted(report.positions.items())
            ],
        )
        for store, report in sorted(member.global_replicas.items())
    ]
    message = members_pb2.Member(
        replicas=replicas,
        global_replicas=global_replicas,
        format_version=MEMBER.written,
        **{name: getattr(member, name) for name in _PLAIN},
    )
    return member.instance_id.encode(), message.SerializeToString()


def _of_any_position(at: StorePosition) -> dict[str, Any]:
    """Return the fields that both kinds of positions have on the wire."""
    return {
        "position": at.position,
        "end_offset": at.end_offset,
        "misplaced": at.misplaced,
        "topic_change": at.topic_change,
    }


def counted(value: bytes, heartbeat: int) -> bytes:
    """Return an encoded heartbeat with this number instead of its own."""
    # If a field stands there twice, the last one counts.
    return value + members_pb2.Member(heartbeat=heartbeat).SerializeToString()


def decode_member(key: bytes | None, value: bytes, written_at_ms: int, now_ms: int) -> Member:
    """Read a heartbeat. `written_at_ms`: the record's timestamp, `now_ms`: the reader's clock; epoch milliseconds.

    Raises:
        ContractError: the bytes are not a heartbeat, its member is not the one that its key names, or a field has a
            value that can't be true.

    """
    try:
        message = members_pb2.Member.FromString(checked_record(value))
    except DecodeError as error:
        raise ContractError(f"unreadable member record: {error}") from error
    MEMBER.check(message.format_version)
    if message.instance_id.encode() != key:
        raise ContractError(f"its key is not its instance id, {message.instance_id[:_SHOWN]!r}")
    # A clock may be wrong. But a process that claims to start in the far future would be the newest for ever. The
    # record's timestamp is its writer's, so it proves nothing alone.
    latest_ms = max(0, min(written_at_ms, now_ms)) + STARTED_AHEAD_MAX_MS
    return Member(
        checked_id("instance id", message.instance_id),
        _checked_incarnation(message.incarnation),
        checked_host("host", message.host),
        checked_port("port", message.port),
        checked_count("started_at_ms", message.started_at_ms, latest_ms),
        checked_text("rack", message.rack),
        checked_text("version", message.version),
        checked_id("state", message.state),
        checked_count("epoch", message.epoch),
        checked_count("heartbeat", message.heartbeat),
        MappingProxyType(dict(_replicas(message))),
        MappingProxyType(dict(_global_replicas(message))),
        checked_count("capacity", message.capacity or 1, CAPACITY_MAX),
        message.dynamic,
        message.returns,
    )


def _checked_incarnation(text: str) -> str:
    """Return a process' random id. It decides between processes that started together, so nothing sorts after all."""
    if _INCARNATION.fullmatch(text) is None:
        raise ContractError(f"incarnation {text[:_SHOWN]!r} is not of 1 to 64 letters and digits")
    return text


def _replicas(message: members_pb2.Member) -> Iterator[tuple[TaskId, ReplicaReport]]:
    for replica in checked_list("replicas", message.replicas):
        if replica.role not in _ROLES:  # a newer version's role
            continue
        positions = {checked_name("store", at.store): _position(at) for at in checked_list("stores", replica.stores)}
        state = checked_id("state of a task", replica.state)
        yield TaskId.parse(replica.task), ReplicaReport(Role(replica.role), state, MappingProxyType(positions))


def _global_replicas(message: members_pb2.Member) -> Iterator[tuple[str, GlobalReport]]:
    for copy in checked_list("global stores", message.global_replicas):
        positions = {
            checked_count("partition", at.partition, PARTITIONS_MAX): _position(at)
            for at in checked_list("partitions", copy.partitions)
        }
        state = checked_id("state of a global store", copy.state)
        yield checked_name("store", copy.store), GlobalReport(state, MappingProxyType(positions))


def _position(at: members_pb2.StorePosition | members_pb2.PartitionPosition) -> StorePosition:
    return StorePosition(
        checked_count("position", at.position) if at.HasField("position") else None,
        checked_count("end offset", at.end_offset) if at.HasField("end_offset") else None,
        checked_count("misplaced", at.misplaced) if at.HasField("misplaced") else None,
        checked_text("topic_change", at.topic_change),
        at.placement_log if isinstance(at, members_pb2.StorePosition) else 0,
    )
