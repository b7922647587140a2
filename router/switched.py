"""The router's services: each call is given to the version that serves when it comes, or to the one that it names.

A caller names a version as STORE@VERSION. All other calls of a router that has only one version pass through here
unread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError

from router.calls.channels import QUERY_SERVICE
from router.fleet_api.commit_tail import TopicPartition
from router.service import UNARY_METHODS
from router.version_core import VersionCore
from router.version_switch import VersionSwitch, until_left
from router.watches.watch_relay import SendResponse
from statehouse.contract.version_names import FIRST, plain_store, version_of
from statehouse.errors import LookupFailure
from statehouse.link.link import CALLS, LinkContext, LinkHandler
from statehouse.rpc.authorized import address_of
from statehouse.rpc.deadline import Deadline, HasTime
from statehouse.rpc.status import Context, failing_cleanly, send_to
from statehouse.rpc.streams import PROGRESS_INTERVAL_S
from statehouse.serdes.wire import framed, result_of
from statehouse.v1 import fleet_service_pb2, fleet_service_pb2_grpc, query_service_pb2, types_pb2

log = structlog.get_logger(__name__)

T = TypeVar("T")

_AT: Final = b"@"
_BATCH_GET: Final = "BatchGet"
# A processor that is killed just then has started again by that time. A version that doesn't keep up would keep a watch
# from what lookups show.
_AS_NEW_S: Final = 120.0
_TOLD_S: Final = 5.0
"""Within it a processor that lives tells of a batch whose records are there."""

_Seen = dict[TopicPartition, int]
"""Where the inputs end of what a watch has passed on, in all versions."""


class _OfStore(Protocol):
    """A request that names a store."""

    store: str


class SwitchedQueries:
    """QueryService of all versions."""

    def __init__(self, switch: VersionSwitch, core_of_snapshot: Callable[[int], VersionCore]) -> None:
        """`core_of_snapshot`: returns the core by whose snapshot the proxy has made calls."""
        self._switch, self._core_of_snapshot = switch, core_of_snapshot

    def register(self, server: grpc.aio.Server) -> None:
        """Add the service to a server; by hand, because the generated code would parse every message."""
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            method: grpc.unary_unary_rpc_method_handler(partial(failing_cleanly(_unary(method)), self))
            for method in UNARY_METHODS
        }
        handlers["Watch"] = grpc.unary_stream_rpc_method_handler(
            partial(_watch, self), query_service_pb2.WatchRequest.FromString
        )
        server.add_registered_method_handlers(QUERY_SERVICE, handlers)

    @property
    def proxied(self) -> Mapping[str, LinkHandler]:
        """The handlers for calls that the proxy sends over the link."""
        return {method: partial(self.answer, method) for method in UNARY_METHODS if method in CALLS.values()}

    def answer(self, method: str, data: bytes, context: HasTime) -> Awaitable[bytes]:
        """Answer a serialized request of a method.

        Raises:
            LookupFailure: as the method.

        """
        core = self._switch.serving
        if isinstance(context, LinkContext) and context.snapshot:
            core = self._core_of_snapshot(context.snapshot)
        if _AT in data:  # in a key or a token, or behind a store's name
            if method == _BATCH_GET:
                return self._batch(core, data, context)
            version, data = _read(data)
            core = self._switch.named(version) if version else core
        return core.unary[method](data, context)

    async def _batch(self, core: VersionCore, data: bytes, context: HasTime) -> bytes:
        """Answer a batch: the lookups of each version on their own."""
        try:
            batch = query_service_pb2.BatchGetRequest.FromString(data)
        except DecodeError:
            return await core.unary[_BATCH_GET](data, context)
        named = [version_of(each.store) for each in batch.requests]
        if not any(named):
            return await core.unary[_BATCH_GET](data, context)
        results: list[bytes] = [b""] * len(named)
        for version in dict.fromkeys(named):
            places = [place for place, each in enumerate(named) if each == version]
            part = query_service_pb2.BatchGetRequest(requests=[batch.requests[place] for place in places])
            for each in part.requests:
                each.store = plain_store(each.store)
            for place, result in zip(places, await self._part(core, version, part, context), strict=True):
                results[place] = result
        return framed(results)

    async def _part(
        self, core: VersionCore, version: str, part: query_service_pb2.BatchGetRequest, context: HasTime
    ) -> Sequence[bytes]:
        try:
            core = self._switch.named(version) if version else core
        except LookupFailure as failure:
            return [result_of(failure)] * len(part.requests)
        # What the proxy has sent to nodes is of other lookups than those that name a version.
        data = await core.unary[_BATCH_GET](part.SerializeToString(), _straight(context))
        return [each.SerializeToString() for each in query_service_pb2.BatchGetResponse.FromString(data).results]

    async def watch(self, request: query_service_pb2.WatchRequest, context: Context) -> None:
        """Answer a Watch for as long as the caller stays, over switches, too.

        Raises:
            LookupFailure: as `WatchRelay.watch`.

        """
        version, request.store = version_of(request.store), plain_store(request.store)
        send, address = send_to(context), address_of(context)
        if version:
            await self._switch.named(version).handlers.watch(request, send, address)
            return
        core, reached, seen = self._switch.serving, dict[int, int](), _Seen()
        await _telling(send, request, self._resume_at(request, core, seen))
        while await until_left(core, core.handlers.watch(request, send, address, reached)):
            before, (core, bounds) = core, await self._entered(send, request, reached, core, seen)
            request = _anew(request, bounds)
            for response in _left_over(request, before, core):
                await send(response.SerializeToString())
            reached.clear()

    async def _entered(
        self,
        send: SendResponse,
        request: query_service_pb2.WatchRequest,
        reached: Mapping[int, int],
        before: VersionCore,
        seen: _Seen,
    ) -> tuple[VersionCore, types_pb2.Freshness]:
        """Return the version that a watch goes on with, and how new it must be. Waits, as long as it serves."""
        while True:
            core, bounds = self._switch.serving, types_pb2.Freshness()

            async def wait(after: VersionCore = core, bounds: types_pb2.Freshness = bounds) -> None:
                bounds.CopyFrom(await _telling(send, request, self._as_new(request, reached, before, after, seen)))

            if not await until_left(core, wait()):
                return core, bounds

    async def _resume_at(self, request: query_service_pb2.WatchRequest, core: VersionCore, seen: _Seen) -> None:
        """Have a watch that another version's has led up to a position begin with no older values."""
        theirs = next((each.version for each in request.resume if each.version != core.wire), None)
        if theirs is None or request.freshness.HasField("at_least") or request.freshness.HasField("moment"):
            return
        try:
            before = self._switch.named(theirs or FIRST)
        except LookupFailure:
            return  # it is retired: nobody knows what it had read
        reached = {each.partition: each.position for each in request.resume if each.version == theirs}
        request.freshness.MergeFrom(await self._as_new(request, reached, before, core, seen))

    @staticmethod
    async def _as_new(
        request: query_service_pb2.WatchRequest,
        reached: Mapping[int, int],
        before: VersionCore,
        after: VersionCore,
        seen: _Seen,
    ) -> types_pb2.Freshness:
        """Return how new a version is that has all input of what other ones' watches have passed on; add to `seen`.

        Without a bound, if that can't be known, or not in time: a processor doesn't say, or reads other topics.
        """
        store, bounds = request.store, types_pb2.Freshness()
        deadline = Deadline.after(_AS_NEW_S)
        try:
            async with asyncio.timeout_at(deadline.at):
                if not await before.inputs.has(store):
                    return bounds
                for place, offset in (await before.inputs.sources_at(store, reached, _TOLD_S)).items():
                    seen[place] = max(offset, seen.get(place, 0))
            records = {place: offset - 1 for place, offset in seen.items() if offset}
            token = await after.inputs.processed(store, records, deadline, len(records))
        except (TimeoutError, LookupFailure) as failure:
            log.info("a watch goes on without its version from before", store=store, reason=str(failure))
            return bounds
        if not request.mark_moments:
            bounds.at_least.CopyFrom(token.named_by(after.wire).to_proto())
        elif moment := after.inputs.moment_with(store, records):
            bounds.moment.at_least.CopyFrom(moment.to_proto())
        return bounds


