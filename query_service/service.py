"""The node's gRPC services: a thin layer over lookups, scans and watches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial, wraps
from typing import Any, Final, TypeVar, cast

import grpc.aio
import structlog
from google.protobuf.message import Message

from query_service.control_topics import ControlTopics
from query_service.heartbeats import Heartbeats
from query_service.reads.batch_spans import BatchSpans
from query_service.reads.lookups import LookupHandler, parsed_batch
from query_service.reads.observed import ReadObserver
from query_service.reads.position_waits import PositionWaits, ReplicaBehind
from query_service.reads.scans import ScanHandler
from query_service.reads.serde_fetches import SerdeFetches
from query_service.reads.sums import SumHandler
from query_service.replicas.giving import GivenStores
from query_service.replicas.replica import StoreReplica, TaskReplica
from query_service.replicas.tasks import TaskManager
from query_service.states.ownership import NodeOwnership
from query_service.telemetry.metrics import NodeMetrics
from query_service.watches.watch_handler import WatchHandler
from statehouse.contract.processor_reports import ProcessorReport
from statehouse.contract.topology import AnyTaskId, GlobalId, TaskId
from statehouse.errors import LookupFailure, Reason
from statehouse.link import link
from statehouse.observability.lookup_log import LookupLog
from statehouse.rpc.deadline import Deadline, HasTime
from statehouse.rpc.requests import parsed, refuse_unreadable
from statehouse.rpc.status import Context, failing_cleanly, send_to
from statehouse.rpc.streams import FIRST_RESPONSE_S
from statehouse.v1 import (
    node_service_pb2,
    node_service_pb2_grpc,
    peer_service_pb2,
    peer_service_pb2_grpc,
    query_service_pb2,
    query_service_pb2_grpc,
    types_pb2,
    verification_pb2,
)

log = structlog.get_logger(__name__)

# A wait must leave time for the read after it; a router that hears nothing in time takes the node for frozen.
_WAIT_MARGINS: Final = 3
# Less than a router waits for a node's first response, so that the router does not take the node for slow.
_WATCH_WAIT_S: Final = 0.8 * FIRST_RESPONSE_S
_PROFILE_MS: Final = 5_000
_PROFILE_MAX_MS: Final = 60_000
SERVICES = ("statehouse.v1.QueryService", "statehouse.v1.NodeService", "statehouse.v1.PeerService")

Response = TypeVar("Response")
# Its arguments: a servicer, a request, the call's context.
Handler = Callable[[Any, Any, Any], Coroutine[Any, Any, Response]]


def _counting(method: str, handler: Callable[..., Awaitable[Response]]) -> Handler[Response]:
    """Wrap a handler so that its calls are counted by outcome."""

    @wraps(handler)
    async def counting(self: Any, request: Any, context: Any) -> Response:  # noqa: ANN401 - any of the servicers
        outcome = "CANCELLED"
        try:
            response = await handler(self, request, context)
        except LookupFailure as failure:
            outcome = failure.reason.name
            raise
        except asyncio.CancelledError:
            raise
        except BaseException:
            outcome = Reason.INTERNAL.name
            raise
        else:
            outcome = "OK"
            return response
        finally:
            self.metrics.call(method, outcome)

    return counting


def _counted(method: str, handler: Callable[[Any, Any, Context], Awaitable[Response]]) -> Any:  # noqa: ANN401 - as `failing_cleanly`
    """Make a servicer method from a handler, and count its calls."""
    return failing_cleanly(_counting(method, handler))


def _waiting(
    method: str, part: Callable[[QueryServicer], Callable[[Any], Awaitable[Any]]], *, is_of_keys: bool = False
) -> Handler[Any]:
    """Make a handler of a read, which `part` names, so that it waits for a position that the caller has seen elsewhere.

    It also waits for what a serde fetches, and if it `is_of_keys`, for the disk, as long as its caller does. Its calls
    are counted.
    """

    async def attempt(self: QueryServicer, request: Any, context: HasTime) -> Any:  # noqa: ANN401 - of any method
        try:
            async with asyncio.timeout_at(self.waits.times.deadline(context).at if is_of_keys else None):
                return await part(self)(request)
        except TimeoutError as error:
            raise LookupFailure(Reason.DEADLINE_EXCEEDED, "the node's disk did not answer in time") from error

    async def at_position(self: QueryServicer, request: Any, context: HasTime) -> Any:  # noqa: ANN401 - of any method
        try:
            return await attempt(self, request, context)
        except ReplicaBehind as behind:
            deadline = self.waits.times.deadline(context, margins=_WAIT_MARGINS)
            return await self.waits.patiently(request, partial(attempt, self, request, context), behind, deadline)

    async def observed(self: QueryServicer, request: Any, context: HasTime) -> Any:  # noqa: ANN401 - of any method
        began_ns = self.observer.began()
        try:
            # A fetch takes longer than a read, so the read is simply done again after it.
            response = await self.fetches.until_decoded(request, lambda: at_position(self, request, context))
        except LookupFailure as failure:
            self.observer.failed(method, request, context, failure.reason.name, began_ns)
            raise
        self.observer.answered(method, request, context, response, began_ns)
        return response

    return _counting(method, observed)


async def _read_linked(
    parse: Callable[[bytes], Any],
    read: Callable[[Any, HasTime], Awaitable[Any]],
    data: bytes,
    context: HasTime,
) -> bytes:
    """Answer a serialized request."""
    request = parsed(parse, data)
    refuse_unreadable(request)
    answer: Any = await read(request, context)
    return cast("bytes", answer if isinstance(answer, bytes) else answer.SerializeToString())


class QueryServicer(query_service_pb2_grpc.QueryServiceServicer):
    """Answers for the partitions that this node holds."""

    def __init__(
        self,
        lookups: LookupHandler,
        scans: ScanHandler,
        watches: WatchHandler,
        waits: PositionWaits,
        fetches: SerdeFetches,
        metrics: NodeMetrics,
        observer: ReadObserver | None = None,
    ) -> None:
        """`observer`: what keeps something of reads; by default one that writes of failed ones."""
        self.observer = observer or ReadObserver("", LookupLog(0, has_keys=False), None, BatchSpans())
        self._lookups, self._scans, self._watches = lookups, scans, watches
        self.waits, self.fetches, self.metrics = waits, fetches, metrics

    async def _watch(self, request: query_service_pb2.WatchRequest, context: Context) -> None:
        watch = partial(self._watches.watch, request, send_to(context))
        try:
            await watch()
        except ReplicaBehind as behind:
            deadline = Deadline.after(min(_WATCH_WAIT_S, self.waits.times.default_s))
            await self.waits.patiently(request, watch, behind, deadline)

    get = _waiting("Get", lambda self: self._lookups.get, is_of_keys=True)
    batch_get = _waiting("BatchGet", lambda self: self._lookups.batch_get, is_of_keys=True)
    scan = _waiting("Scan", lambda self: self._scans.scan)
    scan_windows = _waiting("ScanWindows", lambda self: self._scans.scan_windows)
    scan_sessions = _waiting("ScanSessions", lambda self: self._scans.scan_sessions)
    count = _waiting("Count", lambda self: self._scans.count)
    fetch_windows = _waiting("FetchWindows", lambda self: self._lookups.fetch_windows)
    fetch_sessions = _waiting("FetchSessions", lambda self: self._lookups.fetch_sessions)
    get_as_of = _waiting("GetAsOf", lambda self: self._lookups.get_as_of, is_of_keys=True)
    get_history = _waiting("GetHistory", lambda self: self._lookups.get_history)

    @property
    def proxied(self) -> Mapping[str, link.LinkHandler]:
        """The handlers of calls that don't come as gRPC, by method."""
        parse_batch = partial(parsed_batch, most=self._lookups.max_batch_entries)
        others: Mapping[str, tuple[type[Message], Callable[[Any, HasTime], Awaitable[Any]]]] = {
            "Get": (query_service_pb2.GetRequest, self.get),
            "Scan": (query_service_pb2.ScanRequest, self.scan),
            "ScanWindows": (query_service_pb2.ScanWindowsRequest, self.scan_windows),
            "ScanSessions": (query_service_pb2.ScanSessionsRequest, self.scan_sessions),
            "Count": (query_service_pb2.CountRequest, self.count),
            "FetchWindows": (query_service_pb2.FetchWindowsRequest, self.fetch_windows),
            "FetchSessions": (query_service_pb2.FetchSessionsRequest, self.fetch_sessions),
            "GetAsOf": (query_service_pb2.GetAsOfRequest, self.get_as_of),
            "GetHistory": (query_service_pb2.GetHistoryRequest, self.get_history),
        }
        linked = {name: partial(_read_linked, of.FromString, read) for name, (of, read) in others.items()}
        return linked | {"BatchGet": partial(_read_linked, parse_batch, self.batch_get)}

    Get = failing_cleanly(get)
    BatchGet = failing_cleanly(batch_get)
    Scan = failing_cleanly(scan)
    ScanWindows = failing_cleanly(scan_windows)
    ScanSessions = failing_cleanly(scan_sessions)
    Count = failing_cleanly(count)
    FetchWindows = failing_cleanly(fetch_windows)
    FetchSessions = failing_cleanly(fetch_sessions)
    GetAsOf = failing_cleanly(get_as_of)
    GetHistory = failing_cleanly(get_history)
    QueryStore = failing_cleanly(_waiting("QueryStore", lambda self: self._lookups.query_store))
    Watch = _counted("Watch", _watch)


