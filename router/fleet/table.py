"""The routing table: an immutable snapshot of who holds which partition, compiled before any request asks.

Built from one epoch of the assignment (who may answer) and the members' newest heartbeats (where they are, how
far they have read). Everything that does not depend on a single lookup is computed here: addresses, roles, lags, the
order of preference. A reader takes one whole table, never a mixture of two, so no lock is needed. As in TiKV's region
cache, an older epoch never replaces a newer one.

The lag of a replica is measured against the largest end offset that *anyone* reported for its partition, as in
ksqlDB and KIP-535: a replica that is cut off from Kafka knows an old end, and must not look fresh by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from statehouse.contract.assignment import Assignment, TaskAssignment
from statehouse.contract.membership import LEAVING_STATES, Member, ReplicaReport, TaskState, target
from statehouse.contract.partitioning import partition_for
from statehouse.contract.placement import NO_PLACEMENTS, StorePlacement
from statehouse.contract.topology import AnyTaskId, GlobalId, Role, StoreSpec, TaskId
from statehouse.errors import ConfigurationError, LookupFailure, Reason, unknown_store
from statehouse.serdes import Serde, known_serde
from statehouse.v1 import errors_pb2, query_service_pb2, types_pb2

# Among equals, a warm-up comes after a standby, because it still has to restore.
_ROLE_ORDER = {Role.ACTIVE: 0, Role.STANDBY: 1, Role.WARM_UP: 2}


@dataclass(frozen=True, slots=True)
class RoutedNode:
    """A node that can be called. `incarnation` is empty for one known only from another node's answer.

    `is_near`: it is in the router's own rack.
    """

    instance_id: str
    host: str
    port: int
    incarnation: str = ""
    state: str = ""
    is_near: bool = False

    @property
    def target(self) -> str:
        """Its address in gRPC's form."""
        return target(self.host, self.port)

    def to_proto(self) -> types_pb2.Host:
        """Return the wire form."""
        return types_pb2.Host(instance_id=self.instance_id, host=self.host, port=self.port)


@dataclass(frozen=True, slots=True)
class RoutedReplica:
    """A replica of a store partition; None is unknown.

    Attributes:
        node: where it is; None if the fleet has no address for it.
        state: the task's state as its node last reported it; None if it has not reported this task.
        position: next changelog offset it needs, as last reported; for a global store the sum over its partitions.
        lag: upper bound on the records it has not applied, as last reported; for a global store the largest of its
            partitions.

    """

    instance_id: str
    role: Role
    node: RoutedNode | None = None
    state: str | None = None
    position: int | None = None
    lag: int | None = None

    @property
    def is_near(self) -> bool:
        """Whether it is in the router's own rack."""
        return self.node is not None and self.node.is_near

    @property
    def is_restored(self) -> bool:
        """Whether its last report says that it answers lookups."""
        return self.state == TaskState.RUNNING

    @property
    def is_leaving(self) -> bool:
        """Whether its node gives up its tasks."""
        return self.node is not None and self.node.state in LEAVING_STATES

    @property
    def preference(self) -> tuple[bool, int, bool, int, str]:
        """Sort key: restored first, then the active, then the freshest standby; copies of a global store by rack."""
        if self.role is Role.GLOBAL:
            return (not self.is_restored or self.is_leaving, 0, not self.is_near, 0, self.instance_id)
        role = _ROLE_ORDER.get(self.role, len(_ROLE_ORDER))
        # The active is not ranked by lag, and a standby at equal lag comes before a warm-up.
        if self.role is Role.ACTIVE:
            return (not self.is_restored, 0, False, 0, self.instance_id)
        lag = self.lag if self.lag is not None else 0
        return (not self.is_restored, 1, self.lag is None, lag * len(_ROLE_ORDER) + role, self.instance_id)

    def host(self) -> types_pb2.Host:
        """Return the wire form of its address; only the name if the address is unknown."""
        return types_pb2.Host(instance_id=self.instance_id) if self.node is None else self.node.to_proto()


