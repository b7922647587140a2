"""Scan and Count: every partition through the same dispatch, put together in key order.

Nodes are asked for raw bytes: the order of pages is that of serialized keys, and decoding once, here, is enough.
Each partition is read in one call, so each page reads one snapshot per partition. A partition that says it has
more than it returned (a page is bounded in bytes, too) holds the merged page back to its last key: beyond that
key nobody knows yet what it has.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable

from router.concurrency import map_bounded
from router.deadline import Deadline
from router.dispatch import Call, Dispatcher
from router.holder import TableHolder
from router.locate import freshness_of, refuse_forwarded
from router.table import StoreRoutes
from statehouse.errors import LookupFailure, Reason
from statehouse.paging import key_range, next_page_token, page_size
from statehouse.v1 import query_service_pb2, types_pb2

_AT_ONCE = 16
# Room that an answer keeps free for the token, the replicas' stamps and framing.
_RESERVED_BYTES = 32 * 1024


class Scatter:
    """Answers Scan and Count. Lives on the event loop."""

    def __init__(self, tables: TableHolder, dispatcher: Dispatcher, *, max_message_bytes: int) -> None:
        self._tables, self._dispatcher = tables, dispatcher
        self._max_entry_bytes = max_message_bytes - _RESERVED_BYTES

    async def scan(self, request: query_service_pb2.ScanRequest, deadline: Deadline) -> query_service_pb2.ScanResponse:
        """Return a page over all partitions, or over the one the request names.

        Raises:
            LookupFailure: the request is wrong, or a partition failed; the message names it.

        """
        refuse_forwarded(request.forwarding)
        store = self._tables.current().store(request.store)
        key_range(request, store.key_serde)  # refuses a wrong range or token before any node is asked
        size = page_size(request)
        to_node = query_service_pb2.ScanRequest()
        to_node.CopyFrom(request)
        to_node.raw, to_node.page_size = True, size
        to_node.ClearField("partition")
        body = to_node.SerializeToString()

        async def read(partition: int) -> query_service_pb2.ScanResponse:
            part = query_service_pb2.ScanRequest(partition=partition).SerializeToString()
            answer = await self._ask(store, "Scan", partition, body + part, request.freshness, deadline)
            return query_service_pb2.ScanResponse.FromString(answer)

        wanted = _partitions(store, request.partition if request.HasField("partition") else None)
        pages = await map_bounded(read, wanted, at_once=_AT_ONCE)
        entries, has_more = self._merged(request, pages, size)
        response = query_service_pb2.ScanResponse(
            entries=entries if request.raw else [_typed(store, entry) for entry in entries],
            replicas=[stamp for page in pages for stamp in page.replicas],
        )
        if has_more:
            response.next_page_token = next_page_token(request, entries[-1].key.raw)
        return response

    async def count(
        self, request: query_service_pb2.CountRequest, deadline: Deadline
    ) -> query_service_pb2.CountResponse:
        """Return the sum over all partitions, or the count of the one the request names.

        Raises:
            LookupFailure: the request is wrong, or a partition failed; the message names it.

        """
        refuse_forwarded(request.forwarding)
        store = self._tables.current().store(request.store)
        to_node = query_service_pb2.CountRequest()
        to_node.CopyFrom(request)
        to_node.ClearField("partition")
        body = to_node.SerializeToString()

        async def read(partition: int) -> query_service_pb2.CountResponse:
            part = query_service_pb2.CountRequest(partition=partition).SerializeToString()
            answer = await self._ask(store, "Count", partition, body + part, request.freshness, deadline)
            return query_service_pb2.CountResponse.FromString(answer)

        wanted = _partitions(store, request.partition if request.HasField("partition") else None)
        counts = await map_bounded(read, wanted, at_once=_AT_ONCE)
        return query_service_pb2.CountResponse(
            count=sum(part.count for part in counts),
            exact=all(part.exact for part in counts),
            replicas=[stamp for part in counts for stamp in part.replicas],
        )

    async def _ask(
        self,
        store: StoreRoutes,
        method: str,
        partition: int,
        body: bytes,
        freshness: types_pb2.Freshness,
        deadline: Deadline,
    ) -> bytes:
        """Ask for one partition; its failure names it."""
        call = Call(method, store.spec.name, partition, body, freshness_of(freshness), is_patient=True)
        try:
            return (await self._dispatcher.dispatch(call, deadline)).data
        except LookupFailure as failure:
            raise LookupFailure(
                failure.reason,
                f"partition {partition}: {failure.message}",
                failure.metadata | {"partition": str(partition)},
                route=failure.route,
                candidates=failure.candidates,
            ) from failure

    def _merged(
        self,
        request: query_service_pb2.ScanRequest,
        pages: list[query_service_pb2.ScanResponse],
        size: int,
    ) -> tuple[list[query_service_pb2.Entry], bool]:
        """Return the page's entries in order, and whether more are left."""
        merged = heapq.merge(*(page.entries for page in pages), key=_key_of, reverse=request.reverse)
        unfinished = [page for page in pages if page.next_page_token]
        if not all(page.entries for page in unfinished):
            raise LookupFailure(Reason.INTERNAL, "a node says it has more entries and returned none")
        cut_short = [_key_of(page.entries[-1]) for page in unfinished]
        known_to = (max if request.reverse else min)(cut_short) if cut_short else None
        entries: list[query_service_pb2.Entry] = []
        room = self._max_entry_bytes
        for entry in itertools.islice(merged, size):
            key = _key_of(entry)
            if known_to is not None and (key < known_to if request.reverse else key > known_to):
                return entries, True
            room -= entry.ByteSize() + 8
            if room < 0 and entries:
                return entries, True
            entries.append(entry)
        return entries, bool(entries) and (known_to is not None or _count(pages) > len(entries))


def _count(pages: Iterable[query_service_pb2.ScanResponse]) -> int:
    return sum(len(page.entries) for page in pages)


def _key_of(entry: query_service_pb2.Entry) -> bytes:
    return entry.key.raw


def _partitions(store: StoreRoutes, only: int | None) -> list[int]:
    if only is None:
        return list(range(len(store.partitions)))
    return [store.partition(only).partition]


def _typed(store: StoreRoutes, entry: query_service_pb2.Entry) -> query_service_pb2.Entry:
    """Show a raw entry by the store's serdes."""
    try:
        key = types_pb2.Key(text=store.key_serde.text(entry.key.raw))
        return query_service_pb2.Entry(key=key, value=store.value_serde.value(entry.value.raw))
    except ValueError as error:
        raise LookupFailure(
            Reason.VALUE_UNDECODABLE,
            f"the entry with the key bytes {entry.key.raw.hex()} does not decode by the store's serdes: {error}; "
            "scan with raw=true",
            {"store": store.spec.name, "key": entry.key.raw.hex()},
        ) from error
