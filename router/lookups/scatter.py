"""Scan, ScanWindows, ScanSessions and Count: every partition through the same dispatch, put together in key order.

Nodes are asked for raw bytes: pages are in the order of serialized keys, and decoding once, here, is enough. Where a
serde is a plug-in, which only nodes need, they are asked for the keys' bytes beside what they decoded.
Each partition is read in one call, so each page reads one snapshot per partition. A page is bounded in bytes, too:
a partition may have more than it returned.

For a page a node is called once for all partitions whose first candidate it is. If it can't answer for all of them,
each is read by its own call, like a lookup, so that a failure names its partition. Counts may take long: they use one
call for each partition, so that a failed call loses as little as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar, cast

from router.calls.concurrency import map_bounded
from router.calls.group_calls import GroupCalls
from router.choice.attempt_log import OF_NODE
from router.choice.candidates import ask_order
from router.fleet.current_table import CurrentTable
from router.fleet.table import RoutedNode, StoreRoutes
from router.lookups.dispatch import NONE_FAILED, Call, Dispatcher
from router.lookups.locate import freshness_of, refuse_forwarded
from router.telemetry.metrics import RouterMetrics
from statehouse.batches import BatchCapacity
from statehouse.composite import SessionKey, WindowKey
from statehouse.consistency import Freshness
from statehouse.errors import LookupFailure, Reason
from statehouse.paging import PartialPage, entry_key_range, key_range, merged, next_page_token, page_size
from statehouse.rpc.deadline import Deadline
from statehouse.serdes import Serde, shown_key, shown_value
from statehouse.v1 import query_service_pb2
from statehouse.waiting import in_turns

Request = TypeVar(
    "Request",
    query_service_pb2.ScanRequest,
    query_service_pb2.ScanWindowsRequest,
    query_service_pb2.ScanSessionsRequest,
)
Item = TypeVar("Item", query_service_pb2.Entry, query_service_pb2.KeyedWindow, query_service_pb2.KeyedSession)
PartitionRequest = TypeVar(
    "PartitionRequest",
    query_service_pb2.ScanRequest,
    query_service_pb2.ScanWindowsRequest,
    query_service_pb2.ScanSessionsRequest,
    query_service_pb2.CountRequest,
)

_AT_ONCE = 16
# A call for several partitions gets one of so many equal shares of the time left, because calls may follow it.
_SHARES = 3
# Room that an answer keeps free for the token, the replicas' stamps and framing.
_RESERVED_BYTES = 32 * 1024
# What framing adds to an entry, rounded up.
_ENTRY_OVERHEAD = 8


@dataclass(frozen=True, slots=True)
class _Scope:
    """What a request reads: these partitions of a store; `partitions` None: one copy of a global store as a whole."""

    store: StoreRoutes
    method: str
    freshness: Freshness
    partitions: Sequence[int] | None


_PageMessage = (
    query_service_pb2.ScanResponse | query_service_pb2.ScanWindowsResponse | query_service_pb2.ScanSessionsResponse
)


@dataclass(frozen=True, slots=True)
class _PageKind:
    """One of the three scans: they differ in the items of their pages, and in these things about them.

    The types of its functions are as wide as the three need together.
    """

    method: str
    message: Any
    check: Callable[[Any, Serde], object]
    items: Callable[[Any], Any]
    order: Callable[[Any], bytes]
    typed: Callable[[StoreRoutes, Any], Any]


class Scatter:
    """Answers Scan, ScanWindows, ScanSessions and Count. Lives on the event loop."""

    def __init__(
        self,
        tables: CurrentTable,
        calls: GroupCalls,
        dispatcher: Dispatcher,
        metrics: RouterMetrics,
        *,
        max_message_bytes: int,
    ) -> None:
        self._tables, self._calls, self._dispatcher, self._metrics = tables, calls, dispatcher, metrics
        self._max_entry_bytes = max_message_bytes - _RESERVED_BYTES

    async def scan(self, request: query_service_pb2.ScanRequest, deadline: Deadline) -> query_service_pb2.ScanResponse:
        """Return a page over all partitions, or over the one the request names.

        Raises:
            LookupFailure: the request is wrong, or a partition failed; the message names it.

        """
        return cast("query_service_pb2.ScanResponse", await self._scan(_ENTRIES, request, deadline))

    async def scan_windows(
        self, request: query_service_pb2.ScanWindowsRequest, deadline: Deadline
    ) -> query_service_pb2.ScanWindowsResponse:
        """Return a page of windows over all partitions, or over the one the request names; raises as `scan`."""
        return cast("query_service_pb2.ScanWindowsResponse", await self._scan(_WINDOWS, request, deadline))

    async def scan_sessions(
        self, request: query_service_pb2.ScanSessionsRequest, deadline: Deadline
    ) -> query_service_pb2.ScanSessionsResponse:
        """Return a page of sessions over all partitions, or over the one the request names; raises as `scan`."""
        return cast("query_service_pb2.ScanSessionsResponse", await self._scan(_SESSIONS, request, deadline))

    async def _scan(self, kind: _PageKind, request: Request, deadline: Deadline) -> _PageMessage:
        store = self._store(request)
        kind.check(request, store.key_serde)  # refuses a wrong range or token before any node is asked
        answers = await self._read_page(store, kind.method, request, deadline)
        responses = [kind.message.FromString(answer) for answer in answers]
        parts = [PartialPage(kind.items(response), bool(response.next_page_token)) for response in responses]
        items, token = await self._page(request, parts, kind.order, _shown(request, store, kind.typed))
        page: _PageMessage = kind.message(
            next_page_token=token, replicas=[stamp for response in responses for stamp in response.replicas]
        )
        kind.items(page).extend(items)
        return page

    async def count(
        self, request: query_service_pb2.CountRequest, deadline: Deadline
    ) -> query_service_pb2.CountResponse:
        """Return the sum over all partitions, or the count of the one the request names.

        Raises:
            LookupFailure: the request is wrong, or a partition failed; the message names it.

        """
        store = self._store(request)
        scope = self._scope(store, "Count", request)
        if scope.partitions is None:
            answers = [await self._ask_copy(scope, request, deadline)]
        else:
            answers = await self._ask_each(scope, request, scope.partitions, deadline)
        counts = [query_service_pb2.CountResponse.FromString(answer) for answer in answers]
        return query_service_pb2.CountResponse(
            count=sum(part.count for part in counts),
            exact=all(part.exact for part in counts),
            replicas=[stamp for part in counts for stamp in part.replicas],
        )

    def _store(self, request: PartitionRequest) -> StoreRoutes:
        refuse_forwarded(request.forwarding)
        return self._tables.current().store(request.store)

    def _scope(self, store: StoreRoutes, method: str, request: PartitionRequest) -> _Scope:
        freshness = freshness_of(request.freshness)
        if request.HasField("partition"):
            return _Scope(store, method, freshness, [store.partition(request.partition).partition])
        return _Scope(store, method, freshness, None if store.spec.is_global else range(len(store.partitions)))

    async def _read_page(self, store: StoreRoutes, method: str, request: Request, deadline: Deadline) -> list[bytes]:
        """Return pages that together cover all partitions, or the one the request names; keys and values are raw.

        Raises:
            LookupFailure: INVALID_REQUEST; or a partition failed, and the message names it.

        """
        if request.partitions:
            raise LookupFailure(
                Reason.INVALID_REQUEST, "partitions is for nodes: to a router, name one partition or none for all"
            )
        scope = self._scope(store, method, request)
        to_node = type(request)()
        to_node.CopyFrom(request)
        to_node.raw_keys = store.nodes_decode and not request.raw
        to_node.raw, to_node.page_size = not to_node.raw_keys, page_size(request)
        if scope.partitions is None:
            return [await self._ask_copy(scope, to_node, deadline)]
        read = partial(self._ask_group, scope, to_node, deadline)
        answers = await map_bounded(read, self._by_node(scope, scope.partitions), at_once=_AT_ONCE)
        return [answer for group in answers for answer in group]

    def _by_node(self, scope: _Scope, partitions: Sequence[int]) -> list[tuple[RoutedNode | None, list[int]]]:
        """Return the partitions by the node to ask first; those under None are read by a call each."""
        if scope.freshness.at_least is not None:
            return [(None, list(partitions))]  # one that must wait for its position would hold up the others
        groups: dict[RoutedNode | None, list[int]] = {}
        for partition in partitions:
            order = ask_order(scope.store.partitions[partition], scope.freshness, self._calls.suspects)
            groups.setdefault(order[0].node if order else None, []).append(partition)
        return list(groups.items())

    async def _ask_group(
        self, scope: _Scope, to_node: Request, deadline: Deadline, group: tuple[RoutedNode | None, Sequence[int]]
    ) -> list[bytes]:
        """Ask a node for several partitions in one call; if it can't answer for all, read each by its own call."""
        node, partitions = group
        if node is None or len(partitions) == 1:
            return await self._ask_each(scope, to_node, partitions, deadline)
        body = to_node.SerializeToString() + type(to_node)(partitions=partitions).SerializeToString()
        # A share of the time, as each candidate of a partition gets one.
        timeout_s = max(min(deadline.remaining_s, self._calls.attempt_timeout_s), deadline.remaining_s / _SHARES)
        forwarding = self._tables.current().forwarding
        outcome = await self._calls.make(node, scope.method, body + forwarding, deadline, timeout_s, kind=None)
        self._metrics.attempt("OK" if isinstance(outcome, bytes) else outcome.reason.name)
        if isinstance(outcome, bytes):
            return [outcome]
        failed_before = {node.instance_id: outcome} if outcome.reason in OF_NODE else {}
        return await self._ask_each(scope, to_node, partitions, deadline, failed_before)

    async def _ask_copy(self, scope: _Scope, to_node: PartitionRequest, deadline: Deadline) -> bytes:
        """Read a global store: every node has all partitions, so one node answers for them together."""
        call = Call(
            scope.method, scope.store.spec.name, 0, to_node.SerializeToString(), scope.freshness, is_patient=True
        )
        return (await self._dispatcher.dispatch(call, deadline)).data

    async def _ask_each(
        self,
        scope: _Scope,
        to_node: PartitionRequest,
        partitions: Sequence[int],
        deadline: Deadline,
        failed_before: Mapping[str, LookupFailure] = NONE_FAILED,
    ) -> list[bytes]:
        """Return the answers for these partitions, each by a call of its own."""
        body = to_node.SerializeToString()

        async def read(partition: int) -> bytes:
            part = type(to_node)(partition=partition).SerializeToString()  # on the wire the last one counts
            call = Call(
                scope.method,
                scope.store.spec.name,
                partition,
                body + part,
                scope.freshness,
                is_patient=True,
                failed_before=failed_before,
            )
            return await self._ask(call, deadline)

        return await map_bounded(read, partitions, at_once=_AT_ONCE)

    async def _ask(self, call: Call, deadline: Deadline) -> bytes:
        """Read one partition; a failure names it."""
        try:
            return (await self._dispatcher.dispatch(call, deadline)).data
        except LookupFailure as failure:
            raise LookupFailure(
                failure.reason,
                f"partition {call.partition}: {failure.message}",
                failure.metadata | {"partition": str(call.partition)},
                route=failure.route,
                candidates=failure.candidates,
            ) from failure

    async def _page(
        self,
        request: Request,
        parts: Sequence[PartialPage[Item]],
        key_of: Callable[[Item], bytes],
        shown: Callable[[Item], Item],
    ) -> tuple[list[Item], str]:
        """Return the page's items, converted by `shown` and as many as one answer holds, and the next page's token."""
        page = merged(parts, key_of, page_size(request), reverse=request.reverse)
        items: list[Item] = []
        room = BatchCapacity(len(page.items), self._max_entry_bytes, _ENTRY_OVERHEAD)
        async for item in in_turns(page.items):
            entry = shown(item)
            if not room.takes(entry.ByteSize()):
                return items, next_page_token(request, key_of(page.items[len(items) - 1]))
            items.append(entry)
        return items, next_page_token(request, key_of(page.items[-1])) if page.has_more else ""