class NodeServicer(node_service_pb2_grpc.NodeServiceServicer):
    """Answers questions about the node and its data plane, and drains it."""

    def __init__(
        self,
        host: types_pb2.Host,
        ownership: NodeOwnership,
        tasks: TaskManager,
        control: ControlTopics,
        heartbeats: Heartbeats,
        drain: Callable[[float | None], list[TaskId]],
        profile: Callable[[node_service_pb2.ProfileKind.ValueType, int], Awaitable[bytes]],
        sums: SumHandler,
        restore: Callable[[str, int], Awaitable[AnyTaskId]],
        metrics: NodeMetrics,
    ) -> None:
        """`drain` begins to drain, within so many seconds, and returns the tasks that other nodes must take over.

        `profile` makes a profile of a kind, in so many milliseconds. `restore` begins to restore a replica of a store's
        partition anew, and returns its task.
        """
        self._host, self._ownership, self._tasks, self._control = host, ownership, tasks, control
        self._heartbeats, self._begin_to_drain, self.metrics = heartbeats, drain, metrics
        self._made_profile, self._sums, self._restore = profile, sums, restore

    async def _get_node(
        self, _request: node_service_pb2.GetNodeRequest, _context: Context
    ) -> node_service_pb2.GetNodeResponse:
        now, reports, failing_s = time.monotonic(), self._control.reports.latest, self._heartbeats.failing_s
        return node_service_pb2.GetNodeResponse(
            host=self._host,
            incarnation=self._ownership.incarnation,
            state=self._ownership.state.value,
            epoch=self._ownership.epoch,
            tasks=[_task(task, now, reports) for task in sorted(self._tasks.replicas.values(), key=_place)],
            heartbeats_failing_ms=None if failing_s is None else int(failing_s * 1000),
        )

    async def _drain(self, request: node_service_pb2.DrainRequest, _context: Context) -> node_service_pb2.DrainResponse:
        timeout_s = None
        if request.HasField("timeout_ms"):
            if request.timeout_ms < 0:
                raise LookupFailure(Reason.INVALID_REQUEST, "timeout_ms must not be negative")
            timeout_s = request.timeout_ms / 1000
        log.info("drain requested", timeout_s=timeout_s)
        return node_service_pb2.DrainResponse(active_tasks=map(str, self._begin_to_drain(timeout_s)))

    async def _profile(
        self, request: node_service_pb2.ProfileRequest, _context: Context
    ) -> node_service_pb2.ProfileResponse:
        duration_ms = request.duration_ms if request.HasField("duration_ms") else _PROFILE_MS
        if not 0 < duration_ms <= _PROFILE_MAX_MS:
            message = f"duration_ms must be between 1 and {_PROFILE_MAX_MS}, not {duration_ms}"
            raise LookupFailure(Reason.INVALID_REQUEST, message)
        return node_service_pb2.ProfileResponse(profile=await self._made_profile(request.kind, duration_ms))

    async def _sum_store(self, request: verification_pb2.SumStoreRequest, context: Context) -> None:
        await self._sums.sum_store(request, send_to(context))

    async def _restore_replica(
        self, request: verification_pb2.RestoreReplicaRequest, _context: Context
    ) -> verification_pb2.RestoreReplicaResponse:
        log.info("restore of a replica requested", store=request.store, partition=request.partition)
        return verification_pb2.RestoreReplicaResponse(task=str(await self._restore(request.store, request.partition)))

    GetNode = _counted("GetNode", _get_node)
    Drain = _counted("Drain", _drain)
    Profile = _counted("Profile", _profile)
    SumStore = _counted("SumStore", _sum_store)
    RestoreReplica = _counted("RestoreReplica", _restore_replica)