def _unary(method: str) -> Callable[[SwitchedQueries, bytes, HasTime], Awaitable[bytes]]:
    async def handler(self: SwitchedQueries, data: bytes, context: HasTime) -> bytes:
        return await self.answer(method, data, context)

    handler.__name__ = method
    return handler


async def _watch_switched(self: SwitchedQueries, request: query_service_pb2.WatchRequest, context: Context) -> None:
    """Answer a Watch."""
    await self.watch(request, context)


_watch_switched.__name__ = "Watch"
_watch = failing_cleanly(_watch_switched)


def _straight(context: HasTime) -> HasTime:
    """Return the context of a call that comes from its caller straight."""
    if not isinstance(context, LinkContext) or context.handed is None:
        return context
    return LinkContext(context.until, context.shown, None, context.caller)


def _read(data: bytes) -> tuple[str, bytes]:
    """Return the version that a serialized request names with its store, and the request without it.

    All requests have the store in their first field.
    """
    try:
        store = fleet_service_pb2.ListPartitionsRequest.FromString(data).store
    except DecodeError:  # as the handler says
        return "", data
    version = version_of(store)
    if not version:
        return "", data
    # If a field comes twice, the last one counts.
    return version, data + fleet_service_pb2.ListPartitionsRequest(store=plain_store(store)).SerializeToString()


