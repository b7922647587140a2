"""Lookups of single keys on this node: the latest value, windows, sessions, versions."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import structlog

from query_service.reads.admission import Admission
from query_service.reads.decoded_values import decoded_value
from query_service.reads.fleet_view import ServedStore
from query_service.reads.get_responses import answer, stamped
from query_service.reads.open_scans import OpenScans
from query_service.reads.page_responses import shown_within, within_message
from query_service.reads.position_waits import PositionNotReached
from query_service.reads.store_queries import before_history, of_kind, refuse_negative, wrong_kind
from query_service.reads.time_ranges import TimeRange, sessions_in, windows_in
from query_service.replicas.replica import StoreReplica
from query_service.stores.base import RangePage
from query_service.stores.custom import CustomQueries
from query_service.stores.key_value import KeyValueStore
from query_service.stores.timestamps import Timestamped, shown_timestamp
from query_service.stores.versioned import BeforeHistory, VersionedStore, history_range, version_entry_key
from query_service.stores.windows import TimedStore
from query_service.telemetry.metrics import NodeMetrics, ReadKind
from statehouse import ordered_keys, paging
from statehouse.background import as_error
from statehouse.batches import too_large
from statehouse.composite import SessionKey, WindowKey
from statehouse.errors import SHOWN_MAX, LookupFailure, Reason, internal_error, shown
from statehouse.serdes import FetchNeeded, from_json_value, json_value, shown_value
from statehouse.topology import SESSION, WINDOW
from statehouse.v1 import query_service_pb2, types_pb2
from statehouse.wire import framed, refuse_too_many, refuse_too_much, result_of

log = structlog.get_logger(__name__)

K = TypeVar("K", WindowKey, SessionKey)


@dataclass(slots=True, eq=False)
class _Group:
    """Lookups of a batch that one replica answers, admitted together.

    `request` is one of them; all have the same bounds and forwarding. `entries` has for each lookup its index in the
    batch, its serialized key, and whether the caller wants the value raw.
    """

    served: ServedStore
    replica: StoreReplica
    read: Callable[[bytes], Timestamped | None]
    stamp: types_pb2.ReplicaStamp
    request: query_service_pb2.GetRequest
    entries: list[tuple[int, bytes, bool]] = field(default_factory=list)


class LookupHandler:
    """Answers lookups of single keys."""

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
        self._max_message_bytes, self._max_page_bytes = max_message_bytes, paging.page_bytes(max_message_bytes)

    def get(self, request: query_service_pb2.GetRequest) -> bytes:
        """Read one key; return a serialized GetResponse.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        started = time.perf_counter()
        served, key, replica, stamp = self._admission.admit_key(request)
        found = _reader(replica)(key)
        if found is None and served.spec.is_global:
            found, stamp = self._elsewhere(served, key, replica, stamp, request)
        replica.metrics.reads[ReadKind.GET].add(started, 0 if found is None else len(found[0]))
        return answer(served, found, raw=request.raw, stamp=stamped(stamp))

    def _elsewhere(
        self,
        served: ServedStore,
        key: bytes,
        replica: StoreReplica,
        stamp: types_pb2.ReplicaStamp,
        request: query_service_pb2.GetRequest,
    ) -> tuple[Timestamped | None, types_pb2.ReplicaStamp]:
        """Look in a global store's other partitions for a key that is not where it should be.

        If no partition has the key, the answer "not found" has the stamp of the partition where it should be.
        """
        for other, other_stamp in self._admission.other_partitions(served, replica.partition, request):
            found = _reader(other)(key)
            if found is not None:
                return found, other_stamp
        return None, stamp

    def parsed_batch(self, data: bytes) -> query_service_pb2.BatchGetRequest:
        """Parse a serialized BatchGetRequest.

        Raises:
            DecodeError: it is none.
            LookupFailure: INVALID_REQUEST, it has far more than max_batch_entries lookups.

        """
        refuse_too_much(data, self._max_batch_entries)
        return query_service_pb2.BatchGetRequest.FromString(data)

    def batch_get(self, batch: query_service_pb2.BatchGetRequest) -> bytes:
        """Read several keys; return a serialized BatchGetResponse. Each key has its own outcome.

        Lookups in one partition with the same bounds are admitted and read together. What can't fit into the answer is
        not read: a batch of large values would else take memory as if there were no largest message.

        Raises:
            LookupFailure: INVALID_REQUEST, the batch has more than max_batch_entries lookups; MESSAGE_TOO_LARGE, their
                results are more than max_message_bytes.

        """
        refuse_too_many(len(batch.requests), self._max_batch_entries)
        results: dict[int, bytes] = {}
        groups: dict[tuple[str, int, bytes, int, int], _Group] = {}
        for index, request in enumerate(batch.requests):
            try:
                served, key, partition = self._admission.place(request)
                bounds = request.freshness.SerializeToString() if request.HasField("freshness") else b""
                sender = request.forwarding
                shared = (request.store, partition, bounds, sender.epoch, sender.hops)
                group = groups.get(shared)
                if group is None:
                    group = groups[shared] = self._group(served, partition, request)
                group.entries.append((index, key, request.raw))
            except BaseException as caught:  # noqa: BLE001 - this entry fails alone; a defect is logged
                results[index] = self._failed(as_error(caught), request.store)
        room = self._max_message_bytes - sum(map(len, results.values()))
        for group in groups.values():
            if room >= 0:
                room = self._read(group, results, room)
        if room < 0:
            raise too_large(self._max_message_bytes)
        return framed(map(results.__getitem__, range(len(batch.requests))))

    def _group(self, served: ServedStore, partition: int, request: query_service_pb2.GetRequest) -> _Group:
        replica, stamp = self._admission.admit(served, partition, request.freshness, request.forwarding)
        return _Group(served, replica, _reader(replica), stamp, request)

    def _read(self, group: _Group, results: dict[int, bytes], room: int) -> int:
        """Read the keys of a group; return what is left of the room for results, in bytes.

        If it is negative, keys after that were not read. Each read counts as having taken an equal part of the time.
        """
        served, stamp = group.served, stamped(group.stamp)
        started, reads, size = time.perf_counter(), 0, 0
        for index, key, raw in group.entries:
            try:
                found, found_by = group.read(key), stamp
                if found is None and served.spec.is_global:
                    found, other = self._elsewhere(served, key, group.replica, group.stamp, group.request)
                    found_by = stamped(other)
                reads += 1
                size += 0 if found is None else len(found[0])
                result = result_of(answer(served, found, raw=raw, stamp=found_by))
            except BaseException as caught:  # noqa: BLE001 - as above
                result = self._failed(as_error(caught), served.spec.name)
            results[index] = result
            room -= len(result)
            if room < 0:
                break
        if reads:
            group.replica.metrics.reads[ReadKind.GET].add(started, size, reads)
        return room

    def _failed(self, error: Exception, store: str) -> bytes:
        """Return the result of an entry that failed, and count it."""
        if isinstance(error, PositionNotReached):
            # The answers to the other entries must not wait for this entry's position.
            error = LookupFailure(Reason.WOULD_WAIT, error.message, error.metadata)
        elif isinstance(error, FetchNeeded):
            error = LookupFailure(Reason.WOULD_WAIT, f"the value's schema is not known here yet: {error}")
        if not isinstance(error, LookupFailure):
            log.error("defect in a lookup of a batch", store=store, exc_info=error)
            error = internal_error()
        self._metrics.batch_entry_failed(error.reason.name)
        return result_of(error)

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
        page = await self._timed_page(replica, store, key, request, windows_in(request))
        replica.metrics.reads[ReadKind.FETCH_WINDOWS].add(started, _size(page))
        response = query_service_pb2.FetchWindowsResponse(replica=stamp)
        async for window, data, timestamp_ms in shown_within(page.entries, response.windows, self._max_message_bytes):
            value = shown_value(served.value_serde, data, raw=request.raw)
            end_ms = window.start_ms + served.spec.window_size_ms
            response.windows.add(
                start_ms=window.start_ms, end_ms=end_ms, value=value, timestamp_ms=shown_timestamp(timestamp_ms)
            )
        page = within_message(response, response.windows, page, self._max_message_bytes)
        if page.more:
            response.next_page_token = paging.next_page_token(request, page.entries[-1][0].to_entry_key())
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
        page = await self._timed_page(replica, store, key, request, sessions_in(request))
        replica.metrics.reads[ReadKind.FETCH_SESSIONS].add(started, _size(page))
        response = query_service_pb2.FetchSessionsResponse(replica=stamp)
        async for session, data, timestamp_ms in shown_within(page.entries, response.sessions, self._max_message_bytes):
            value = shown_value(served.value_serde, data, raw=request.raw)
            response.sessions.add(
                start_ms=session.start_ms,
                end_ms=session.end_ms,
                value=value,
                timestamp_ms=shown_timestamp(timestamp_ms),
            )
        page = within_message(response, response.sessions, page, self._max_message_bytes)
        if page.more:
            response.next_page_token = paging.next_page_token(request, page.entries[-1][0].to_entry_key())
        return response

    def get_as_of(self, request: query_service_pb2.GetAsOfRequest) -> query_service_pb2.GetAsOfResponse:
        """Read the value that a key had at a time.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        started = time.perf_counter()
        served, key, replica, stamp = self._admission.admit_key(request)
        store = of_kind(replica, VersionedStore, "GetAsOf")
        if not request.HasField("as_of_ms"):
            version = store.get(key)
        else:
            refuse_negative("as_of_ms", request.as_of_ms)
            try:
                version = store.get_as_of(key, request.as_of_ms)
            except BeforeHistory as error:
                raise before_history(error) from error
        replica.metrics.reads[ReadKind.GET_AS_OF].add(started, 0 if version is None else len(version.value))
        if version is None:
            return query_service_pb2.GetAsOfResponse(found=False, replica=stamp)
        value = decoded_value(served, version.value, raw=request.raw)
        return query_service_pb2.GetAsOfResponse(
            found=True, value=value, timestamp_ms=version.timestamp_ms, replica=stamp
        )

    async def get_history(self, request: query_service_pb2.GetHistoryRequest) -> query_service_pb2.GetHistoryResponse:
        """Read a page of a key's versions.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        started = time.perf_counter()
        served, key, replica, stamp = self._admission.admit_key(request)
        store = of_kind(replica, VersionedStore, "GetHistory")
        first_ms = request.from_ms if request.HasField("from_ms") else None
        last_ms = request.to_ms if request.HasField("to_ms") else None
        refuse_negative("from_ms", first_ms or 0)
        refuse_negative("to_ms", last_ms or 0)
        left = paging.after_page(history_range(key, reverse=request.reverse), request)
        limit, max_bytes = paging.page_size(request), self._max_page_bytes
        try:
            page, start_ms = await self._open_scans.run(
                [replica], lambda walk: store.history(key, left, first_ms, last_ms, limit, max_bytes, walk)
            )
        except BeforeHistory as error:
            raise before_history(error) from error
        replica.metrics.reads[ReadKind.GET_HISTORY].add(started, sum(len(version.value) for version in page.entries))
        response = query_service_pb2.GetHistoryResponse(replica=stamp, history_start_ms=start_ms)
        async for version in shown_within(page.entries, response.versions, self._max_message_bytes):
            response.versions.add(
                value=shown_value(served.value_serde, version.value, raw=request.raw),
                valid_from_ms=version.timestamp_ms,
                valid_to_ms=version.valid_to_ms,
            )
        page = within_message(response, response.versions, page, self._max_message_bytes)
        if page.more:
            last = version_entry_key(key, page.entries[-1].timestamp_ms)
            response.next_page_token = paging.next_page_token(request, last)
        return response

    async def query_store(self, request: query_service_pb2.QueryStoreRequest) -> query_service_pb2.QueryStoreResponse:
        """Run a custom store's own query.

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
                f"{spec.name} has no query {shown(name)}; there are: {', '.join(sorted(store.query_names))}",
                {"store": spec.name, "query": name[:SHOWN_MAX]},
            )
        arguments = {field: from_json_value(value) for field, value in request.arguments.fields.items()}
        try:
            # A plug-in may be slow, so it must not run on the event loop.
            result = json_value(await self._open_scans.run([replica], lambda _walk: store.query(name, key, arguments)))
        except LookupFailure:
            raise
        except Exception as error:
            log.exception("a custom store's query failed", store=spec.name, kind=spec.kind, query=name)
            raise LookupFailure(
                Reason.INTERNAL,
                f"query {name!r} of {spec.name} failed: {type(error).__name__}: {error}",
                {"store": spec.name, "query": name},
            ) from error
        replica.metrics.reads[ReadKind.CUSTOM].add(started, 0)
        return query_service_pb2.QueryStoreResponse(result=result, replica=stamp)

    async def _timed_page(
        self,
        replica: StoreReplica,
        store: TimedStore[K],
        key: bytes,
        request: query_service_pb2.FetchWindowsRequest | query_service_pb2.FetchSessionsRequest,
        span: TimeRange[K],
    ) -> RangePage[tuple[K, bytes, int]]:
        """Return a page of one key's entries."""
        prefix = ordered_keys.escaped(key)
        keys = paging.after_page(paging.KeyRange(prefix, paging.after_prefix(prefix), request.reverse), request)
        limit = paging.page_size(request)
        return await self._open_scans.run(
            [replica],
            lambda walk: store.scan_with_timestamps(
                keys, span.accept, span.first_ms, span.last_ms, limit, self._max_page_bytes, walk
            ),
        )


def _size(page: RangePage[tuple[K, bytes, int]]) -> int:
    """Return the size of a page's values, in bytes."""
    return sum(len(data) for _, data, _ in page.entries)


def _reader(replica: StoreReplica) -> Callable[[bytes], Timestamped | None]:
    """Return the function that reads a key's latest value. The store must have one latest value per key.

    Raises:
        LookupFailure: WRONG_STORE_KIND.

    """
    store = replica.store
    if isinstance(store, VersionedStore):
        return partial(_latest_version, store)
    return of_kind(replica, KeyValueStore, "Get").get_with_timestamp


def _latest_version(store: VersionedStore, key: bytes) -> Timestamped | None:
    version = store.get(key)
    return None if version is None else (version.value, version.timestamp_ms)
