"""Members: what each node says of itself in the members topic, as immutable values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from google.protobuf.message import DecodeError

from statehouse.control.v1 import members_pb2
from statehouse.errors import ContractError
from statehouse.topology import Role, TaskId

LEAVING_STATES = frozenset({"PENDING_SHUTDOWN", "NOT_RUNNING", "ERROR"})
"""States in which a node gives up what it holds."""

FORGET_AFTER_SESSIONS = 30
"""Session timeouts after which a silent member that the assignment doesn't name is forgotten.

Long after anybody waits for it: its record is only kept so that people see who is missing.
"""

_ROLES = frozenset(role.value for role in Role)


@dataclass(frozen=True, slots=True)
class StorePosition:
    """A store's next needed offset, and the largest end offset its node knows; None is unknown."""

    position: int | None
    end_offset: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """A replica, as its node reports it."""

    role: Role
    state: str
    stores: Mapping[str, StorePosition]

    @property
    def is_restored(self) -> bool:
        """Whether it answers lookups."""
        return self.state == "running"


@dataclass(frozen=True, slots=True)
class GlobalReport:
    """A node's copy of a global store, as it reports it; positions by partition of the store's topic."""

    state: str
    positions: Mapping[int, StorePosition]

    @property
    def is_restored(self) -> bool:
        """Whether it answers lookups."""
        return self.state == "running"


@dataclass(frozen=True, slots=True)
class Member:
    """A node's heartbeat."""

    instance_id: str
    incarnation: str
    host: str
    port: int
    started_at_ms: int = 0
    rack: str = ""
    version: str = ""
    state: str = "CREATED"
    epoch: int = 0
    heartbeat: int = 0
    replicas: Mapping[TaskId, ReplicaReport] = field(default_factory=lambda: MappingProxyType({}))
    global_replicas: Mapping[str, GlobalReport] = field(default_factory=lambda: MappingProxyType({}))
    capacity: int = 1
    """Weight of its share of the tasks."""
    dynamic: bool = False
    """Its instance id was made up for this run."""

    @property
    def incarnation_order(self) -> tuple[int, str]:
        """Of two processes under one instance id, the greater is the newer."""
        return self.started_at_ms, self.incarnation


def target(host: str, port: int) -> str:
    """Return an advertised address as gRPC wants it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def encode_member(member: Member) -> tuple[bytes, bytes]:
    """Return the record (key, value) of a heartbeat."""
    replicas = [
        members_pb2.Replica(
            task=str(task),
            role=members_pb2.Role.ValueType(report.role.value),
            state=report.state,
            stores=[
                members_pb2.StorePosition(store=store, position=at.position, end_offset=at.end_offset)
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
                members_pb2.PartitionPosition(partition=partition, position=at.position, end_offset=at.end_offset)
                for partition, at in sorted(report.positions.items())
            ],
        )
        for store, report in sorted(member.global_replicas.items())
    ]
    message = members_pb2.Member(
        instance_id=member.instance_id,
        incarnation=member.incarnation,
        started_at_ms=member.started_at_ms,
        host=member.host,
        port=member.port,
        rack=member.rack,
        version=member.version,
        state=member.state,
        epoch=member.epoch,
        heartbeat=member.heartbeat,
        replicas=replicas,
        global_replicas=global_replicas,
        capacity=member.capacity,
        dynamic=member.dynamic,
    )
    return member.instance_id.encode(), message.SerializeToString()


def decode_member(value: bytes) -> Member:
    """Read a heartbeat.

    Raises:
        ContractError: the bytes are no heartbeat, or name no instance.

    """
    try:
        message = members_pb2.Member.FromString(value)
    except DecodeError as error:
        raise ContractError(f"unreadable member record: {error}") from error
    if not message.instance_id:
        raise ContractError("member record without an instance id")
    replicas = {}
    for replica in message.replicas:
        if replica.role not in _ROLES:  # a role of a newer version
            continue
        replicas[TaskId.parse(replica.task)] = ReplicaReport(
            Role(replica.role),
            replica.state,
            MappingProxyType({at.store: _position(at) for at in replica.stores}),
        )
    global_replicas = {
        copy.store: GlobalReport(copy.state, MappingProxyType({at.partition: _position(at) for at in copy.partitions}))
        for copy in message.global_replicas
    }
    return Member(
        message.instance_id,
        message.incarnation,
        message.host,
        message.port,
        message.started_at_ms,
        message.rack,
        message.version,
        message.state,
        message.epoch,
        message.heartbeat,
        MappingProxyType(replicas),
        MappingProxyType(global_replicas),
        message.capacity or 1,
        message.dynamic,
    )


def _position(at: members_pb2.StorePosition | members_pb2.PartitionPosition) -> StorePosition:
    return StorePosition(
        at.position if at.HasField("position") else None, at.end_offset if at.HasField("end_offset") else None
    )
