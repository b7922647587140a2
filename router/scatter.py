"""Scan, ScanWindows and Count: every partition through the same dispatch, put together in key order.

Nodes are asked for raw bytes: the order of pages is that of serialized keys, and decoding once, here, is enough.
Each partition is read in one call, so each page reads one snapshot per partition. A page is bounded in bytes, too:
a partition may have more than it returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from router.concurrency import map_bounded
from router.dispatch import Call, Dispatcher
from router.holder import TableHolder
from router.locate import freshness_of, refuse_forwarded
from router.table import StoreRoutes
from statehouse.composite import WindowKey
from statehouse.errors import LookupFailure
from statehouse.paging import Part, entry_key_range, key_range, merged, next_page_token, page_size
from statehouse.rpc.deadline import Deadline
from statehouse.serdes import shown_key, shown_value
from statehouse.v1 import query_service_pb2

Request = TypeVar("Request", query_service_pb2.ScanRequest, query_service_pb2.ScanWindowsRequest)
Item = TypeVar("Item", query_service_pb2.Entry, query_service_pb2.KeyedWindow)
PartitionRequest = TypeVar(
    "PartitionRequest",
    query_service_pb2.ScanRequest,
    query_service_pb2.ScanWindowsRequest,
    query_service_pb2.CountRequest,
)

_AT_ONCE = 16
# Room that an answer keeps free for the token, the replicas' stamps and framing.
_RESERVED_BYTES = 32 * 1024


class Scatter:
    """Answers Scan, ScanWindows and Count. Lives on the event loop."""

    def __init__(self, tables: TableHolder, dispatcher: Dispatcher, *, max_message_bytes: int) -> None:
        self._tables, self._dispatcher = tables, dispatcher
        self._max_entry_bytes = max_message_bytes - _RESERVED_BYTES

    async def scan(self, request: query_service_pb2.ScanRequest, deadline: Deadline) -> query_service_pb2.ScanResponse:
        """Return a page over all partitions, or over the one the request names.

        Raises:
            LookupFailure: the request is wrong, or a partition failed; the message names it.

        """
        store = self._store(request)
        key_range(request, store.key_serde)  # refuses a wrong range or token before any node is asked
        answers = await self._read_page(store, "Scan", request, deadline)
        responses = [query_service_pb2.ScanResponse.FromString(answer) for answer in answers]
        parts = [Part(response.entries, bool(response.next_page_token)) for response in responses]
        shown = _as_is if request.raw else partial(_typed_entry, store)
        entries, token = self._page(request, parts, lambda entry: entry.key.raw, shown)
        return query_service_pb2.ScanResponse(
            entries=entries,
            next_page_token=token,
            replicas=[stamp for response in responses for stamp in response.replicas],
        )

    async def scan_windows(
        self, request: query_service_pb2.ScanWindowsRequest, deadline: Deadline
    ) -> query_service_pb2.ScanWindowsResponse:
        """Return a page of windows over all partitions, or over the one the request names.

        Raises:
            LookupFailure: the request is wrong, or a partition failed; the message names it.

        """
        store = self._store(request)
        entry_key_range(request, store.key_serde)  # as above
        answers = await self._read_page(store, "ScanWindows", request, deadline)
        responses = [query_service_pb2.ScanWindowsResponse.FromString(answer) for answer in answers]
        parts = [Part(response.windows, bool(response.next_page_token)) for response in responses]
        shown = _as_is if request.raw else partial(_typed_window, store)
        windows, token = self._page(request, parts, _entry_key, shown)
        return query_service_pb2.ScanWindowsResponse(
            windows=windows,
            next_page_token=token,
            replicas=[stamp for response in responses for stamp in response.replicas],
        )

    async def count(
        self, request: query_service_pb2.CountRequest, deadline: Deadline
    ) -> query_service_pb2.CountResponse:
        """Return the sum over all partitions, or the count of the one the request names.

        Raises:
            LookupFailure: the request is wrong, or a partition failed; the message names it.

        """
        store = self._store(request)
        answers = await self._ask_partitions(store, "Count", request, request, deadline)
        counts = [query_service_pb2.CountResponse.FromString(answer) for answer in answers]
        return query_service_pb2.CountResponse(
            count=sum(part.count for part in counts),
            exact=all(part.exact for part in counts),
            replicas=[stamp for part in counts for stamp in part.replicas],
        )

    def _store(self, request: PartitionRequest) -> StoreRoutes:
        refuse_forwarded(request.forwarding)
        return self._tables.current().store(request.store)

    async def _read_page(self, store: StoreRoutes, method: str, request: Request, deadline: Deadline) -> list[bytes]:
        """Return the page of each partition, with keys and values raw."""
        to_node = type(request)()
        to_node.CopyFrom(request)
        to_node.raw, to_node.page_size = True, page_size(request)
        return await self._ask_partitions(store, method, request, to_node, deadline)

    async def _ask_partitions(
        self, store: StoreRoutes, method: str, request: PartitionRequest, to_node: PartitionRequest, deadline: Deadline
    ) -> list[bytes]:
        """Return the answers of all partitions, or of the one that `request` names, to `to_node`."""
        freshness = freshness_of(request.freshness)
        only = store.partition(request.partition).partition if request.HasField("partition") else None

        body = to_node.SerializeToString()
        if store.spec.is_global and only is None:
            # Every node has all partitions: one answers for them together.
            call = Call(method, store.spec.name, 0, body, freshness, is_patient=True)
            return [(await self._dispatcher.dispatch(call, deadline)).data]

        async def read(partition: int) -> bytes:
            part = type(to_node)(partition=partition).SerializeToString()  # on the wire the last one counts
            call = Call(method, store.spec.name, partition, body + part, freshness, is_patient=True)
            return await self._ask(call, deadline)

        wanted = range(len(store.partitions)) if only is None else [only]
        return await map_bounded(read, wanted, at_once=_AT_ONCE)

    async def _ask(self, call: Call, deadline: Deadline) -> bytes:
        """Ask for one partition; its failure names it."""
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

    def _page(
        self,
        request: Request,
        parts: Sequence[Part[Item]],
        key_of: Callable[[Item], bytes],
        shown: Callable[[Item], Item],
    ) -> tuple[list[Item], str]:
        """Return the page, items as `shown` and no more than one answer holds, and the token of the next."""
        page = merged(parts, key_of, page_size(request), reverse=request.reverse)
        items: list[Item] = []
        room = self._max_entry_bytes
        for nth, item in enumerate(page.items):
            items.append(shown(item))
            room -= items[-1].ByteSize() + 8
            if room < 0 and nth > 0:
                return items[:-1], next_page_token(request, key_of(page.items[nth - 1]))
        return items, next_page_token(request, key_of(page.items[-1])) if page.has_more else ""


def _as_is(item: Item) -> Item:
    return item


def _entry_key(window: query_service_pb2.KeyedWindow) -> bytes:
    return WindowKey(window.key.raw, window.window.start_ms, window.sequence).to_entry_key()


def _typed_entry(store: StoreRoutes, entry: query_service_pb2.Entry) -> query_service_pb2.Entry:
    """Show a raw entry by the store's serdes."""
    return query_service_pb2.Entry(
        key=shown_key(store.key_serde, entry.key.raw, raw=False),
        value=shown_value(store.value_serde, entry.value.raw, raw=False),
    )


def _typed_window(store: StoreRoutes, window: query_service_pb2.KeyedWindow) -> query_service_pb2.KeyedWindow:
    """Show a raw window by the store's serdes."""
    typed = query_service_pb2.KeyedWindow()
    typed.CopyFrom(window)
    typed.key.CopyFrom(shown_key(store.key_serde, window.key.raw, raw=False))
    typed.window.value.CopyFrom(shown_value(store.value_serde, window.window.value.raw, raw=False))
    return typed
