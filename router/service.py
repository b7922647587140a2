"""The router's gRPC services. Lookups and pages are bytes in, bytes out; no value is ever parsed on their way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

import grpc
import grpc.aio

from router.calls.channels import QUERY_SERVICE
from router.calls.express_way import why_handed, why_page_handed
from router.calls.health import NodeHealth
from router.choice.attempt_log import AttemptLog
from router.choice.hold import Holds
from router.fleet.current_table import CurrentTable
from router.fleet.table import RoutingTable
from router.fleet.tracker import FleetTracker
from router.fleet_api.commit_tail import latest, named
from router.fleet_api.describe import describe_fleet, describe_key, describe_nodes, describe_partitions, describe_stores
from router.fleet_api.inputs import Inputs
from router.fleet_api.queries import ControllerReport, ProcessorQueries
from router.lookups.batch import BatchGetter
from router.lookups.dispatch import Call, Dispatcher, NodeAnswer
from router.lookups.explain import Explainer
from router.lookups.keyed import KeyLookups
from router.lookups.locate import freshness_of, keyed_call
from router.lookups.observed import LookupObserver
from router.lookups.overload import LookupLimit
from router.lookups.scatter import Scatter
from router.telemetry.metrics import RouterMetrics
from router.watches.fleet_watch import FleetWatch
from router.watches.watch_relay import WatchRelay
from statehouse.contract.paging import RangeRequest
from statehouse.contract.topology import Role
from statehouse.errors import LookupFailure
from statehouse.link.handed import HandedLookup
from statehouse.link.link import CALLS, LinkContext, LinkHandler
from statehouse.rpc.authorized import address_of
from statehouse.rpc.deadline import Deadline, HasTime, RequestTimes
from statehouse.rpc.requests import parsed, refuse_unreadable
from statehouse.rpc.status import Context, failing_cleanly, send_to
from statehouse.v1 import fleet_service_pb2, fleet_service_pb2_grpc, query_service_pb2

# Their requests begin with the fields of GetRequest, and the router needs no other.
_KEYED_METHODS = ("Get", "FetchWindows", "FetchSessions", "GetAsOf", "GetHistory", "QueryStore")
_PAGES: Final[Mapping[str, type[RangeRequest]]] = MappingProxyType(
    {
        "Scan": query_service_pb2.ScanRequest,
        "ScanWindows": query_service_pb2.ScanWindowsRequest,
        "ScanSessions": query_service_pb2.ScanSessionsRequest,
    }
)
FLEET_SERVICE = "statehouse.v1.FleetService"

Request = TypeVar(
    "Request",
    query_service_pb2.ScanRequest,
    query_service_pb2.ScanWindowsRequest,
    query_service_pb2.ScanSessionsRequest,
    query_service_pb2.CountRequest,
)
Response = TypeVar("Response")


@dataclass(frozen=True, slots=True)
class LookupParts:
    """The parts that answer lookups, by calls to nodes."""

    holds: Holds
    dispatcher: Dispatcher
    keys: KeyLookups
    limit: LookupLimit
    batches: BatchGetter
    scatter: Scatter
    observer: LookupObserver


@dataclass(frozen=True, slots=True)
class QueryHandlers:
    """QueryService for all partitions. `times`: how long requests may take."""

    tables: CurrentTable
    lookups: LookupParts
    watches: WatchRelay
    metrics: RouterMetrics
    times: RequestTimes

    def register(self, server: grpc.aio.Server) -> None:
        """Add the service to a server; by hand, because the generated code would parse every message."""
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            **{
                method: grpc.unary_unary_rpc_method_handler(partial(failing_cleanly(_keyed(method)), self))
                for method in _KEYED_METHODS
            },
            "BatchGet": grpc.unary_unary_rpc_method_handler(partial(failing_cleanly(_batch_get), self)),
            **{
                method: grpc.unary_unary_rpc_method_handler(partial(failing_cleanly(_page(method)), self))
                for method in _PAGES
            },
            "Count": grpc.unary_unary_rpc_method_handler(partial(failing_cleanly(_count), self)),
            "Watch": grpc.unary_stream_rpc_method_handler(
                partial(_watch, self), query_service_pb2.WatchRequest.FromString
            ),
        }
        server.add_registered_method_handlers(QUERY_SERVICE, handlers)

    @property
    def proxied(self) -> Mapping[str, LinkHandler]:
        """The handlers for calls that the proxy sends over the link."""
        keyed = {method: partial(_keyed(method), self) for method in _KEYED_METHODS if method in CALLS.values()}
        pages = {method: partial(_page(method), self) for method in _PAGES}
        return {**keyed, "BatchGet": partial(_batch_get, self), **pages, "Count": partial(_count, self)}

    def observe(self, store: str, outcome: str, role: Role | None, started_at: float | None) -> None:
        """Count a lookup; a store that is not in the assignment has an empty label.

        `started_at` None: its duration is not recorded.
        """
        table = self.tables.table
        known = store if table is not None and store in table.stores else ""
        seconds = None if started_at is None else asyncio.get_running_loop().time() - started_at
        self.metrics.lookup(known, outcome, role, seconds)


def _keyed(method: str) -> Callable[[QueryHandlers, bytes, HasTime], Awaitable[bytes]]:
    """Return the handler of a method about one key."""

    async def handler(self: QueryHandlers, data: bytes, context: HasTime) -> bytes:
        started_at = asyncio.get_running_loop().time()
        observed = self.lookups.observer.begin(method, data, context)
        attempt_log = AttemptLog() if observed is None else observed.attempt_log
        call: Call | None = None
        came: NodeAnswer | LookupFailure | None = None
        try:
            handed = _handed(context)
            with self.lookups.limit.admitted(len(data), is_under_way=handed is not None) as place:
                call = keyed_call(self.tables.current(), method, data)
                if call.freshness.may_wait:
                    place.wait_for_positions(len(data))
                for asked in handed or ():
                    self.metrics.handed(why_handed(asked))
                first = handed[0] if handed else None
                came = await self.lookups.keys.answer(call, self.times.deadline(context), attempt_log, handed=first)
        except LookupFailure as failure:
            came = failure
            self.observe("" if call is None else call.store, failure.reason.name, None, started_at)
            raise
        finally:
            if observed is not None or isinstance(came, LookupFailure):
                self.lookups.observer.over(observed, method, data, call, attempt_log, came, started_at)
        self.observe(call.store, "OK", came.role, started_at)
        return came.data

    handler.__name__ = method
    return handler


async def _batch_get(self: QueryHandlers, data: bytes, context: HasTime) -> bytes:
    try:
        handed = _handed(context)
        for asked in handed or ():
            self.metrics.handed(why_handed(asked), asked.lookups)
        return await self.lookups.batches.batch_get(data, self.times.deadline(context), handed)
    except LookupFailure as failure:
        self.observe("", failure.reason.name, None, None)
        self.lookups.observer.failed("", "BatchGet", failure.reason.name)
        raise


def _page(method: str) -> Callable[[QueryHandlers, bytes, HasTime], Awaitable[bytes]]:
    """Return the handler of a method whose answers are pages."""
    parse = _PAGES[method].FromString

    async def handler(self: QueryHandlers, data: bytes, context: HasTime) -> bytes:
        request = parsed(parse, data)
        refuse_unreadable(request)
        if (handed := _handed(context)) is not None:
            self.metrics.handed(why_page_handed(handed))
        page = partial(self.lookups.scatter.page, handed=handed or (), address=_address(context))
        return await _counted(self, method, page, request, context, is_under_way=handed is not None)

    handler.__name__ = method
    return handler


def _handed(context: HasTime) -> Sequence[HandedLookup] | None:
    """Return the calls that the proxy has made for a request that it hands over; None if it comes straight."""
    return context.handed if isinstance(context, LinkContext) else None


def _address(context: HasTime) -> str:
    """Return the address that a call comes from; empty if it isn't known."""
    return context.shown.address if isinstance(context, LinkContext) else address_of(cast("Context", context))


