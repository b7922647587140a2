"""Reads of many keys of one partition: pages of a range, and counts."""

from __future__ import annotations

import asyncio

from query_service.admission import Admission
from query_service.kinds import of_kind
from query_service.stores.key_value import KeyValueStore
from query_service.values import shown_key, value_or_raw
from statehouse import paging
from statehouse.v1 import query_service_pb2, types_pb2


class ScanEngine:
    """Answers about ranges. Each page reads one moment, in a worker thread."""

    def __init__(self, admission: Admission, *, max_message_bytes: int) -> None:
        self._admission = admission
        # JSON values grow when they are typed; a page of a quarter of the message leaves room for it.
        self._max_page_bytes = max_message_bytes // 4

    async def scan(self, request: query_service_pb2.ScanRequest) -> query_service_pb2.ScanResponse:
        """Read a page of one partition.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        served = self._admission.store(request.store)
        keys = paging.key_range(request, served.key_serde)
        partition = self._admission.partition(served, request)
        replica, stamp = self._admission.admit(served, partition, request.freshness, request.forwarding)
        limit, max_bytes = paging.page_size(request), self._max_page_bytes
        store = of_kind(replica, KeyValueStore, "Scan")
        page = await asyncio.to_thread(store.scan, keys, limit, max_bytes)
        response = query_service_pb2.ScanResponse(replicas=[stamp])
        for key, data in page.entries:
            shown = types_pb2.Key(raw=key) if request.raw else shown_key(served, key)
            response.entries.add(key=shown, value=value_or_raw(served, data, raw=request.raw))
        if page.more:
            response.next_page_token = paging.next_page_token(request, page.entries[-1][0])
        return response

    async def count(self, request: query_service_pb2.CountRequest) -> query_service_pb2.CountResponse:
        """Count the entries of one partition.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        served = self._admission.store(request.store)
        partition = self._admission.partition(served, request)
        replica, stamp = self._admission.admit(served, partition, request.freshness, request.forwarding)
        if request.exact:
            count = await asyncio.to_thread(replica.store.exact_count)
        else:
            count = replica.store.approximate_count()
        return query_service_pb2.CountResponse(count=count, exact=request.exact, replicas=[stamp])
