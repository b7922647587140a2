"""Lookups of single keys on this node: the latest value, windows, sessions, versions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from query_service.admission import Admission, AdmittedBefore
from query_service.kinds import of_kind, wrong_kind
from query_service.metrics import NodeMetrics, Query
from query_service.open_scans import OpenScans
from query_service.position_waits import PositionNotReached
from query_service.replica import StoreReplica
from query_service.stores.base import Page
from query_service.stores.custom import CustomQueries
from query_service.stores.key_value import KeyValueStore
from query_service.stores.versioned import BeforeHistory, VersionedStore
from query_service.stores.windows import TimedStore
from query_service.values import decoded_value
from statehouse import ordered_keys, paging
from statehouse.composite import SessionKey, WindowKey
from statehouse.errors import LookupFailure, Reason, internal_error
from statehouse.serdes import from_json_value, json_value, shown_value
from statehouse.topology import SESSION, WINDOW
from statehouse.v1 import query_service_pb2, types_pb2

log = structlog.get_logger(__name__)

K = TypeVar("K", WindowKey, SessionKey)


class LookupEngine:
    """Answers about single keys."""

    def __init__(
        self,
        admission: Admission,
        open_scans: OpenScans,
        metrics: NodeMetrics,
        *,
        max_batch_entries: int,
        max_message_bytes: int,
    ) -> None:
        self._admission, self._open_scans, self._metrics = admission, open_scans, metrics
        self._max_batch_entries = max_batch_entries
        self._max_page_bytes = paging.page_bytes(max_message_bytes)

    def get(self, request: query_service_pb2.GetRequest) -> query_service_pb2.GetResponse:
        """Read one key.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        response = query_service_pb2.GetResponse()
        value, stamp = self._read(request, None)
        fill(response, value, stamp)
        return response

    def _read(
        self, request: query_service_pb2.GetRequest, before: AdmittedBefore | None
    ) -> tuple[types_pb2.Value | None, types_pb2.ReplicaStamp]:
        started = time.perf_counter()
        served, key, replica, stamp = self._admission.admit_key(request, before)
        data = _latest(replica, key)
        if data is None and served.spec.is_global:
            # "Not found" takes all partitions, and is said by the one that the key should be in.
            for other, other_stamp in self._admission.other_partitions(served, replica.partition, request):
                data = _latest(other, key)
                if data is not None:
                    stamp = other_stamp
                    break
        replica.metrics.reads[Query.GET].add(started, 0 if data is None else len(data))
        return None if data is None else decoded_value(served, data, raw=request.raw), stamp

    def batch_get(self, batch: query_service_pb2.BatchGetRequest) -> query_service_pb2.BatchGetResponse:
        """Read several keys; each has its own outcome.

        Raises:
            LookupFailure: INVALID_REQUEST, the batch is larger than max_batch_entries.

        """
        if len(batch.requests) > self._max_batch_entries:
            raise LookupFailure(
                Reason.INVALID_REQUEST,
                f"{len(batch.requests)} lookups in a batch, at most {self._max_batch_entries} are taken: split it",
            )
        response = query_service_pb2.BatchGetResponse()
        before: AdmittedBefore = {}
        for request in batch.requests:
            try:
                value, stamp = self._read(request, before)
                fill(response.results.add().response, value, stamp)
            except PositionNotReached as behind:
                # The others' answers must not wait for this one's position.
                self._add_failure(response, LookupFailure(Reason.WOULD_WAIT, behind.message, behind.metadata))
            except LookupFailure as failure:
                self._add_failure(response, failure)
            except Exception:
                log.exception("defect in a lookup of a batch", store=request.store)
                self._add_failure(response, internal_error())
        return response

    def _add_failure(self, response: query_service_pb2.BatchGetResponse, failure: LookupFailure) -> None:
        self._metrics.batch_entry_failed(failure.reason.name)
        response.results.add(error=failure.to_proto())

    async def fetch_windows(
        self, request: query_service_pb2.FetchWindowsRequest
    ) -> query_service_pb2.FetchWindowsResponse:
        """Read a page of a key's windows.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        started = time.perf_counter()
        served, key, replica, stamp = self._admission.admit_key(request)
        store = of_kind(replica, TimedStore, "FetchWindows", WINDOW)
        first_ms, last_ms = paging.time_span(request)
        page, token = await self._timed_page(
            replica, store, key, request, lambda window: first_ms <= window.start_ms <= last_ms, (first_ms, last_ms)
        )
        replica.metrics.reads[Query.FETCH_WINDOWS].add(started, _size(page))
        response = query_service_pb2.FetchWindowsResponse(replica=stamp, next_page_token=token)
        for window, data in page.entries:
            value = shown_value(served.value_serde, data, raw=request.raw)
            end_ms = window.start_ms + served.spec.window_size_ms
            response.windows.add(start_ms=window.start_ms, end_ms=end_ms, value=value)
        return response

    async def fetch_sessions(
        self, request: query_service_pb2.FetchSessionsRequest
    ) -> query_service_pb2.FetchSessionsResponse:
        """Read a page of a key's sessions.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        started = time.perf_counter()
        served, key, replica, stamp = self._admission.admit_key(request)
        store = of_kind(replica, TimedStore, "FetchSessions", SESSION)
        first_ms, last_ms = paging.time_span(request)
        # A session is filed by its end, which may be long after the span: only the first bound limits the segments.
        page, token = await self._timed_page(
            replica,
            store,
            key,
            request,
            lambda session: session.end_ms >= first_ms and session.start_ms <= last_ms,
            (first_ms, paging.LAST_MS),
        )
        replica.metrics.reads[Query.FETCH_SESSIONS].add(started, _size(page))
        response = query_service_pb2.FetchSessionsResponse(replica=stamp, next_page_token=token)
        for session, data in page.entries:
            value = shown_value(served.value_serde, data, raw=request.raw)
            response.sessions.add(start_ms=session.start_ms, end_ms=session.end_ms, value=value)
        return response

    def get_as_of(self, request: query_service_pb2.GetAsOfRequest) -> query_service_pb2.GetAsOfResponse:
        """Read the value a key had at a time.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        started = time.perf_counter()
        served, key, replica, stamp = self._admission.admit_key(request)
        store = of_kind(replica, VersionedStore, "GetAsOf")
        if not request.HasField("as_of_ms"):
            version = store.get(key)
        elif request.as_of_ms < 0:
            raise LookupFailure(Reason.INVALID_REQUEST, "as_of_ms must not be negative")
        else:
            try:
                version = store.get_as_of(key, request.as_of_ms)
            except BeforeHistory as error:
                raise LookupFailure(
                    Reason.BEFORE_HISTORY, str(error), {"history_start_ms": str(store.history_start_ms)}
                ) from error
        replica.metrics.reads[Query.GET_AS_OF].add(started, 0 if version is None else len(version.value))
        if version is None:
            return query_service_pb2.GetAsOfResponse(found=False, replica=stamp)
        value = decoded_value(served, version.value, raw=request.raw)
        return query_service_pb2.GetAsOfResponse(
            found=True, value=value, timestamp_ms=version.timestamp_ms, replica=stamp
        )

    async def query_store(self, request: query_service_pb2.QueryStoreRequest) -> query_service_pb2.QueryStoreResponse:
        """Ask a custom store a query of its own.

        Raises:
            LookupFailure: this node can't answer, or the store's query failed; the reason says why.

        """
        started = time.perf_counter()
        _, key, replica, stamp = self._admission.admit_key(request)
        store, spec, name = replica.store, replica.spec, request.query
        if not isinstance(store, CustomQueries):
            raise wrong_kind(replica, "QueryStore")
        if name not in store.query_names:
            raise LookupFailure(
                Reason.INVALID_REQUEST,
                f"{spec.name} has no query {name!r}; there are: {', '.join(sorted(store.query_names))}",
                {"store": spec.name, "query": name},
            )
        arguments = {field: from_json_value(value) for field, value in request.arguments.fields.items()}
        try:
            # A plug-in may take its time: it must not take the event loop's.
            result = json_value(await self._open_scans.run(replica, lambda _walk: store.query(name, key, arguments)))
        except LookupFailure:
            raise
        except Exception as error:
            log.exception("a custom store's query failed", store=spec.name, kind=spec.kind, query=name)
            raise LookupFailure(
                Reason.INTERNAL,
                f"query {name!r} of {spec.name} failed: {type(error).__name__}: {error}",
                {"store": spec.name, "query": name},
            ) from error
        replica.metrics.reads[Query.CUSTOM].add(started, 0)
        return query_service_pb2.QueryStoreResponse(result=result, replica=stamp)

    async def _timed_page(
        self,
        replica: StoreReplica,
        store: TimedStore[K],
        key: bytes,
        request: query_service_pb2.FetchWindowsRequest | query_service_pb2.FetchSessionsRequest,
        accept: Callable[[K], bool],
        span_ms: tuple[int, int],
    ) -> tuple[Page[tuple[K, bytes]], str]:
        """Return a page of one key's entries, and the token of the next."""
        prefix = ordered_keys.escaped(key)
        keys = paging.after_page(paging.KeyRange(prefix, paging.after_prefix(prefix), request.reverse), request)
        limit = paging.page_size(request)
        page = await self._open_scans.run(
            replica, lambda walk: store.scan(keys, accept, *span_ms, limit, self._max_page_bytes, walk)
        )
        token = paging.next_page_token(request, page.entries[-1][0].to_entry_key()) if page.more else ""
        return page, token


def fill(response: query_service_pb2.GetResponse, value: types_pb2.Value | None, stamp: types_pb2.ReplicaStamp) -> None:
    """Make an answer in place: a message made by itself and then copied into its batch costs three times as much."""
    response.found = value is not None
    if value is not None:
        response.value.MergeFrom(value)
    response.replica.MergeFrom(stamp)


def _size(page: Page[tuple[K, bytes]]) -> int:
    """Return the bytes of a page's values."""
    return sum(len(data) for _, data in page.entries)


def _latest(replica: StoreReplica, key: bytes) -> bytes | None:
    """Return a key's latest value from a store that has one per key."""
    store = replica.store
    if isinstance(store, VersionedStore):
        version = store.get(key)
        return None if version is None else version.value
    return of_kind(replica, KeyValueStore, "Get").get(key)