async def _count(self: QueryHandlers, data: bytes, context: HasTime) -> bytes:
    request = parsed(query_service_pb2.CountRequest.FromString, data)
    refuse_unreadable(request)
    return (await _counted(self, "Count", self.lookups.scatter.count, request, context)).SerializeToString()


@failing_cleanly
async def _watch(self: QueryHandlers, request: query_service_pb2.WatchRequest, context: Context) -> None:
    """Answer a Watch, for as long as the caller stays."""
    try:
        await self.watches.watch(request, send_to(context), address_of(context))
    except LookupFailure as failure:
        self.observe(request.store, failure.reason.name, None, None)
        raise


async def _counted(
    self: QueryHandlers,
    method: str,
    work: Callable[[Request, Deadline], Awaitable[Response]],
    request: Request,
    context: HasTime,
    *,
    is_under_way: bool = False,
) -> Response:
    started_at, size = asyncio.get_running_loop().time(), request.ByteSize()
    try:
        with self.lookups.limit.admitted(size, is_under_way=is_under_way) as place:
            if freshness_of(request.freshness).may_wait:
                place.wait_for_positions(size)
            response = await work(request, self.times.deadline(context))
    except LookupFailure as failure:
        self.observe(request.store, failure.reason.name, None, started_at)
        self.lookups.observer.failed(request.store, method, failure.reason.name)
        raise
    self.observe(request.store, "OK", None, started_at)
    return response