class PeerServicer(peer_service_pb2_grpc.PeerServiceServicer):
    """PeerService: gives stores to other nodes, as files."""

    def __init__(self, given: GivenStores, metrics: NodeMetrics) -> None:
        self._given, self.metrics = given, metrics

    async def _offer_store(
        self, request: peer_service_pb2.OfferStoreRequest, _context: Context
    ) -> peer_service_pb2.OfferStoreResponse:
        return await self._given.offer(request.store, request.partition)

    async def _read_file(self, request: peer_service_pb2.ReadFileRequest, context: Context) -> None:
        """Tell the data plane, which asks, what it is to send to the caller."""
        grant = self._given.granted(request.checkpoint, request.file, request.offset)
        await send_to(context)(peer_service_pb2.ReadFileResponse(data=grant.SerializeToString()))

    OfferStore = _counted("OfferStore", _offer_store)
    ReadFile = _counted("ReadFile", _read_file)


def register(server: grpc.aio.Server, queries: QueryServicer, node: NodeServicer, peers: PeerServicer) -> None:
    """Add the node's services to a server."""
    peer_service_pb2_grpc.add_PeerServiceServicer_to_server(peers, server)
    query_service_pb2_grpc.add_QueryServiceServicer_to_server(queries, server)
    node_service_pb2_grpc.add_NodeServiceServicer_to_server(node, server)


