"""Scans: reads pages of a range, and counts, in one or several partitions or in a global store."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

from query_service.reads.admission import Admission
from query_service.reads.fleet_view import ServedStore
from query_service.reads.moments import Admitted, agreed
from query_service.reads.open_scans import OpenScans
from query_service.reads.page_responses import serialized_page
from query_service.reads.store_queries import before_history, of_kind, refuse_negative, wrong_kind
from query_service.reads.time_ranges import TimeRange, sessions_in, windows_in
from query_service.reads.value_ages import refuse_old_values
from query_service.replicas.replica import StoreReplica
from query_service.stores.base import RangePage
from query_service.stores.key_value import KeyValueStore
from query_service.stores.timestamps import shown_timestamp
from query_service.stores.versioned import BeforeHistory, VersionedStore
from query_service.stores.walk import Walk
from query_service.stores.windows import TimedStore
from query_service.telemetry.metrics import ReadKind
from statehouse.contract import paging
from statehouse.contract.moments import MomentBound
from statehouse.contract.partitioning import partition_for
from statehouse.contract.scan_ranges import entry_key_range, key_range
from statehouse.contract.topology import SESSION, WINDOW
from statehouse.errors import LookupFailure, Reason
from statehouse.keys.composite import SessionKey, WindowKey
from statehouse.serdes import shown_key, shown_value
from statehouse.v1 import query_service_pb2, types_pb2

T = TypeVar("T")


class ScanHandler:
    """Answers scans and counts. A page shows each of its partitions as it is at the position in the stamp."""

    def __init__(self, admission: Admission, open_scans: OpenScans, *, max_message_bytes: int) -> None:
        self._admission, self._open_scans = admission, open_scans
        self._max_message_bytes, self._max_page_bytes = max_message_bytes, paging.page_bytes(max_message_bytes)

    async def scan(self, request: query_service_pb2.ScanRequest) -> bytes:
        """Read a page of the partitions that the request names, or of all of a global store's.

        Returns:
            A ScanResponse, serialized.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        started = time.perf_counter()
        served = self._admission.store(request.store).asked(exact=request.json_text)
        keys = key_range(request, served.key_serde)
        admitted = self._admitted(served, request)
        limit, max_bytes = paging.page_size(request), self._max_page_bytes // len(admitted)
        scans = [_scan_of(each.replica, request) for each in admitted]
        stores = [each.replica.store for each in admitted]
        _refuse_gaps(keys, stores)
        try:
            pages = await self._pages(admitted, [partial(scan, keys, limit, max_bytes) for scan in scans])
        except BeforeHistory as error:
            raise before_history(error) from error
        if served.spec.is_global:
            page = _one_per_key(pages, limit, reverse=request.reverse)
        else:
            page = _in_order(pages, itemgetter(0), limit, reverse=request.reverse)
        refuse_old_values(request, (entry[2] for entry in page.entries))
        size = sum(len(key) + len(data) for key, data, _ in page.entries)
        admitted[0].replica.metrics.reads[_query(request)].add(started, size)

        def show(found: tuple[bytes, bytes, int]) -> query_service_pb2.Entry:
            key, data, timestamp_ms = found
            return query_service_pb2.Entry(
                key=shown_key(served.key_serde, key, raw=request.raw),
                value=shown_value(served.value_serde, data, raw=request.raw),
                timestamp_ms=shown_timestamp(timestamp_ms),
            )

        stamps = [each.stamp for each in admitted]
        return await serialized_page(request, page, stamps, show, itemgetter(0), self._max_message_bytes)

    async def scan_windows(self, request: query_service_pb2.ScanWindowsRequest) -> bytes:
        """Read a page of the windows of the partitions that the request names.

        Returns:
            A ScanWindowsResponse, serialized.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        started = time.perf_counter()
        served = self._admission.store(request.store).asked(exact=request.json_text)
        page, admitted = await self._timed_page(served, request, WINDOW, windows_in(request))
        size = sum(len(entry.key) + len(data) for entry, data, _ in page.entries)
        admitted[0].replica.metrics.reads[ReadKind.SCAN_WINDOWS].add(started, size)

        def show(found: tuple[WindowKey, bytes, int]) -> query_service_pb2.KeyedWindow:
            entry, data, timestamp_ms = found
            return query_service_pb2.KeyedWindow(
                key=shown_key(served.key_serde, entry.key, raw=request.raw),
                window=query_service_pb2.Window(
                    start_ms=entry.start_ms,
                    end_ms=entry.start_ms + served.spec.window_size_ms,
                    value=shown_value(served.value_serde, data, raw=request.raw),
                    timestamp_ms=shown_timestamp(timestamp_ms),
                ),
                sequence=entry.sequence,
            )

        stamps = [each.stamp for each in admitted]
        return await serialized_page(request, page, stamps, show, _entry_key, self._max_message_bytes)

    async def scan_sessions(self, request: query_service_pb2.ScanSessionsRequest) -> bytes:
        """Read a page of the sessions of the partitions that the request names.

        Returns:
            A ScanSessionsResponse, serialized.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        started = time.perf_counter()
        served = self._admission.store(request.store).asked(exact=request.json_text)
        page, admitted = await self._timed_page(served, request, SESSION, sessions_in(request))
        size = sum(len(entry.key) + len(data) for entry, data, _ in page.entries)
        admitted[0].replica.metrics.reads[ReadKind.SCAN_SESSIONS].add(started, size)

        def show(found: tuple[SessionKey, bytes, int]) -> query_service_pb2.KeyedSession:
            entry, data, timestamp_ms = found
            return query_service_pb2.KeyedSession(
                key=shown_key(served.key_serde, entry.key, raw=request.raw),
                session=query_service_pb2.Session(
                    start_ms=entry.start_ms,
                    end_ms=entry.end_ms,
                    value=shown_value(served.value_serde, data, raw=request.raw),
                    timestamp_ms=shown_timestamp(timestamp_ms),
                ),
            )

        stamps = [each.stamp for each in admitted]
        return await serialized_page(request, page, stamps, show, _entry_key, self._max_message_bytes)

    async def count(self, request: query_service_pb2.CountRequest) -> query_service_pb2.CountResponse:
        """Count the entries of one partition, or of all partitions of a global store.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        started = time.perf_counter()
        served = self._admission.store(request.store)
        if request.freshness.HasField("max_value_age_ms"):
            raise LookupFailure(
                Reason.INVALID_REQUEST, "a count shows no values: max_value_age_ms is for reads of these"
            )
        admitted = self._admitted(served, request)
        count = 0
        for each in admitted:
            replica = each.replica
            if request.exact or each.moment is not None:  # what is kept is the number of what there is now
                count += await self._open_scans.read(each, replica.store.exact_count)
            elif replica.is_elsewhere:
                count += await self._open_scans.run([replica], partial(_approximate, replica))
            else:
                count += replica.store.approximate_count()
        admitted[0].replica.metrics.reads[ReadKind.COUNT].add(started, 0)
        return query_service_pb2.CountResponse(
            count=count, exact=request.exact, replicas=[each.stamp for each in admitted]
        )

    async def _timed_page(
        self,
        served: ServedStore,
        request: paging.TimedRangeRequest,
        kind: str,
        span: TimeRange[Any],
    ) -> tuple[RangePage[tuple[Any, bytes, int]], Sequence[Admitted]]:
        """Read a page of entries by key and time; return it with who was read."""
        keys = entry_key_range(request, served.key_serde)
        admitted = self._admitted(served, request)
        limit, max_bytes = paging.page_size(request), self._max_page_bytes // len(admitted)
        query = request.DESCRIPTOR.name.removesuffix("Request")
        stores = [of_kind(each.replica, TimedStore, query, kind) for each in admitted]
        scans = [
            partial(store.scan_with_timestamps, keys, span.accept, span.first_ms, span.last_ms, limit, max_bytes)
            for store in stores
        ]
        pages = await self._pages(admitted, scans)
        page = _in_order(pages, _entry_key, limit, reverse=request.reverse)
        refuse_old_values(request, (entry[2] for entry in page.entries))
        return page, admitted

    async def _pages(
        self,
        admitted: Sequence[Admitted],
        scans: Sequence[Callable[[Walk], RangePage[T]]],
    ) -> list[RangePage[T]]:
        """Read a page of each replica, of its batch or between two writes, and stamp it with the position of that."""

        def read(walk: Walk) -> list[RangePage[T]]:
            pages = []
            for each, scan in zip(admitted, scans, strict=True):
                if each.moment is not None:
                    with each.reading():
                        pages.append(scan(walk))
                    continue
                page, position = each.replica.at_rest(walk, partial(scan, walk))
                _move(each.stamp, position)
                pages.append(page)
            return pages

        return await self._open_scans.run([each.replica for each in admitted], read)

    def _admitted(
        self, served: ServedStore, request: paging.RangeRequest | query_service_pb2.CountRequest
    ) -> Sequence[Admitted]:
        partitions = self._admission.partitions(served, request)
        of_page = None if isinstance(request, query_service_pb2.CountRequest) else paging.bound_of_page(request)

        def admit(place: int, moment: MomentBound | None = None) -> Admitted:
            return self._admission.admit(served, partitions[place], request.freshness, request.forwarding, moment)

        return agreed([admit(place, of_page) for place in range(len(partitions))], admit)


def _approximate(replica: StoreReplica, _walk: Walk) -> int:
    return replica.store.approximate_count()


def _move(stamp: types_pb2.ReplicaStamp, position: int) -> None:
    """Stamp an answer with the position of what was read, which may be after that at which it was admitted."""
    if stamp.HasField("lag"):
        stamp.lag = max(0, stamp.lag - (position - stamp.position))
    stamp.position = position


def _scan_of(
    replica: StoreReplica, request: query_service_pb2.ScanRequest
) -> Callable[[paging.KeyRange, int, int, Walk], RangePage[tuple[bytes, bytes, int]]]:
    """Return the function that reads a page of a replica's keys, their values and timestamps.

    Raises:
        LookupFailure: WRONG_STORE_KIND; INVALID_REQUEST, `as_of_ms` is negative.

    """
    store = replica.store
    if not isinstance(store, VersionedStore):
        if request.HasField("as_of_ms"):
            raise wrong_kind(replica, "Scan as of a time")
        return of_kind(replica, KeyValueStore, "Scan").scan_with_timestamps
    as_of_ms = request.as_of_ms if request.HasField("as_of_ms") else None
    refuse_negative("as_of_ms", as_of_ms or 0)
    return lambda keys, limit, max_bytes, walk: store.scan(paging.escaped_range(keys), limit, max_bytes, walk, as_of_ms)


def _refuse_gaps(keys: paging.KeyRange, stores: Sequence[object]) -> None:
    """Refuse a range that a store of its own code would read with what is in its gaps.

    Raises:
        LookupFailure: INVALID_REQUEST.

    """
    if keys.gaps and any(isinstance(each, KeyValueStore) and not each.scans_engine for each in stores):
        raise LookupFailure(
            Reason.INVALID_REQUEST,
            "this store scans by code of its own, which knows ranges of bytes: ask for the numbers below zero, and for "
            "those from zero on, by raw keys",
        )


def _in_order(
    pages: Sequence[RangePage[T]], key_of: Callable[[T], bytes], limit: int, *, reverse: bool
) -> RangePage[T]:
    """Merge the pages of partitions that have no key in common."""
    if len(pages) == 1:
        return pages[0]
    merged = paging.merged(
        [paging.PartialPage(page.entries, page.more) for page in pages], key_of, limit, reverse=reverse
    )
    return RangePage(list(merged.items), more=merged.has_more)


def _one_per_key(
    pages: Sequence[RangePage[tuple[bytes, bytes, int]]], limit: int, *, reverse: bool
) -> RangePage[tuple[bytes, bytes, int]]:
    """Merge the pages of a global store's partitions. If several have a key, show the entry that Get would find.

    That is the one with the latest timestamp; of several such the one where the key should be, else the first.
    """
    parts = [
        paging.PartialPage([(*entry, number) for entry in page.entries], page.more) for number, page in enumerate(pages)
    ]
    # As many more as it takes for the last key that is shown to come with all its entries.
    merged = paging.merged(parts, itemgetter(0), limit + len(pages) - 1, reverse=reverse)
    entries: list[tuple[bytes, bytes, int]] = []
    taken = 0
    for key, group in itertools.groupby(merged.items, itemgetter(0)):
        if taken >= limit:
            return RangePage(entries, more=True)
        copies = list(group)
        taken += len(copies)
        home = partition_for(key, len(pages))
        entries.append(min(copies, key=lambda copy: (-copy[2], copy[3] != home, copy[3]))[:3])
    return RangePage(entries, more=merged.has_more)


def _entry_key(found: tuple[WindowKey | SessionKey, bytes, int]) -> bytes:
    return found[0].to_entry_key()


def _query(request: query_service_pb2.ScanRequest) -> ReadKind:
    """Return the kind of a scan, for the metrics."""
    if request.HasField("prefix"):
        return ReadKind.PREFIX
    return ReadKind.RANGE if request.HasField("from_key") or request.HasField("to_key") else ReadKind.ALL
