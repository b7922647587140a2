"""Admission: decides whether this node may answer a request, and stamps how fresh the answering replica is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

from query_service.reads.first_batch import FirstBatches
from query_service.reads.fleet_view import FleetView, ServedStore
from query_service.reads.moments import Admitted, ReplicaMoments
from query_service.reads.position_waits import PositionNotReached
from query_service.replicas.replica import StoreReplica, TaskReplica
from query_service.states.ownership import claimed_role
from statehouse.contract import consistency, paging
from statehouse.contract.committed_moments import CommittedMoments
from statehouse.contract.consistency import ANY, Freshness, ReplicaFreshness
from statehouse.contract.membership import TaskState
from statehouse.contract.moments import MomentBound
from statehouse.contract.partitioning import partition_for
from statehouse.contract.placement import Claim, refusal
from statehouse.contract.processor_reports import ProcessorReport
from statehouse.contract.topology import AnyTaskId, Role, StoreSpec, TaskId
from statehouse.errors import LookupFailure, Reason, unknown_store
from statehouse.kafka.partitioner import Partitioner
from statehouse.v1 import errors_pb2, query_service_pb2, types_pb2

_MAX_HOPS = 1
HEADS_MAX: Final = 8_192
"""Heads of stamps that are remembered: some 100 bytes each, one for each store partition in an epoch."""

KeyedRequest = (
    query_service_pb2.GetRequest
    | query_service_pb2.FetchWindowsRequest
    | query_service_pb2.FetchSessionsRequest
    | query_service_pb2.GetAsOfRequest
    | query_service_pb2.GetHistoryRequest
    | query_service_pb2.QueryStoreRequest
)

_PAGED: Final = (
    query_service_pb2.FetchWindowsRequest,
    query_service_pb2.FetchSessionsRequest,
    query_service_pb2.GetHistoryRequest,
)


class Admission:
    """Admits requests to the replicas of this node.

    `host` is this node as others reach it. `is_confirmed` returns whether the node has been in touch with Kafka within
    the session timeout. `reports` has what the processor last reported, by store. `partition_of` does what
    `partition_for` does. `first_batches` tells which stores are built, `moments` which batch a replica shows.
    `version`: of the application, as stamps have it.
    """

    def __init__(
        self,
        host: types_pb2.Host,
        replicas: Mapping[AnyTaskId, TaskReplica],
        is_confirmed: Callable[[], bool],
        reports: Mapping[str, ProcessorReport],
        partition_of: Partitioner = partition_for,
        first_batches: FirstBatches | None = None,
        moments: ReplicaMoments | None = None,
        version: str = "",
    ) -> None:
        self.version = version
        """The node's version of the application, as stamps have it."""
        self.view = FleetView()
        self._host = host
        self._replicas = replicas
        self._is_confirmed = is_confirmed
        self._reports = reports
        self._partition_of = partition_of
        self._first_batches = first_batches or FirstBatches()
        self.moments = moments or ReplicaMoments(CommittedMoments())
        self._head = lru_cache(HEADS_MAX)(self._serialized_head)

    def admit_key(self, request: KeyedRequest, claim: Claim = Claim.WHOLE) -> tuple[ServedStore, bytes, Admitted]:
        """Return the store, the serialized key, and who answers a request about one key.

        In a global store the key may also be in one of the `other_partitions`. `claim`: the least that the answer says.

        Raises:
            ReplicaBehind, LookupFailure: as in `store`, `prove` and `admit`; INVALID_KEY; INVALID_REQUEST, as in
                `partition`.

        """
        served, forwarding = self.store(request.store).asked(exact=request.json_text), request.forwarding
        key = paging.serialized_key(request.key, served.key_serde)
        if forwarding.HasField("partition"):
            partition = self.existing(served, forwarding.partition)
        else:
            partition = self._partition_of(key, served.spec.partition_count)
        self.prove(served, claim, forwarding)
        return (
            served,
            key,
            self.admit(served, partition, request.freshness, forwarding, _of_page(request, self.version)),
        )

    def prove(self, served: ServedStore, claim: Claim, forwarding: types_pb2.Forwarding) -> None:
        """Refuse to claim of a key what its partition doesn't prove, as records of the store may be elsewhere.

        A router that names the partition asks the others, too, and puts together what they say.

        Raises:
            LookupFailure: KEYS_MISPLACED, or PARTITION_RESTORING as long as not all partitions are known.

        """
        placement = self.view.placements.get(served.spec.name) if self.view.placements else None
        if placement is None or forwarding.HasField("partition"):
            return
        refused = refusal(served.spec.name, placement, claim)
        if refused is not None:
            raise refused

    def is_scattered(self, served: ServedStore) -> bool:
        """Whether a key of a global store may be in any partition, as the topic's producers choose.

        librdkafka's partitioner, for example, is not Java's. If every record was checked and is in place, none is.
        """
        if not served.spec.is_global:
            return False
        task = self._replicas.get(served.task_ids[0])
        return task is None or any(replica.misplaced != 0 for replica in task.stores.values())

    def other_partitions(
        self, served: ServedStore, first: int, request: query_service_pb2.GetRequest
    ) -> Iterator[Admitted]:
        """Yield who answers for each partition of a scattered store except `first`."""
        for partition in range(served.spec.partition_count):
            if partition != first:
                yield self.admit(served, partition, request.freshness, request.forwarding)

    def store(self, name: str) -> ServedStore:
        """Return a store by name.

        Raises:
            LookupFailure: ROUTING_NOT_READY, UNKNOWN_STORE, or TASK_FAILED if this version can't serve the store.

        """
        if self.view.assignment is None:
            raise LookupFailure(
                Reason.ROUTING_NOT_READY, "this node has not read an assignment yet; has the processor been started?"
            )
        try:
            return self.view.stores[name]
        except KeyError:
            pass
        if name in self.view.unusable:
            raise LookupFailure(
                Reason.TASK_FAILED,
                f"store {name} can't be served by this version: {self.view.unusable[name]}",
                {"store": name},
            )
        raise unknown_store(name, self.view.assignment.epoch)

    @classmethod
    def partitions(
        cls, served: ServedStore, request: paging.RangeRequest | query_service_pb2.CountRequest
    ) -> Sequence[int]:
        """Return the partitions to read for a request about many keys: the named ones, or all of a global store.

        Raises:
            LookupFailure: INVALID_REQUEST, as in `partition`; or if `partitions` is set and names one twice, is set
                beside `partition`, or is set for a global store.

        """
        if not isinstance(request, query_service_pb2.CountRequest) and request.partitions:
            return cls._several(served, request)
        if served.spec.is_global and not request.HasField("partition"):
            return range(served.spec.partition_count)
        return (cls.partition(served, request),)

    @classmethod
    def _several(cls, served: ServedStore, request: paging.RangeRequest) -> Sequence[int]:
        if request.HasField("partition"):
            raise LookupFailure(Reason.INVALID_REQUEST, "set partition or partitions, not both")
        if served.spec.is_global:
            raise LookupFailure(
                Reason.INVALID_REQUEST, "partitions is not for global stores: set partition, or nothing to read all"
            )
        if len(set(request.partitions)) < len(request.partitions):
            raise LookupFailure(Reason.INVALID_REQUEST, "partitions names a partition twice")
        return [cls.existing(served, partition) for partition in request.partitions]

    @classmethod
    def partition(
        cls,
        served: ServedStore,
        request: paging.RangeRequest | query_service_pb2.CountRequest | query_service_pb2.WatchRequest,
    ) -> int:
        """Return the partition that a request about many keys names.

        Raises:
            LookupFailure: INVALID_REQUEST, the request names none, or one that the store doesn't have.

        """
        if not request.HasField("partition"):
            raise LookupFailure(Reason.INVALID_REQUEST, "a node needs a partition: set it, or ask a router")
        return cls.existing(served, request.partition)

    @staticmethod
    def existing(served: ServedStore, partition: int) -> int:
        """Return a partition that the store has.

        Raises:
            LookupFailure: INVALID_REQUEST, it doesn't have it.

        """
        if partition >= served.spec.partition_count:
            raise LookupFailure(
                Reason.INVALID_REQUEST, f"partition {partition} of {served.spec.partition_count} (they count from 0)"
            )
        return partition

    def admit(
        self,
        served: ServedStore,
        partition: int,
        freshness: types_pb2.Freshness,
        forwarding: types_pb2.Forwarding,
        moment: MomentBound | None = None,
    ) -> Admitted:
        """Return the replica that may answer, and its stamp, taken before the read.

        A `moment` takes the place of the one in `freshness`.

        Raises:
            ReplicaBehind: the replica may answer once it has reached a position or a batch of the bound.
            LookupFailure: the partition is not held, restoring, in error or outside the bound; or its store is not
                built yet; or too many routers have passed the request on.

        """
        if forwarding.hops > _MAX_HOPS:
            raise LookupFailure(Reason.HOP_LIMIT, f"the request has passed {forwarding.hops} routers")
        try:
            bound = Freshness.from_proto(freshness).in_version(served.spec.name, self.version)
        except ValueError as error:
            raise LookupFailure(Reason.INVALID_REQUEST, str(error)) from error
        assignment = self.view.assignment
        assert assignment is not None  # noqa: S101 - store() has checked
        task, replica = self.standing(served, partition)
        confirmed = self._is_confirmed()
        position = replica.position
        now = time.monotonic()
        staleness_ms, lag = replica.staleness_ms(now), replica.lag(now)
        report = self._reports.get(served.spec.name)
        age_ms, backlog = (None, None) if report is None else (report.age_ms(now), report.input_backlog)
        claimed = claimed_role(task.role, confirmed=confirmed, epoch=assignment.epoch, requested_epoch=forwarding.epoch)
        if bound is not ANY:
            # The check sees an unconfirmed active as ACTIVE, so that the failure can name it.
            role = claimed if confirmed else task.role
            known = ReplicaFreshness(role, confirmed, lag, staleness_ms, position, age_ms, backlog)
            broken = consistency.violation(bound, known, served.spec.name, partition)
            if broken is not None:
                raise self._outside(bound, broken, task, replica, position)
        stamp = _stamp(self.head(replica, assignment.epoch, claimed), position, lag, staleness_ms, age_ms, backlog)
        wanted = moment or bound.moment
        if wanted is None:
            return Admitted(replica, stamp)
        return self.moments.admitted(bound, wanted, task, replica, stamp)

    def standing(self, served: ServedStore, partition: int) -> tuple[TaskReplica, StoreReplica]:
        """Return the task and the replica that may answer for a partition, whatever bounds a caller has.

        Raises:
            LookupFailure: the partition is not held, restoring or in error; or its store is not built yet.

        """
        task = self._replicas.get(served.task_ids[partition])
        if task is None:
            raise self._not_held(served.spec, partition)
        replica = task.of(served.spec, partition)
        if task.state is TaskState.ERROR:
            raise LookupFailure(Reason.TASK_FAILED, f"task {task.task} stopped: {task.error}", {"task": str(task.task)})
        if task.state is not TaskState.RUNNING or replica is None:
            raise self._restoring(task, replica)
        self._first_batches.require(served.spec, partition, replica)
        if replica.topic_change:
            raise _topic_changed(replica)
        return task, replica

    def head(self, replica: StoreReplica, epoch: int, claimed: Role) -> bytes:
        """Return what all stamps of a replica have in common, serialized, as long as nothing of it changes."""
        return self._head(replica.partition, epoch, claimed.value, replica.spec.ephemeral, replica.since_ms)

    def is_built(self, replica: StoreReplica) -> bool:
        """Whether something has been committed into the replica's store, or nobody says so of it."""
        served = self.view.stores.get(replica.spec.name)
        return served is None or self._first_batches.is_built(served.spec, replica.partition, replica)

    def _serialized_head(self, partition: int, epoch: int, role: int, ephemeral: bool, since_ms: int | None) -> bytes:
        """Return what a stamp has in common with the one before.

        To parse it and set the rest takes half of the time in which a stamp is made from all its fields.
        """
        return types_pb2.ReplicaStamp(
            partition=partition,
            epoch=epoch,
            host=self._host,
            role=types_pb2.ReplicaRole.ValueType(role),
            ephemeral=ephemeral,
            since_ms=since_ms,
            version=self.version,
        ).SerializeToString()

    def _outside(
        self, bound: Freshness, broken: tuple[Reason, str], task: TaskReplica, replica: StoreReplica, position: int
    ) -> LookupFailure:
        """Return the failure of a replica that breaks a bound."""
        reason, message = broken
        name, partition = replica.spec.name, replica.partition
        if bound.at_least is not None and reason is Reason.POSITION_NOT_REACHED:
            return PositionNotReached(message, task, replica, position, bound.at_least.position(name, partition))
        return LookupFailure(reason, message, {"task": str(task.task)}, route=self._route(replica.spec, partition))

    def _not_held(self, spec: StoreSpec, partition: int) -> LookupFailure:
        if spec.is_global:
            return LookupFailure(
                Reason.PARTITION_RESTORING, f"this node has not opened the global store {spec.name} yet"
            )
        route = self._route(spec, partition)
        active = route.active.instance_id or "nobody"
        return LookupFailure(
            Reason.PARTITION_NOT_OWNED,
            f"this node does not hold partition {partition} of {spec.name}; at epoch {route.epoch} {active} is active",
            {"store": spec.name, "partition": str(partition), "epoch": str(route.epoch), "active": active},
            route=route,
        )

    @staticmethod
    def _restoring(task: TaskReplica, replica: StoreReplica | None) -> LookupFailure:
        position = "unknown" if replica is None else str(replica.position)
        end = "unknown" if replica is None or replica.end_offset is None else str(replica.end_offset)
        return LookupFailure(
            Reason.PARTITION_RESTORING,
            f"task {task.task} is {task.state.value}, at offset {position} of {end}",
            {"task": str(task.task), "state": task.state.value, "position": position, "end_offset": end},
        )

    def _route(self, spec: StoreSpec, partition: int) -> errors_pb2.Route:
        assignment = self.view.assignment
        assert assignment is not None  # noqa: S101 - callers have checked
        task = spec.task_id(partition)
        holders = assignment.tasks.get(task) if isinstance(task, TaskId) else None
        route = errors_pb2.Route(store=spec.name, partition=partition, epoch=assignment.epoch)
        if holders is not None:
            if holders.active is not None:
                route.active.CopyFrom(self._host_of(holders.active))
            route.standbys.extend(self._host_of(instance) for instance in (*holders.standbys, *holders.warm_ups))
        return route

    def _host_of(self, instance_id: str) -> types_pb2.Host:
        member = self.view.members.get(instance_id)
        if member is None:
            return types_pb2.Host(instance_id=instance_id)
        return types_pb2.Host(instance_id=instance_id, host=member.host, port=member.port)


