"""Where a key's copies are, as a router tells it by WatchFleet. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from statehouse.errors import LookupFailure
from statehouse.membership import LEAVING_STATES, target
from statehouse.paging import serialized_key
from statehouse.partitioning import partition_for
from statehouse.serdes import SERDES, Serde
from statehouse.topology import MURMUR2, GlobalId, TaskId
from statehouse.v1 import fleet_service_pb2, types_pb2


@dataclass(frozen=True, slots=True)
class Node:
    """A run of a query node's process, and its address as gRPC wants it."""

    instance_id: str
    incarnation: str
    target: str


@dataclass(frozen=True, slots=True)
class Place:
    """The task or global store that a key is in, and who may be asked about it straight away.

    Of a task only the active: when that one can't answer, choosing another is the router's part. Of a global store all
    that have a copy, which are as good as each other.
    """

    held_as: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class _Store:
    key_serde: Serde
    places: tuple[Place | None, ...]
    """By partition."""


class Routes:
    """One description of the fleet. Stores that this version can't route are left out of it."""

    def __init__(self, epoch: int, nodes: frozenset[Node], stores: dict[str, _Store]) -> None:
        """Made by `of`."""
        self.epoch, self.nodes = epoch, nodes
        self._stores = stores

    @classmethod
    def of(cls, fleet: fleet_service_pb2.GetFleetResponse) -> Self:
        """Read a router's description."""
        nodes = {
            info.host.instance_id: Node(info.host.instance_id, info.incarnation, target(info.host.host, info.host.port))
            for info in fleet.nodes
            if info.host.host and info.host.port
        }
        leaving = {info.host.instance_id for info in fleet.nodes if info.state in LEAVING_STATES}
        places = {}
        for task in fleet.tasks:
            if task.active:
                holders = [task.active]
            else:
                holders = [each.instance_id for each in task.replicas if _answers(each, leaving)]
            found = tuple(nodes[name] for name in holders if name in nodes)
            if found:
                places[task.task] = Place(task.task, found)
        stores = {
            info.name: _Store(
                SERDES[info.key_serde],
                tuple(places.get(_held_as(info, number)) for number in range(info.partition_count)),
            )
            for info in fleet.stores
            if info.partitioner == MURMUR2 and info.key_serde in SERDES and info.partition_count
        }
        return cls(fleet.epoch, frozenset(nodes.values()), stores)

    def place(self, store: str, key: types_pb2.Key) -> Place | None:
        """Return where a key is, None if that isn't known, or if the key is wrong: a router then says what is."""
        routed = self._stores.get(store)
        if routed is None:
            return None
        try:
            data = serialized_key(key, routed.key_serde)
        except LookupFailure:
            return None
        return routed.places[partition_for(data, len(routed.places))]


def _held_as(store: fleet_service_pb2.StoreInfo, partition: int) -> str:
    if store.HasField("sub_topology"):
        return str(TaskId(store.sub_topology, partition))
    return str(GlobalId(store.name))


def _answers(copy: fleet_service_pb2.ReplicaReport, leaving: set[str]) -> bool:
    """Whether a copy of a global store may be asked; a task without an active has nobody to ask straight away."""
    is_global = copy.role == types_pb2.REPLICA_ROLE_GLOBAL
    return is_global and copy.state == "running" and copy.instance_id not in leaving
