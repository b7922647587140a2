"""FleetService's answers: the routing table and the health of the nodes, as messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from router.choice.candidates import Suspicion, judge
from router.fleet.table import RoutedReplica, RoutingTable, StoreRoutes
from router.fleet.tracker import FleetTracker
from router.lookups.locate import freshness_of, locate
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.membership import SILENT, Member, ReplicaReport
from statehouse.contract.moments import why_none
from statehouse.contract.placement import warning
from statehouse.contract.topology import GlobalId, StoreSpec, TaskId
from statehouse.v1 import fleet_service_pb2, types_pb2


def describe_fleet(
    application_id: str,
    table: RoutingTable,
    tracker: FleetTracker,
    suspects: Mapping[str, Suspicion],
    is_not_built: Callable[[StoreSpec], bool],
    newest_batch: Callable[[StoreSpec], int | None],
) -> fleet_service_pb2.GetFleetResponse:
    """Return the whole table. `is_not_built` and `newest_batch` are those of `ProcessorQueries`."""
    assignment = table.assignment
    tasks = [_task(table, task, holders) for task, holders in sorted(assignment.tasks.items())]
    tasks += [_global_store(table, spec) for spec in assignment.global_stores if spec.name in table.stores]
    return fleet_service_pb2.GetFleetResponse(
        application_id=application_id,
        epoch=table.epoch,
        reason=assignment.reason,
        stores=describe_stores(table, is_not_built, newest_batch),
        nodes=describe_nodes(table, tracker, suspects),
        tasks=tasks,
    )


def describe_stores(
    table: RoutingTable,
    is_not_built: Callable[[StoreSpec], bool],
    newest_batch: Callable[[StoreSpec], int | None],
) -> Iterator[fleet_service_pb2.StoreInfo]:
    """Return the stores, by name."""
    changes = _topic_changes(table)
    for name, spec in sorted(table.assignment.stores.items()):
        newest = newest_batch(spec)
        yield fleet_service_pb2.StoreInfo(
            name=spec.name,
            kind=spec.kind,
            key_serde=spec.key_serde,
            value_serde=spec.value_serde,
            changelog_topic=spec.changelog_topic,
            partition_count=spec.partition_count,
            sub_topology=None if spec.is_global else spec.sub_topology,
            ephemeral=spec.ephemeral,
            partitioner=spec.partitioner,
            not_built=is_not_built(spec),
            newest_batch=newest,
            no_moments="" if newest is not None else why_none(spec) or "its processor has told the end of no batch yet",
            warnings=_warnings(table, name, changes.get(name)),
            key_columns=[fleet_service_pb2.KeyColumn(name=each.name, type=each.type) for each in spec.key_columns],
            **{"global": spec.is_global},
        )


def _topic_changes(table: RoutingTable) -> Mapping[str, str]:
    """Return how stores' topics differ from what the stores need, by the nodes' last reports."""
    changes: dict[str, str] = {}
    for member in table.members.values():
        for report in member.replicas.values():
            changes |= {store: at.topic_change for store, at in report.stores.items() if at.topic_change}
        for store, copy in member.global_replicas.items():
            for change in (at.topic_change for at in copy.positions.values() if at.topic_change):
                changes[store] = change
    return changes


def _warnings(table: RoutingTable, store: str, change: str | None) -> Iterator[str]:
    """Yield what is wrong with a store's topic."""
    if change is not None:
        yield f"{change}: lookups of the store are refused until its topic is whole again"
    if (placement := table.scattered(store)) is not None:
        yield f"{warning(placement)}; each lookup asks all partitions"


def describe_nodes(
    table: RoutingTable, tracker: FleetTracker, suspects: Mapping[str, Suspicion]
) -> Iterator[fleet_service_pb2.NodeInfo]:
    """Return the nodes, by instance id."""
    for instance_id, member in sorted(table.members.items()):
        state = SILENT if tracker.is_silent(instance_id) else str(member.state)
        yield _node(member, state, tracker.heartbeat_age_s(instance_id), suspects.get(instance_id))