def _of_page(request: KeyedRequest, version: str) -> MomentBound | None:
    """Return the batch that a page of one key's entries is to show; None if it may be any.

    Raises:
        LookupFailure: VERSION_CHANGED, its token is of another version than this.

    """
    if not isinstance(request, _PAGED) or not request.page_token:
        return None
    try:
        bound = paging.bound_of_page(request)
    except LookupFailure:
        return None  # a wrong token is refused where the page begins, after a wrong kind of store
    paging.refuse_other_version(request, version)
    return bound


def _topic_changed(replica: StoreReplica) -> LookupFailure:
    topic, name = replica.spec.changelog_topic, replica.spec.name
    return LookupFailure(
        Reason.TOPIC_CHANGED,
        f"topic {topic} of store {name} has changed: {replica.topic_change}",
        {"store": name, "topic": topic, "change": replica.topic_change},
    )


def _stamp(
    head: bytes, position: int, lag: int | None, staleness_ms: int | None, age_ms: int | None, backlog: int | None
) -> types_pb2.ReplicaStamp:
    stamp = types_pb2.ReplicaStamp.FromString(head)
    stamp.position = position
    if lag is not None:
        stamp.lag = lag
    if staleness_ms is not None:
        stamp.staleness_ms = staleness_ms
    if age_ms is not None:
        stamp.processor_age_ms = age_ms
    if backlog is not None:
        stamp.input_backlog = backlog
    return stamp
