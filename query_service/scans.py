"""Reads of many keys of one or several partitions, or of a global store: pages of a range, and counts."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from query_service.admission import Admission
from query_service.kinds import of_kind
from query_service.metrics import Query
from query_service.open_scans import OpenScans
from query_service.replica import StoreReplica
from query_service.stores.base import Page
from query_service.stores.key_value import KeyValueStore
from query_service.stores.windows import TimedStore
from query_service.view import ServedStore
from statehouse import paging
from statehouse.composite import WindowKey
from statehouse.partitioning import partition_for
from statehouse.serdes import shown_key, shown_value
from statehouse.topology import WINDOW
from statehouse.v1 import query_service_pb2, types_pb2

T = TypeVar("T")


class ScanEngine:
    """Answers about ranges. Each page reads one moment."""

    def __init__(self, admission: Admission, open_scans: OpenScans, *, max_message_bytes: int) -> None:
        self._admission, self._open_scans = admission, open_scans
        self._max_page_bytes = paging.page_bytes(max_message_bytes)

    async def scan(self, request: query_service_pb2.ScanRequest) -> query_service_pb2.ScanResponse:
        """Read a page of the partitions that the request names, or of all of a global store.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        started = time.perf_counter()
        served = self._admission.store(request.store)
        keys = paging.key_range(request, served.key_serde)
        admitted = self._admitted(served, request)
        limit, max_bytes = paging.page_size(request), self._max_page_bytes // len(admitted)
        stores = [of_kind(replica, KeyValueStore, "Scan") for replica, _ in admitted]
        pages = await self._open_scans.run(
            [replica for replica, _ in admitted],
            lambda walk: [store.scan(keys, limit, max_bytes, walk) for store in stores],
        )
        if served.spec.is_global:
            page = _one_per_key(pages, limit, reverse=request.reverse)
        else:
            page = _in_order(pages, lambda entry: entry[0], limit, reverse=request.reverse)
        size = sum(len(key) + len(data) for key, data in page.entries)
        admitted[0][0].metrics.reads[_query(request)].add(started, size)
        response = query_service_pb2.ScanResponse(replicas=[stamp for _, stamp in admitted])
        for key, data in page.entries:
            response.entries.add(
                key=shown_key(served.key_serde, key, raw=request.raw),
                value=shown_value(served.value_serde, data, raw=request.raw),
            )
        if page.more:
            response.next_page_token = paging.next_page_token(request, page.entries[-1][0])
        return response

    async def scan_windows(
        self, request: query_service_pb2.ScanWindowsRequest
    ) -> query_service_pb2.ScanWindowsResponse:
        """Read a page of the windows of the partitions that the request names.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        started = time.perf_counter()
        served = self._admission.store(request.store)
        keys = paging.entry_key_range(request, served.key_serde)
        admitted = self._admitted(served, request)
        limit, max_bytes = paging.page_size(request), self._max_page_bytes // len(admitted)
        stores = [of_kind(replica, TimedStore, "ScanWindows", WINDOW) for replica, _ in admitted]
        first_ms, last_ms = paging.time_span(request)

        def is_asked_for(window: WindowKey) -> bool:
            return first_ms <= window.start_ms <= last_ms

        pages = await self._open_scans.run(
            [replica for replica, _ in admitted],
            lambda walk: [
                store.scan(keys, is_asked_for, first_ms, last_ms, limit, max_bytes, walk) for store in stores
            ],
        )
        page = _in_order(pages, lambda entry: entry[0].to_entry_key(), limit, reverse=request.reverse)
        size = sum(len(entry.key) + len(data) for entry, data in page.entries)
        admitted[0][0].metrics.reads[Query.SCAN_WINDOWS].add(started, size)
        response = query_service_pb2.ScanWindowsResponse(replicas=[stamp for _, stamp in admitted])
        for entry, data in page.entries:
            response.windows.add(
                key=shown_key(served.key_serde, entry.key, raw=request.raw),
                window=query_service_pb2.Window(
                    start_ms=entry.start_ms,
                    end_ms=entry.start_ms + served.spec.window_size_ms,
                    value=shown_value(served.value_serde, data, raw=request.raw),
                ),
                sequence=entry.sequence,
            )
        if page.more:
            response.next_page_token = paging.next_page_token(request, page.entries[-1][0].to_entry_key())
        return response

    async def count(self, request: query_service_pb2.CountRequest) -> query_service_pb2.CountResponse:
        """Count the entries of one partition, or of all of a global store.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        started = time.perf_counter()
        served = self._admission.store(request.store)
        admitted = self._admitted(served, request)
        count = 0
        for replica, _ in admitted:
            if request.exact:
                count += await self._open_scans.run([replica], replica.store.exact_count)
            else:
                count += replica.store.approximate_count()
        admitted[0][0].metrics.reads[Query.COUNT].add(started, 0)
        return query_service_pb2.CountResponse(
            count=count, exact=request.exact, replicas=[stamp for _, stamp in admitted]
        )

    def _admitted(
        self, served: ServedStore, request: paging.RangeRequest | query_service_pb2.CountRequest
    ) -> list[tuple[StoreReplica, types_pb2.ReplicaStamp]]:
        return [
            self._admission.admit(served, partition, request.freshness, request.forwarding)
            for partition in self._admission.partitions(served, request)
        ]


def _in_order(pages: Sequence[Page[T]], key_of: Callable[[T], bytes], limit: int, *, reverse: bool) -> Page[T]:
    """Put the pages of partitions that have no key in common together."""
    if len(pages) == 1:
        return pages[0]
    merged = paging.merged([paging.Part(page.entries, page.more) for page in pages], key_of, limit, reverse=reverse)
    return Page(list(merged.items), more=merged.has_more)


def _one_per_key(pages: Sequence[Page[tuple[bytes, bytes]]], limit: int, *, reverse: bool) -> Page[tuple[bytes, bytes]]:
    """Put the pages of a global store's partitions together; of a key in several, show the entry that Get would find.

    That is the one in the partition that the key should be in, else in the first.
    """
    parts = [paging.Part([(*entry, number) for entry in page.entries], page.more) for number, page in enumerate(pages)]
    # So many more that the last key shown is there with all its entries.
    merged = paging.merged(parts, lambda entry: entry[0], limit + len(pages) - 1, reverse=reverse)
    entries: list[tuple[bytes, bytes]] = []
    taken = 0
    for key, group in itertools.groupby(merged.items, lambda entry: entry[0]):
        if taken >= limit:
            return Page(entries, more=True)
        copies = list(group)
        taken += len(copies)
        home = partition_for(key, len(pages))
        entries.append((key, min(copies, key=lambda copy: (copy[2] != home, copy[2]))[1]))
    return Page(entries, more=merged.has_more)


def _query(request: query_service_pb2.ScanRequest) -> Query:
    """Return what a scan is asked for."""
    if request.HasField("prefix"):
        return Query.PREFIX
    return Query.RANGE if request.HasField("from_key") or request.HasField("to_key") else Query.ALL
