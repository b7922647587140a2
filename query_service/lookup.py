"""Lookups on this node: who may answer, and the answer with its proof.

Reads run on the event loop when they touch one key, in a worker thread when they touch many.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from query_service.lifecycle import TaskState
from query_service.replica import StoreReplica, TaskReplica
from query_service.stores.base import Page
from query_service.stores.key_value import KeyValueStore
from query_service.stores.versioned import BeforeHistory, VersionedStore
from query_service.stores.windows import TimedStore
from statehouse import consistency, ordered_keys, paging
from statehouse.assignment import Assignment
from statehouse.composite import SessionKey, WindowKey
from statehouse.consistency import Freshness, ReplicaFreshness
from statehouse.errors import LookupFailure, Reason
from statehouse.membership import Member
from statehouse.partitioning import partition_for
from statehouse.serdes import Serde, serde
from statehouse.topology import KEY_VALUE, SESSION, VERSIONED, WINDOW, Role, StoreSpec, TaskId
from statehouse.v1 import errors_pb2, query_service_pb2, types_pb2

_MAX_HOPS = 1
LAST_MS = 2**62
QUERIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        KEY_VALUE: ("Get", "BatchGet", "Scan", "Count"),
        WINDOW: ("FetchWindows", "Count"),
        SESSION: ("FetchSessions", "Count"),
        VERSIONED: ("Get", "BatchGet", "GetAsOf", "Count"),
    }
)

S = TypeVar("S")
K = TypeVar("K", WindowKey, SessionKey)


@dataclass(frozen=True, slots=True)
class ServedStore:
    """A store with its serdes looked up once."""

    spec: StoreSpec
    key_serde: Serde
    value_serde: Serde


@dataclass(frozen=True, slots=True)
class NodeView:
    """What the node knows, as one immutable value that is swapped whole."""

    assignment: Assignment | None = None
    stores: Mapping[str, ServedStore] = field(default_factory=lambda: MappingProxyType({}))
    members: Mapping[str, Member] = field(default_factory=lambda: MappingProxyType({}))


def view_of(assignment: Assignment | None, members: Mapping[str, Member]) -> NodeView:
    """Compile a view."""
    if assignment is None:
        return NodeView(members=MappingProxyType(dict(members)))
    stores = {
        name: ServedStore(spec, serde(spec.key_serde), serde(spec.value_serde))
        for name, spec in assignment.stores.items()
    }
    return NodeView(assignment, MappingProxyType(stores), MappingProxyType(dict(members)))


class LookupEngine:
    """Answers for the replicas of this node.

    `is_confirmed()`: whether the node has been in touch with Kafka within the session timeout.
    """

    def __init__(
        self,
        host: types_pb2.Host,
        replicas: Mapping[TaskId, TaskReplica],
        is_confirmed: Callable[[], bool],
        *,
        max_batch_entries: int,
        max_message_bytes: int,
    ) -> None:
        self.view = NodeView()
        self._host = host
        self._replicas = replicas
        self._is_confirmed = is_confirmed
        self._max_batch_entries = max_batch_entries
        # JSON values grow when they are typed; a page of a quarter of the message leaves room for it.
        self._max_page_bytes = max_message_bytes // 4

    def get(self, request: query_service_pb2.GetRequest) -> query_service_pb2.GetResponse:
        """Read one key.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        served, key, replica, stamp = self._admit_key(request)
        data = _latest(replica, key)
        if data is None:
            return query_service_pb2.GetResponse(found=False, replica=stamp)
        value = _value(served, data, raw=request.raw)
        return query_service_pb2.GetResponse(found=True, value=value, replica=stamp)

    def batch_get(self, batch: query_service_pb2.BatchGetRequest) -> query_service_pb2.BatchGetResponse:
        """Read several keys; each has its own outcome.

        Raises:
            LookupFailure: INVALID_REQUEST, the batch is larger than max_batch_entries.

        """
        if len(batch.requests) > self._max_batch_entries:
            raise LookupFailure(
                Reason.INVALID_REQUEST,
                f"{len(batch.requests)} lookups in a batch, at most {self._max_batch_entries} are taken: split it",
            )
        response = query_service_pb2.BatchGetResponse()
        for request in batch.requests:
            try:
                response.results.add(response=self.get(request))
            except LookupFailure as failure:
                response.results.add(error=failure.to_proto())
        return response

    async def scan(self, request: query_service_pb2.ScanRequest) -> query_service_pb2.ScanResponse:
        """Read a page of one partition.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        served = self._store(request.store)
        keys = paging.key_range(request, served.key_serde)
        partition = self._partition(served, request)
        replica, stamp = self._admit(served, partition, request.freshness, request.forwarding)
        limit, max_bytes = paging.page_size(request), self._max_page_bytes
        store = _of_kind(replica, KeyValueStore, "Scan")
        page = await asyncio.to_thread(store.scan, keys, limit, max_bytes)
        response = query_service_pb2.ScanResponse(replicas=[stamp])
        for key, data in page.entries:
            shown = types_pb2.Key(raw=key) if request.raw else _key(served, key)
            response.entries.add(key=shown, value=_value_or_raw(served, data, raw=request.raw))
        if page.more:
            response.next_page_token = paging.next_page_token(request, page.entries[-1][0])
        return response

    async def count(self, request: query_service_pb2.CountRequest) -> query_service_pb2.CountResponse:
        """Count the entries of one partition.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        served = self._store(request.store)
        partition = self._partition(served, request)
        replica, stamp = self._admit(served, partition, request.freshness, request.forwarding)
        if request.exact:
            count = await asyncio.to_thread(replica.store.exact_count)
        else:
            count = replica.store.approximate_count()
        return query_service_pb2.CountResponse(count=count, exact=request.exact, replicas=[stamp])

    async def fetch_windows(
        self, request: query_service_pb2.FetchWindowsRequest
    ) -> query_service_pb2.FetchWindowsResponse:
        """Read a page of a key's windows.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        served, key, replica, stamp = self._admit_key(request)
        store = _of_kind(replica, TimedStore, "FetchWindows", WINDOW)
        first_ms, last_ms = _span(request)
        page, token = await self._timed_page(
            store, key, request, lambda window: first_ms <= window.start_ms <= last_ms, (first_ms, last_ms)
        )
        response = query_service_pb2.FetchWindowsResponse(replica=stamp, next_page_token=token)
        for window, data in page.entries:
            value = _value_or_raw(served, data, raw=request.raw)
            end_ms = window.start_ms + served.spec.window_size_ms
            response.windows.add(start_ms=window.start_ms, end_ms=end_ms, value=value)
        return response

    async def fetch_sessions(
        self, request: query_service_pb2.FetchSessionsRequest
    ) -> query_service_pb2.FetchSessionsResponse:
        """Read a page of a key's sessions.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        served, key, replica, stamp = self._admit_key(request)
        store = _of_kind(replica, TimedStore, "FetchSessions", SESSION)
        first_ms, last_ms = _span(request)
        # A session is filed by its end, which may be long after the span: only the first bound limits the segments.
        page, token = await self._timed_page(
            store,
            key,
            request,
            lambda session: session.end_ms >= first_ms and session.start_ms <= last_ms,
            (first_ms, LAST_MS),
        )
        response = query_service_pb2.FetchSessionsResponse(replica=stamp, next_page_token=token)
        for session, data in page.entries:
            value = _value_or_raw(served, data, raw=request.raw)
            response.sessions.add(start_ms=session.start_ms, end_ms=session.end_ms, value=value)
        return response

    def get_as_of(self, request: query_service_pb2.GetAsOfRequest) -> query_service_pb2.GetAsOfResponse:
        """Read the value a key had at a time.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        served, key, replica, stamp = self._admit_key(request)
        store = _of_kind(replica, VersionedStore, "GetAsOf")
        if not request.HasField("as_of_ms"):
            version = store.get(key)
        elif request.as_of_ms < 0:
            raise LookupFailure(Reason.INVALID_REQUEST, "as_of_ms must not be negative")
        else:
            try:
                version = store.get_as_of(key, request.as_of_ms)
            except BeforeHistory as error:
                raise LookupFailure(
                    Reason.BEFORE_HISTORY, str(error), {"history_start_ms": str(store.history_start_ms)}
                ) from error
        if version is None:
            return query_service_pb2.GetAsOfResponse(found=False, replica=stamp)
        value = _value(served, version.value, raw=request.raw)
        return query_service_pb2.GetAsOfResponse(
            found=True, value=value, timestamp_ms=version.timestamp_ms, replica=stamp
        )

    async def _timed_page(
        self,
        store: TimedStore[K],
        key: bytes,
        request: query_service_pb2.FetchWindowsRequest | query_service_pb2.FetchSessionsRequest,
        accept: Callable[[K], bool],
        span_ms: tuple[int, int],
    ) -> tuple[Page[tuple[K, bytes]], str]:
        """Return a page of one key's entries, and the token of the next."""
        prefix = ordered_keys.escaped(key)
        keys = paging.after_page(paging.KeyRange(prefix, paging.after_prefix(prefix), request.reverse), request)
        limit = paging.page_size(request)
        page = await asyncio.to_thread(store.scan, keys, accept, *span_ms, limit, self._max_page_bytes)
        token = paging.next_page_token(request, store.encoded(page.entries[-1][0])) if page.more else ""
        return page, token

    def _admit_key(
        self,
        request: query_service_pb2.GetRequest
        | query_service_pb2.FetchWindowsRequest
        | query_service_pb2.FetchSessionsRequest
        | query_service_pb2.GetAsOfRequest,
    ) -> tuple[ServedStore, bytes, StoreReplica, types_pb2.ReplicaStamp]:
        """Return the store, the serialized key, and what answers for a request about one key."""
        served = self._store(request.store)
        key = paging.serialized_key(request.key, served.key_serde)
        partition = partition_for(key, served.spec.partition_count)
        return served, key, *self._admit(served, partition, request.freshness, request.forwarding)

    def _store(self, name: str) -> ServedStore:
        if self.view.assignment is None:
            raise LookupFailure(
                Reason.ROUTING_NOT_READY, "this node has not read an assignment yet; has the processor been started?"
            )
        try:
            return self.view.stores[name]
        except KeyError:
            known = ", ".join(sorted(self.view.stores)) or "none"
            raise LookupFailure(
                Reason.UNKNOWN_STORE, f"no store {name!r}; there are: {known}", {"store": name}
            ) from None

    @staticmethod
    def _partition(served: ServedStore, request: query_service_pb2.ScanRequest | query_service_pb2.CountRequest) -> int:
        if not request.HasField("partition"):
            raise LookupFailure(Reason.INVALID_REQUEST, "a node reads one partition: set partition, or ask a router")
        if request.partition >= served.spec.partition_count:
            raise LookupFailure(
                Reason.INVALID_REQUEST,
                f"partition {request.partition} of {served.spec.partition_count} (they count from 0)",
            )
        return request.partition

    def _admit(
        self,
        served: ServedStore,
        partition: int,
        freshness: types_pb2.Freshness,
        forwarding: types_pb2.Forwarding,
    ) -> tuple[StoreReplica, types_pb2.ReplicaStamp]:
        """Return the replica that may answer, with its proof taken before the read.

        Raises:
            LookupFailure: not held, restoring, in error, outside the bound, or passed on too often.

        """
        if forwarding.hops > _MAX_HOPS:
            raise LookupFailure(Reason.HOP_LIMIT, f"the request has passed {forwarding.hops} routers")
        try:
            bound = Freshness.from_proto(freshness)
        except ValueError as error:
            raise LookupFailure(Reason.INVALID_REQUEST, str(error)) from error
        assignment = self.view.assignment
        assert assignment is not None  # noqa: S101 - _store has checked
        task = self._replicas.get(TaskId(served.spec.sub_topology, partition))
        if task is None:
            raise self._not_owned(served.spec, partition)
        replica = task.stores.get(served.spec.name)
        if task.state is TaskState.ERROR:
            raise LookupFailure(Reason.TASK_FAILED, f"task {task.task} stopped: {task.error}", {"task": str(task.task)})
        if task.state is not TaskState.RUNNING or replica is None:
            raise self._restoring(task, replica)
        confirmed = self._is_confirmed()
        is_active = task.role is Role.ACTIVE and confirmed and forwarding.epoch <= assignment.epoch
        staleness_ms = replica.staleness_ms(time.monotonic())
        lag = replica.lag
        # An unconfirmed active keeps its name for the check, so that the failure can say so.
        role = Role.ACTIVE if is_active or (task.role is Role.ACTIVE and not confirmed) else Role.STANDBY
        broken = consistency.violation(bound, ReplicaFreshness(role, confirmed, lag, staleness_ms))
        if broken is not None:
            reason, message = broken
            raise LookupFailure(reason, message, {"task": str(task.task)}, route=self._route(served.spec, partition))
        stamp = types_pb2.ReplicaStamp(
            partition=partition,
            epoch=assignment.epoch,
            host=self._host,
            role=types_pb2.REPLICA_ROLE_ACTIVE if is_active else types_pb2.REPLICA_ROLE_STANDBY,
            position=replica.position,
            lag=lag,
            staleness_ms=staleness_ms,
        )
        return replica, stamp

    def _not_owned(self, spec: StoreSpec, partition: int) -> LookupFailure:
        route = self._route(spec, partition)
        holder = route.active.instance_id or "nobody"
        return LookupFailure(
            Reason.PARTITION_NOT_OWNED,
            f"this node does not hold partition {partition} of {spec.name}; at epoch {route.epoch} {holder} is active",
            {"store": spec.name, "partition": str(partition), "epoch": str(route.epoch), "active": holder},
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
        holders = assignment.tasks.get(TaskId(spec.sub_topology, partition))
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


def _key(served: ServedStore, key: bytes) -> types_pb2.Key:
    try:
        return types_pb2.Key(text=served.key_serde.text(key))
    except ValueError:
        return types_pb2.Key(raw=key)


def _value(served: ServedStore, data: bytes, *, raw: bool) -> types_pb2.Value:
    if raw:
        return types_pb2.Value(raw=data)
    try:
        return served.value_serde.value(data)
    except ValueError as error:
        raise LookupFailure(
            Reason.VALUE_UNDECODABLE,
            f"the stored value is no {served.spec.value_serde}: {error}; read it with raw=true",
            {"store": served.spec.name},
        ) from error


def _value_or_raw(served: ServedStore, data: bytes, *, raw: bool) -> types_pb2.Value:
    """Return a scan's value: one that does not decode is shown raw, it must not fail its neighbours."""
    try:
        return _value(served, data, raw=raw)
    except LookupFailure:
        return types_pb2.Value(raw=data)


def _latest(replica: StoreReplica, key: bytes) -> bytes | None:
    """Return a key's latest value from a store that has one per key."""
    store = replica.store
    if isinstance(store, VersionedStore):
        version = store.get(key)
        return None if version is None else version.value
    return _of_kind(replica, KeyValueStore, "Get").get(key)


def _of_kind(replica: StoreReplica, kind: type[S], query: str, spec_kind: str | None = None) -> S:
    """Return the replica's store if it has this query.

    Raises:
        LookupFailure: WRONG_STORE_KIND.

    """
    spec = replica.spec
    if not isinstance(replica.store, kind) or (spec_kind is not None and spec.kind != spec_kind):
        raise LookupFailure(
            Reason.WRONG_STORE_KIND,
            f"{spec.name} is a {spec.kind} store and has no {query}; it has {', '.join(QUERIES[spec.kind])}",
            {"store": spec.name, "kind": spec.kind, "query": query},
        )
    return replica.store


def _span(request: query_service_pb2.FetchWindowsRequest | query_service_pb2.FetchSessionsRequest) -> tuple[int, int]:
    """Return the request's span of time, all of it where a bound is absent."""
    first_ms = request.from_ms if request.HasField("from_ms") else 0
    last_ms = request.to_ms if request.HasField("to_ms") else LAST_MS
    return max(0, first_ms), last_ms
