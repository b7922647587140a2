"""The router's gRPC services. Lookups and pages are bytes in, bytes out; no value is ever parsed on their way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final, TypeVar, cast

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
from router.watches.watch_relay import SendResponse, WatchRelay
from statehouse.contract.paging import RangeRequest
from statehouse.contract.topology import Role
from statehouse.contract.version_names import version_in, wire_version
from statehouse.errors import LookupFailure
from statehouse.link.handed import HandedLookup
from statehouse.link.link import LinkContext
from statehouse.rpc.authorized import address_of
from statehouse.rpc.deadline import Deadline, HasTime, RequestTimes
from statehouse.rpc.requests import parsed, refuse_unreadable
from statehouse.rpc.status import Context
from statehouse.v1 import fleet_service_pb2, query_service_pb2

# Their requests begin with the fields of GetRequest, and the router needs no other.
KEYED_METHODS = ("Get", "FetchWindows", "FetchSessions", "GetAsOf", "GetHistory", "QueryStore")
_PAGES: Final[Mapping[str, type[RangeRequest]]] = MappingProxyType(
    {
        "Scan": query_service_pb2.ScanRequest,
        "ScanWindows": query_service_pb2.ScanWindowsRequest,
        "ScanSessions": query_service_pb2.ScanSessionsRequest,
    }
)
FLEET_SERVICE = "statehouse.v1.FleetService"
UNARY_METHODS: Final = (*KEYED_METHODS, "BatchGet", *_PAGES, "Count")
UnaryHandler = Callable[[bytes, HasTime], Awaitable[bytes]]

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
    """QueryService of a version of the application, for all partitions. `times`: how long requests may take."""

    tables: CurrentTable
    lookups: LookupParts
    watches: WatchRelay
    metrics: RouterMetrics
    times: RequestTimes

    def unary(self) -> Mapping[str, UnaryHandler]:
        """Return the handlers of all methods that answer with one message, by their names."""
        keyed = {method: partial(_keyed(method), self) for method in KEYED_METHODS}
        pages = {method: partial(_page(method), self) for method in _PAGES}
        return {**keyed, "BatchGet": partial(_batch_get, self), **pages, "Count": partial(_count, self)}

    async def watch(
        self,
        request: query_service_pb2.WatchRequest,
        send: SendResponse,
        address: str,
        reached: dict[int, int] | None = None,
    ) -> None:
        """Answer a Watch of a caller at this address, for as long as the caller stays; `reached` as for `WatchRelay`.

        Raises:
            LookupFailure: as `WatchRelay.watch`.

        """
        try:
            await self.watches.watch(request, send, address, reached)
        except LookupFailure as failure:
            self.observe(request.store, failure.reason.name, None, None)
            raise

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


class FleetHandlers:
    """FleetService of a version of the application.

    `served_by`: what takes the router's calls; `times`: how long requests may take.
    """

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
        version: str,
        times: RequestTimes,
        max_watches: int,
        max_watches_per_address: int | None,
    ) -> None:
        self._application_id, self._tables = application_id, tables
        self._tracker, self._health = tracker, health
        self._inputs, self._queries, self._explainer = inputs, queries, explainer
        self._controller, self._served_by, self._times = controller, served_by, times
        self._version = version
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
        fleet = describe_fleet(
            self._application_id,
            table,
            self._tracker,
            self._health.suspects,
            self._queries.is_not_built,
            self._queries.newest_batch,
        )
        fleet.version = self._version
        return fleet

    async def get_fleet(
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

    async def list_stores(
        self, _request: fleet_service_pb2.ListStoresRequest, _context: Context
    ) -> fleet_service_pb2.ListStoresResponse:
        """Return the stores."""
        table = self._tables.current()
        return fleet_service_pb2.ListStoresResponse(
            epoch=table.epoch, stores=describe_stores(table, self._queries.is_not_built, self._queries.newest_batch)
        )

    async def list_nodes(
        self, _request: fleet_service_pb2.ListNodesRequest, _context: Context
    ) -> fleet_service_pb2.ListNodesResponse:
        """Return the nodes."""
        table = self._tables.current()
        nodes = describe_nodes(table, self._tracker, self._health.suspects)
        return fleet_service_pb2.ListNodesResponse(epoch=table.epoch, nodes=nodes)

    async def list_partitions(
        self, request: fleet_service_pb2.ListPartitionsRequest, _context: Context
    ) -> fleet_service_pb2.ListPartitionsResponse:
        """Return who holds a store's partitions."""
        return self.known_partitions(request.store)

    async def list_changelogs(
        self, _request: fleet_service_pb2.ListChangelogsRequest, _context: Context
    ) -> fleet_service_pb2.ListChangelogsResponse:
        """Return the changelogs, as the processor compared them."""
        stores = self._tables.current().assignment.stores
        return fleet_service_pb2.ListChangelogsResponse(changelogs=self._queries.changelogs(stores, time.monotonic()))

    async def get_moment(
        self, request: fleet_service_pb2.GetMomentRequest, _context: Context
    ) -> fleet_service_pb2.GetMomentResponse:
        """Return what the processor has told of a batch."""
        store = self._tables.current().store(request.store)
        return self._inputs.moment(store.spec, named(request.moments))

    async def locate_key(
        self, request: fleet_service_pb2.LocateKeyRequest, _context: Context
    ) -> fleet_service_pb2.LocateKeyResponse:
        """Return where a key is."""
        return describe_key(self._tables.current(), request, self._health.suspects)

    async def await_input(
        self, request: fleet_service_pb2.AwaitInputRequest, context: Context
    ) -> fleet_service_pb2.AwaitInputResponse:
        """Wait for the processor."""
        store = self._tables.current().store(request.store)
        records = latest(request.records)
        deadline = self._times.deadline(context)
        token = await self._inputs.processed(store.spec.name, records, deadline, request.ByteSize())
        named = token.named_by(wire_version(version_in(self._application_id)))
        return fleet_service_pb2.AwaitInputResponse(at_least=named.to_proto())

    async def explain_get(
        self, request: fleet_service_pb2.ExplainGetRequest, context: Context
    ) -> fleet_service_pb2.ExplainGetResponse:
        """Look a key up and return each step."""
        return await self._explainer.explain_get(request, self._times.deadline(context))