async def _telling(send: SendResponse, request: query_service_pb2.WatchRequest, work: Coroutine[Any, Any, T]) -> T:
    """Do the work of a watch; meanwhile its caller hears that it goes on."""
    notice = query_service_pb2.WatchResponse()
    if request.mark_moments:
        notice.mark.SetInParent()
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=PROGRESS_INTERVAL_S))[0]:
            await send(notice.SerializeToString())
        return task.result()
    finally:
        task.cancel()


def _anew(request: query_service_pb2.WatchRequest, bounds: types_pb2.Freshness) -> query_service_pb2.WatchRequest:
    """Return the watch of another version: from its current values on, as positions are of the version before."""
    anew = query_service_pb2.WatchRequest()
    anew.CopyFrom(request)
    anew.ClearField("resume")
    anew.freshness.CopyFrom(bounds)
    return anew


def _left_over(
    request: query_service_pb2.WatchRequest, before: VersionCore, after: VersionCore
) -> list[query_service_pb2.WatchResponse]:
    """Return what replaces partitions by nothing that the version from now on doesn't have."""
    if before.tables.table is None or after.tables.table is None:
        return []
    counts = [
        len(routes.partitions) if (routes := core.tables.table.stores.get(request.store)) is not None else 0
        for core in (before, after)
        if core.tables.table is not None
    ]
    return [_nothing(partition) for partition in range(counts[1], counts[0])]


def _nothing(partition: int) -> query_service_pb2.WatchResponse:
    response = query_service_pb2.WatchResponse(current=True, begins=True)
    response.replica.partition = partition
    return response


class SwitchedFleet(fleet_service_pb2_grpc.FleetServiceServicer):
    """FleetService of all versions."""

    def __init__(self, switch: VersionSwitch) -> None:
        self._switch = switch

    async def _get_fleet(
        self, request: fleet_service_pb2.GetFleetRequest, context: Context
    ) -> fleet_service_pb2.GetFleetResponse:
        """Describe the fleet of a version, the processor's queries, and who assigns."""
        response = await self._switch.named(request.version).fleet.get_fleet(request, context)
        response.versions.CopyFrom(self._switch.describe())
        return response

    async def _list_stores(
        self, request: fleet_service_pb2.ListStoresRequest, context: Context
    ) -> fleet_service_pb2.ListStoresResponse:
        return await self._switch.serving.fleet.list_stores(request, context)

    async def _list_nodes(
        self, request: fleet_service_pb2.ListNodesRequest, context: Context
    ) -> fleet_service_pb2.ListNodesResponse:
        return await self._switch.serving.fleet.list_nodes(request, context)

    async def _list_partitions(
        self, request: fleet_service_pb2.ListPartitionsRequest, context: Context
    ) -> fleet_service_pb2.ListPartitionsResponse:
        return await self._core_of(request).fleet.list_partitions(request, context)

    async def _list_changelogs(
        self, request: fleet_service_pb2.ListChangelogsRequest, context: Context
    ) -> fleet_service_pb2.ListChangelogsResponse:
        return await self._switch.serving.fleet.list_changelogs(request, context)

    async def _get_moment(
        self, request: fleet_service_pb2.GetMomentRequest, context: Context
    ) -> fleet_service_pb2.GetMomentResponse:
        return await self._core_of(request).fleet.get_moment(request, context)

    async def _locate_key(
        self, request: fleet_service_pb2.LocateKeyRequest, context: Context
    ) -> fleet_service_pb2.LocateKeyResponse:
        return await self._core_of(request).fleet.locate_key(request, context)

    async def _await_input(
        self, request: fleet_service_pb2.AwaitInputRequest, context: Context
    ) -> fleet_service_pb2.AwaitInputResponse:
        """Wait for the processor."""
        return await self._core_of(request).fleet.await_input(request, context)

    async def _explain_get(
        self, request: fleet_service_pb2.ExplainGetRequest, context: Context
    ) -> fleet_service_pb2.ExplainGetResponse:
        """Look a key up and return each step."""
        return await self._core_of(request.lookup).fleet.explain_get(request, context)

    async def _watch_fleet(self, request: fleet_service_pb2.WatchFleetRequest, context: Context) -> None:
        """Describe the fleet of the version that serves, for as long as the caller stays."""
        send, address = send_to(context), address_of(context)
        core = self._switch.serving
        while await until_left(core, core.fleet.watches.watch(request, send, address)):
            core = self._switch.serving

    def _core_of(self, request: _OfStore) -> VersionCore:
        """Return the core that a request is for, and have it name its store without a version.

        Raises:
            LookupFailure: UNKNOWN_VERSION.

        """
        version = version_of(request.store)
        if version:
            request.store = plain_store(request.store)
        return self._switch.named(version)

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