class FleetServicer(fleet_service_pb2_grpc.FleetServiceServicer):
    """FleetService. `served_by`: what takes the router's calls; `times`: how long requests may take."""

    def __init__(
        self,
        application_id: str,
        tables: CurrentTable,
        tracker: FleetTracker,
        health: NodeHealth,
        inputs: Inputs,
        queries: ProcessorQueries,
        controller: ControllerReport,
        explainer: Explainer,
        *,
        served_by: fleet_service_pb2.ServedBy.ValueType,
        times: RequestTimes,
        max_watches: int,
        max_watches_per_address: int | None,
    ) -> None:
        self._application_id, self._tables = application_id, tables
        self._tracker, self._health = tracker, health
        self._inputs, self._queries, self._explainer = inputs, queries, explainer
        self._controller, self._served_by, self._times = controller, served_by, times
        self.watches = FleetWatch(
            tables, self._describe, max_watches=max_watches, max_watches_per_address=max_watches_per_address
        )

    def known_fleet(self) -> fleet_service_pb2.GetFleetResponse:
        """Return the newest table.

        Raises:
            LookupFailure: ROUTING_NOT_READY.

        """
        return self._describe(self._tables.current())

    def known_partitions(self, store: str) -> fleet_service_pb2.ListPartitionsResponse:
        """Return a store's partitions.

        Raises:
            LookupFailure: ROUTING_NOT_READY, UNKNOWN_STORE.

        """
        partitions = describe_partitions(self._tables.current().store(store))
        return fleet_service_pb2.ListPartitionsResponse(partitions=partitions)

    def _describe(self, table: RoutingTable) -> fleet_service_pb2.GetFleetResponse:
        return describe_fleet(
            self._application_id,
            table,
            self._tracker,
            self._health.suspects,
            self._queries.is_not_built,
            self._queries.newest_batch,
        )

    async def _get_fleet(
        self, _request: fleet_service_pb2.GetFleetRequest, _context: Context
    ) -> fleet_service_pb2.GetFleetResponse:
        """Describe the fleet, the processor's queries, and who assigns."""
        table = self._tables.current()
        response = self._describe(table)
        response.served_by = self._served_by
        now_s = time.monotonic()
        response.queries.extend(self._queries.describe(table.assignment.stores, now_s))
        if (controller := self._controller.describe(now_s)) is not None:
            response.controller.CopyFrom(controller)
        return response

    async def _list_stores(
        self, _request: fleet_service_pb2.ListStoresRequest, _context: Context
    ) -> fleet_service_pb2.ListStoresResponse:
        table = self._tables.current()
        return fleet_service_pb2.ListStoresResponse(
            epoch=table.epoch, stores=describe_stores(table, self._queries.is_not_built, self._queries.newest_batch)
        )

    async def _list_nodes(
        self, _request: fleet_service_pb2.ListNodesRequest, _context: Context
    ) -> fleet_service_pb2.ListNodesResponse:
        table = self._tables.current()
        nodes = describe_nodes(table, self._tracker, self._health.suspects)
        return fleet_service_pb2.ListNodesResponse(epoch=table.epoch, nodes=nodes)

    async def _list_partitions(
        self, request: fleet_service_pb2.ListPartitionsRequest, _context: Context
    ) -> fleet_service_pb2.ListPartitionsResponse:
        return self.known_partitions(request.store)

    async def _list_changelogs(
        self, _request: fleet_service_pb2.ListChangelogsRequest, _context: Context
    ) -> fleet_service_pb2.ListChangelogsResponse:
        stores = self._tables.current().assignment.stores
        return fleet_service_pb2.ListChangelogsResponse(changelogs=self._queries.changelogs(stores, time.monotonic()))

    async def _get_moment(
        self, request: fleet_service_pb2.GetMomentRequest, _context: Context
    ) -> fleet_service_pb2.GetMomentResponse:
        store = self._tables.current().store(request.store)
        return self._inputs.moment(store.spec, named(request.moments))

    async def _locate_key(
        self, request: fleet_service_pb2.LocateKeyRequest, _context: Context
    ) -> fleet_service_pb2.LocateKeyResponse:
        return describe_key(self._tables.current(), request, self._health.suspects)

    async def _watch_fleet(self, request: fleet_service_pb2.WatchFleetRequest, context: Context) -> None:
        """Describe the fleet, for as long as the caller stays."""
        await self.watches.watch(request, send_to(context), address_of(context))

    async def _await_input(
        self, request: fleet_service_pb2.AwaitInputRequest, context: Context
    ) -> fleet_service_pb2.AwaitInputResponse:
        """Wait for the processor."""
        store = self._tables.current().store(request.store)
        records = latest(request.records)
        deadline = self._times.deadline(context)
        token = await self._inputs.processed(store.spec.name, records, deadline, request.ByteSize())
        return fleet_service_pb2.AwaitInputResponse(at_least=token.to_proto())

    async def _explain_get(
        self, request: fleet_service_pb2.ExplainGetRequest, context: Context
    ) -> fleet_service_pb2.ExplainGetResponse:
        """Look a key up and return each step."""
        return await self._explainer.explain_get(request, self._times.deadline(context))

    GetFleet = failing_cleanly(_get_fleet)
    ListStores = failing_cleanly(_list_stores)
    ListNodes = failing_cleanly(_list_nodes)
    ListPartitions = failing_cleanly(_list_partitions)
    ListChangelogs = failing_cleanly(_list_changelogs)
    GetMoment = failing_cleanly(_get_moment)
    LocateKey = failing_cleanly(_locate_key)
    ExplainGet = failing_cleanly(_explain_get)
    WatchFleet = failing_cleanly(_watch_fleet)
    AwaitInput = failing_cleanly(_await_input)