def _shown(request: Request, store: StoreRoutes, typed: Callable[[StoreRoutes, Item], Item]) -> Callable[[Item], Item]:
    """Return how this request's items are shown."""
    if request.raw:
        return _as_is
    return _without_raw_key if store.nodes_decode else partial(typed, store)


def _as_is(item: Item) -> Item:
    return item


def _without_raw_key(item: Item) -> Item:
    # A copy: the token of the next page is made from the item's key.
    shown = type(item)()
    shown.CopyFrom(item)
    shown.ClearField("raw_key")
    return shown


def _key(item: query_service_pb2.Entry | query_service_pb2.KeyedWindow | query_service_pb2.KeyedSession) -> bytes:
    """Return an item's serialized key."""
    return item.raw_key or item.key.raw


def _window_entry_key(window: query_service_pb2.KeyedWindow) -> bytes:
    return WindowKey(_key(window), window.window.start_ms, window.sequence).to_entry_key()


def _session_entry_key(session: query_service_pb2.KeyedSession) -> bytes:
    return SessionKey(_key(session), session.session.start_ms, session.session.end_ms).to_entry_key()


def _typed_entry(store: StoreRoutes, entry: query_service_pb2.Entry) -> query_service_pb2.Entry:
    """Show a raw entry by the store's serdes."""
    return query_service_pb2.Entry(
        key=shown_key(store.key_serde, entry.key.raw, raw=False),
        value=shown_value(store.value_serde, entry.value.raw, raw=False),
        timestamp_ms=entry.timestamp_ms if entry.HasField("timestamp_ms") else None,
    )


