"""Where a key's copies are, from a router's WatchFleet. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from statehouse.client.conversion import from_key_columns
from statehouse.client.keys import KeyForm
from statehouse.contract.membership import LEAVING_STATES, TaskState, target
from statehouse.contract.paging import serialized_key
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import MURMUR2, GlobalId, TaskId
from statehouse.errors import LookupFailure
from statehouse.serdes import Serde, known_serde
from statehouse.v1 import fleet_service_pb2, types_pb2


@dataclass(frozen=True, slots=True)
class NodeIncarnation:
    """One run of a query node's process, and its address in gRPC's form."""

    instance_id: str
    incarnation: str
    target: str


@dataclass(frozen=True, slots=True)
class KeyRoute:
    """The task or global store that holds a key, and the nodes that a client may ask directly.

    For a task that is only the active: if it can't answer, the router chooses another. For a global store it is every
    node with a copy: all copies are equally good.
    """

    task: str
    nodes: tuple[NodeIncarnation, ...]


@dataclass(frozen=True, slots=True)
class _Store:
    key_serde: Serde
    key_form: KeyForm
    routes: tuple[KeyRoute | None, ...]
    """By partition."""


class FleetRoutes:
    """One description of the fleet, without the stores that this version can't route."""

    def __init__(self, epoch: int, nodes: frozenset[NodeIncarnation], stores: dict[str, _Store]) -> None:
        """Made by `of`."""
        self.epoch, self.nodes = epoch, nodes
        self._stores = stores

    @classmethod
    def of(cls, fleet: fleet_service_pb2.GetFleetResponse) -> Self:
        """Read a router's description."""
        nodes = {
            info.host.instance_id: NodeIncarnation(
                info.host.instance_id, info.incarnation, target(info.host.host, info.host.port)
            )
            for info in fleet.nodes
            if info.host.host and info.host.port
        }
        leaving = {info.host.instance_id for info in fleet.nodes if info.state in LEAVING_STATES}
        routes = {}
        for task in fleet.tasks:
            if task.active:
                names = [task.active]
            else:
                names = [each.instance_id for each in task.replicas if _answers(each, leaving)]
            found = tuple(nodes[name] for name in names if name in nodes)
            if found:
                routes[task.task] = KeyRoute(task.task, found)
        stores = {
            info.name: _Store(
                known_serde(info.key_serde),
                KeyForm(info.name, info.key_serde, from_key_columns(info)),
                tuple(routes.get(_task_of(info, number)) for number in range(info.partition_count)),
            )
            for info in fleet.stores
            if info.partitioner == MURMUR2 and info.partition_count
        }
        return cls(fleet.epoch, frozenset(nodes.values()), stores)

    def route(self, store: str, key: types_pb2.Key) -> KeyRoute | None:
        """Return where a key is; None if that isn't known or the key is wrong: the router's error then says why."""
        routed = self._stores.get(store)
        if routed is None:
            return None
        try:
            data = serialized_key(key, routed.key_serde)
        except LookupFailure:
            return None
        return routed.routes[partition_for(data, len(routed.routes))]

    def key_form(self, store: str) -> KeyForm | None:
        """Return the form of a store's keys; None if there is no such store here."""
        found = self._stores.get(store)
        return None if found is None else found.key_form


def _task_of(store: fleet_service_pb2.StoreInfo, partition: int) -> str:
    if store.HasField("sub_topology"):
        return str(TaskId(store.sub_topology, partition))
    return str(GlobalId(store.name))


def _answers(copy: fleet_service_pb2.ReplicaReport, leaving: set[str]) -> bool:
    """Whether the replica is a global store's copy that may be asked directly."""
    is_global = copy.role == types_pb2.REPLICA_ROLE_GLOBAL
    return is_global and copy.state == TaskState.RUNNING and copy.instance_id not in leaving