@dataclass(frozen=True, slots=True)
class PartitionRoutes:
    """The replicas that may answer for a store's partition, by preference, before any request's bounds."""

    store: str
    partition: int
    task: AnyTaskId
    epoch: int
    replicas: tuple[RoutedReplica, ...] = ()
    callable: tuple[RoutedReplica, ...] = ()
    """The replicas with an address, in the same order: a lookup without bounds asks these on a quiet fleet."""
    restored: tuple[RoutedReplica, ...] = ()
    """Those of them that answer lookups by their last reports; copies of a global store not on nodes that leave."""
    equals: int = 1
    """How many of the first callable replicas are equally good: lookups ask them in turn."""
    has_near: bool = False
    """Whether a replica is in the router's rack: a lookup that accepts any replica within its bound asks it first."""

    @classmethod
    def of(
        cls, store: str, partition: int, task: AnyTaskId, epoch: int, replicas: tuple[RoutedReplica, ...]
    ) -> PartitionRoutes:
        """Compile the routes; `replicas` are in order of preference."""
        reachable = tuple(replica for replica in replicas if replica.node is not None)
        restored = tuple(replica for replica in reachable if not replica.preference[0])
        ready = [replica for replica in restored if replica.role is Role.GLOBAL]
        equals = sum(replica.is_near == ready[0].is_near for replica in ready)
        has_near = any(replica.is_near for replica in reachable)
        return cls(store, partition, task, epoch, replicas, reachable, restored, max(1, equals), has_near)

    def route(self) -> errors_pb2.Route:
        """Return the wire form, as answers about routing carry it."""
        active = next((replica for replica in self.replicas if replica.role is Role.ACTIVE), None)
        standbys = [replica.host() for replica in self.replicas if replica.role is not Role.ACTIVE]
        return errors_pb2.Route(
            store=self.store,
            partition=self.partition,
            epoch=self.epoch,
            active=None if active is None else active.host(),
            standbys=standbys,
        )


@dataclass(frozen=True, slots=True)
class StoreRoutes:
    """A store, and the replicas that may answer for each of its partitions."""

    spec: StoreSpec
    key_serde: Serde
    partitions: tuple[PartitionRoutes, ...]
    has_standbys: bool
    """Whether any of its partitions has a second replica."""
    version: str = ""
    """The version of the application, as stamps have it."""

    def partition(self, number: int) -> PartitionRoutes:
        """Return a partition.

        Raises:
            LookupFailure: INVALID_REQUEST, the store has no partition of that number.

        """
        if not 0 <= number < len(self.partitions):
            raise LookupFailure(
                Reason.INVALID_REQUEST,
                f"store {self.spec.name} has partitions 0 to {len(self.partitions) - 1}, not {number}",
                {"store": self.spec.name, "partition": str(number)},
            )
        return self.partitions[number]


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """One snapshot of the fleet. Made by `compile_table`; mappings are read-only."""

    assignment: Assignment
    members: Mapping[str, Member]
    nodes: Mapping[str, RoutedNode]
    stores: Mapping[str, StoreRoutes]
    unusable: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Stores this version can't route, and why."""
    placements: Mapping[str, StorePlacement] = field(default_factory=lambda: NO_PLACEMENTS)
    """The stores that can't be fully answered from one partition."""
    forwarding: bytes = b""
    """The suffix that turns a client's serialized request into a node's: protobuf merges concatenated messages."""
    page_forwarding: bytes = b""
    """The same for a request for a page: its entries come with the bytes by which they are in order."""

    @property
    def epoch(self) -> int:
        """Epoch of the assignment."""
        return self.assignment.epoch

    def routes_like(self, other: RoutingTable) -> bool:
        """Whether it sends lookups to the same places; how far replicas have read is not compared."""
        return self.assignment is other.assignment and self.nodes == other.nodes and self._copies() == other._copies()

    def scattered(self, store: str) -> StorePlacement | None:
        """Return the placement of a store whose keys may be in any partition; None for all other stores."""
        placement = self.placements.get(store) if self.placements else None
        return placement if placement is not None and placement.is_scattered else None

    def _copies(self) -> dict[str, frozenset[str]]:
        """Return the nodes whose copies of global stores answer: no assignment names them."""
        return {
            name: frozenset(replica.instance_id for replica in store.partitions[0].replicas if replica.is_restored)
            for name, store in self.stores.items()
            if store.spec.is_global
        }

    def store(self, name: str) -> StoreRoutes:
        """Return a store.

        Raises:
            LookupFailure: UNKNOWN_STORE, it is not in the assignment, or this version can't route it.

        """
        try:
            return self.stores[name]
        except KeyError:
            pass
        if name in self.unusable:
            message = f"store {name} can't be routed by this version: {self.unusable[name]}"
            raise LookupFailure(Reason.UNKNOWN_STORE, message, {"store": name, "epoch": str(self.epoch)})
        raise unknown_store(name, self.epoch)

    def locate(self, store: str, key: bytes) -> PartitionRoutes:
        """Return the replicas that may answer for a serialized key.

        Raises:
            LookupFailure: UNKNOWN_STORE.

        """
        partitions = self.store(store).partitions
        return partitions[partition_for(key, len(partitions))]