def _typed_window(store: StoreRoutes, window: query_service_pb2.KeyedWindow) -> query_service_pb2.KeyedWindow:
    """Show a raw window by the store's serdes."""
    typed = query_service_pb2.KeyedWindow()
    typed.CopyFrom(window)
    typed.key.CopyFrom(shown_key(store.key_serde, window.key.raw, raw=False))
    typed.window.value.CopyFrom(shown_value(store.value_serde, window.window.value.raw, raw=False))
    return typed


def _typed_session(store: StoreRoutes, session: query_service_pb2.KeyedSession) -> query_service_pb2.KeyedSession:
    """Show a raw session by the store's serdes."""
    typed = query_service_pb2.KeyedSession()
    typed.CopyFrom(session)
    typed.key.CopyFrom(shown_key(store.key_serde, session.key.raw, raw=False))
    typed.session.value.CopyFrom(shown_value(store.value_serde, session.session.value.raw, raw=False))
    return typed


_ENTRIES: Final = _PageKind(
    "Scan", query_service_pb2.ScanResponse, key_range, lambda page: page.entries, _key, _typed_entry
)
_WINDOWS: Final = _PageKind(
    "ScanWindows",
    query_service_pb2.ScanWindowsResponse,
    entry_key_range,
    lambda page: page.windows,
    _window_entry_key,
    _typed_window,
)
_SESSIONS: Final = _PageKind(
    "ScanSessions",
    query_service_pb2.ScanSessionsResponse,
    entry_key_range,
    lambda page: page.sessions,
    _session_entry_key,
    _typed_session,
)