def describe_partitions(store: StoreRoutes) -> Iterator[fleet_service_pb2.PartitionInfo]:
    """Return a store's partitions, from 0; replicas by preference, each with its last report on the store."""
    for routes in store.partitions:
        yield fleet_service_pb2.PartitionInfo(
            route=routes.route(), task=str(routes.task), replicas=map(_replica, routes.replicas)
        )


def describe_key(
    table: RoutingTable, request: fleet_service_pb2.LocateKeyRequest, suspects: Mapping[str, Suspicion]
) -> fleet_service_pb2.LocateKeyResponse:
    """Return a key's partition and every replica with its verdict, in the order a lookup would ask them.

    Copies of a global store are asked in turn; they come by instance id here.

    Raises:
        LookupFailure: the request can't be routed.

    """
    routes = locate(table, request)
    verdicts = judge(routes, freshness_of(request.freshness), suspects)
    return fleet_service_pb2.LocateKeyResponse(
        route=routes.route(), candidates=[verdict.to_proto() for verdict in verdicts]
    )


def _node(member: Member, state: str, age_s: float | None, suspicion: Suspicion | None) -> fleet_service_pb2.NodeInfo:
    return fleet_service_pb2.NodeInfo(
        host=types_pb2.Host(instance_id=member.instance_id, host=member.host, port=member.port),
        incarnation=member.incarnation,
        rack=member.rack,
        state=state,
        version=member.version,
        epoch=member.epoch,
        heartbeat_age_ms=None if age_s is None else int(age_s * 1_000),
        reachable=suspicion is None or suspicion.is_slow,
        capacity=member.capacity,
        dynamic=member.dynamic,
    )


def _task(table: RoutingTable, task: TaskId, holders: TaskAssignment) -> fleet_service_pb2.TaskInfo:
    replicas = []
    for instance_id in holders.replicas:
        member = table.members.get(instance_id)
        report = None if member is None else member.replicas.get(task)
        if report is not None:
            replicas.append(_report(table, task, instance_id, report))
    return fleet_service_pb2.TaskInfo(
        task=str(task),
        active=holders.active or "",
        standbys=holders.standbys,
        warm_ups=holders.warm_ups,
        reason=holders.reason,
        replicas=replicas,
    )


def _global_store(table: RoutingTable, spec: StoreSpec) -> fleet_service_pb2.TaskInfo:
    """Describe a global store like a task that every node holds."""
    reports = map(_replica, table.stores[spec.name].partitions[0].replicas)
    return fleet_service_pb2.TaskInfo(task=str(GlobalId(spec.name)), replicas=reports)


def _replica(replica: RoutedReplica) -> fleet_service_pb2.ReplicaReport:
    return fleet_service_pb2.ReplicaReport(
        instance_id=replica.instance_id,
        role=types_pb2.ReplicaRole.ValueType(replica.role.value),
        state=replica.state or "",
        position=replica.position,
        lag=replica.lag,
    )


def _report(
    table: RoutingTable, task: TaskId, instance_id: str, report: ReplicaReport
) -> fleet_service_pb2.ReplicaReport:
    """Sum a replica's figures over its task's stores; a sum with an unknown part is unknown."""
    positions: list[int | None] = []
    lags: list[int | None] = []
    for spec in table.assignment.stores_of(task.sub_topology):
        store = table.stores.get(spec.name)
        if store is None or task.partition >= len(store.partitions):
            continue
        for replica in store.partitions[task.partition].replicas:
            if replica.instance_id == instance_id:
                positions.append(replica.position)
                lags.append(replica.lag)
    return fleet_service_pb2.ReplicaReport(
        instance_id=instance_id,
        role=types_pb2.ReplicaRole.ValueType(report.role.value),
        state=report.state,
        position=_sum(positions),
        lag=_sum(lags),
    )


def _sum(parts: list[int | None]) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if parts and len(known) == len(parts) else None