def compile_table(
    assignment: Assignment,
    members: Mapping[str, Member],
    previous: RoutingTable | None = None,
    *,
    rack: str = "",
    serde: Callable[[str], Serde] = known_serde,
    placements: Mapping[str, StorePlacement] = NO_PLACEMENTS,
    version: str = "",
) -> RoutingTable:
    """Build the table; partitions whose routes can't have changed since `previous` are taken from it.

    This matters because every heartbeat of every node changes the table: of ten thousand partitions only those the
    sender holds are compiled again.
    """
    nodes = {
        member.instance_id: RoutedNode(
            member.instance_id,
            member.host,
            member.port,
            incarnation=member.incarnation,
            state=member.state,
            is_near=bool(rack) and member.rack == rack,
        )
        for member in members.values()
        if member.host and member.port
    }
    stale = None if previous is None or previous.assignment is not assignment else _stale_tasks(previous, members)
    reports = _reports(members, stale)
    stores: dict[str, StoreRoutes] = {}
    unusable: dict[str, str] = {}
    for name, spec in assignment.stores.items():
        try:
            routes = _store_routes(assignment, spec, serde, nodes, reports, members, (stale, previous))
            stores[name] = replace(routes, version=version)
        except ConfigurationError as error:
            unusable[name] = str(error)
    return RoutingTable(
        assignment,
        MappingProxyType(dict(members)),
        MappingProxyType(nodes),
        MappingProxyType(stores),
        MappingProxyType(unusable),
        placements,
        *(_forwarding(assignment.epoch, entry_keys=entry_keys) for entry_keys in (False, True)),
    )


def _forwarding(epoch: int, *, entry_keys: bool) -> bytes:
    forwarding = types_pb2.Forwarding(epoch=epoch, hops=1, entry_keys=entry_keys)
    # All requests have the field under one number.
    return query_service_pb2.GetRequest(forwarding=forwarding).SerializeToString()


_Reports = Mapping[TaskId, list[tuple[str, ReplicaReport]]]


def _store_routes(
    assignment: Assignment,
    spec: StoreSpec,
    serde: Callable[[str], Serde],
    nodes: Mapping[str, RoutedNode],
    reports: _Reports,
    members: Mapping[str, Member],
    before: tuple[frozenset[AnyTaskId] | None, RoutingTable | None],
) -> StoreRoutes:
    stale, previous = before
    if spec.partition_count < 1:
        raise ConfigurationError("it has no partitions")
    # Every node holds all partitions of a global store, so these have the same replicas.
    is_stale = stale is None or GlobalId(spec.name) in stale
    copies = _copies(spec, nodes, members) if spec.is_global and is_stale else ()
    common = PartitionRoutes.of(spec.name, 0, GlobalId(spec.name), assignment.epoch, copies)
    partitions = []
    for number in range(spec.partition_count):
        task = spec.task_id(number)
        if previous is not None and stale is not None and task not in stale:
            partitions.append(previous.stores[spec.name].partitions[number])
            continue
        if isinstance(task, GlobalId):
            partitions.append(replace(common, partition=number))
            continue
        holders = assignment.tasks.get(task, TaskAssignment())
        replicas = _replicas(spec.name, holders, nodes, reports.get(task, []))
        partitions.append(PartitionRoutes.of(spec.name, number, task, assignment.epoch, replicas))
    has_standbys = any(len(partition.replicas) > 1 for partition in partitions)
    return StoreRoutes(spec, serde(spec.key_serde), tuple(partitions), has_standbys)