def _task(task: TaskReplica, now: float, reports: Mapping[str, ProcessorReport]) -> node_service_pb2.TaskReplica:
    return node_service_pb2.TaskReplica(
        task=str(task.task),
        role=types_pb2.ReplicaRole.ValueType(task.role.value),
        state=task.state.value,
        error=task.error,
        stores=[
            _store(store, now, reports.get(store.spec.name))
            for store in sorted(task.stores.values(), key=lambda store: (store.spec.name, store.partition))
        ],
        transfers=[
            node_service_pb2.StoreTransfer(
                store=each.store,
                partition=each.partition,
                peer=each.peer,
                size_bytes=each.size,
                done_bytes=each.done,
            )
            for each in task.transfers.values()
        ],
    )


def _place(task: TaskReplica) -> tuple[bool, AnyTaskId]:
    """Return a sort key: tasks, then global stores."""
    return isinstance(task.task, GlobalId), task.task


def _store(store: StoreReplica, now: float, report: ProcessorReport | None) -> node_service_pb2.StoreReplica:
    return node_service_pb2.StoreReplica(
        store=store.spec.name,
        position=store.position,
        end_offset=store.end_offset,
        lag=store.lag(now),
        staleness_ms=store.staleness_ms(now),
        restored_from=store.restored_from,
        restored_records=store.restored_records,
        lookups=store.lookups,
        skipped_records=store.skipped,
        late_records=store.late,
        misplaced_records=store.misplaced,
        topic_change=store.topic_change,
        oldest_batch=store.oldest_batch,
        restored_by=store.restored_by,
        passed_over=store.passed_over,
        partition=store.partition,
        since_ms=store.since_ms,
        processor_age_ms=None if report is None else report.age_ms(now),
        input_backlog=None if report is None else report.input_backlog,
    )