def _replicas(
    store: str, holders: TaskAssignment, nodes: Mapping[str, RoutedNode], reports: Iterable[tuple[str, ReplicaReport]]
) -> tuple[RoutedReplica, ...]:
    """Return the holders of a task as replicas of one of its stores, by preference."""
    by_node = dict(reports)
    positions = {name: report.stores[store] for name, report in by_node.items() if store in report.stores}
    ends = [at.end_offset for at in positions.values() if at.end_offset is not None]
    end = max(ends) if ends else None
    replicas = []
    for instance_id in dict.fromkeys(holders.replicas):
        role = holders.role_of(instance_id) or Role.STANDBY
        report, at = by_node.get(instance_id), positions.get(instance_id)
        position = None if at is None else at.position
        lag = None if end is None or position is None else max(0, end - position)
        state = None if report is None else report.state
        replicas.append(RoutedReplica(instance_id, role, nodes.get(instance_id), state, position, lag))
    return tuple(sorted(replicas, key=lambda replica: replica.preference))


def _copies(
    spec: StoreSpec, nodes: Mapping[str, RoutedNode], members: Mapping[str, Member]
) -> tuple[RoutedReplica, ...]:
    """Return the copies of a global store that nodes report, by preference."""
    reports = {
        member.instance_id: member.global_replicas[spec.name]
        for member in members.values()
        if spec.name in member.global_replicas
    }
    ends: dict[int, int] = {}
    for report in reports.values():
        for partition, at in report.positions.items():
            if at.end_offset is not None:
                ends[partition] = max(ends.get(partition, 0), at.end_offset)
    replicas = []
    for instance_id, report in reports.items():
        reported = (report.positions.get(partition) for partition in range(spec.partition_count))
        positions = [None if at is None else at.position for at in reported]
        lags = [
            None if position is None or partition not in ends else max(0, ends[partition] - position)
            for partition, position in enumerate(positions)
        ]
        position = None if None in positions else sum(filter(None, positions))
        lag = None if None in lags else max(filter(None, lags), default=0)
        replicas.append(RoutedReplica(instance_id, Role.GLOBAL, nodes.get(instance_id), report.state, position, lag))
    return tuple(sorted(replicas, key=lambda replica: replica.preference))


def _reports(members: Mapping[str, Member], only: frozenset[AnyTaskId] | None) -> _Reports:
    """Return each task's reports, dormant state on disk included: its end offsets count too."""
    reports: dict[TaskId, list[tuple[str, ReplicaReport]]] = {}
    for member in members.values():
        for task, report in member.replicas.items():
            if only is None or task in only:
                reports.setdefault(task, []).append((member.instance_id, report))
    return reports


def _stale_tasks(previous: RoutingTable, members: Mapping[str, Member]) -> frozenset[AnyTaskId]:
    """Return the tasks and global stores whose routes a change in the members since `previous` may concern."""
    changed = {
        name for name in previous.members.keys() | members.keys() if previous.members.get(name) is not members.get(name)
    }
    stale: set[AnyTaskId] = set()
    for name in changed:
        for source in (previous.members, members):
            if name in source:
                stale.update(source[name].replicas)
                stale.update(map(GlobalId, source[name].global_replicas))
    for task, holders in previous.assignment.tasks.items():
        if not changed.isdisjoint(holders.replicas):
            stale.add(task)
    return frozenset(stale)
