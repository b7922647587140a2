"""Lookups of single keys on this node: the latest value, windows, sessions, versions."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import structlog

from query_service.reads.admission import Admission
from query_service.reads.batches import Batch, batch_of
from query_service.reads.decoded_values import decoded_value
from query_service.reads.disk_reads import DiskReads, HasLeft
from query_service.reads.fleet_view import ServedStore
from query_service.reads.get_responses import answer, stamped
from query_service.reads.open_scans import OpenScans, gave_up
from query_service.reads.page_responses import shown_within, within_message
from query_service.reads.position_waits import PositionNotReached
from query_service.reads.store_queries import arguments_of, before_history, of_kind, refuse_negative, wrong_kind
from query_service.reads.time_ranges import TimeRange, refuse_exchanged, sessions_in, windows_in
from query_service.replicas.replica import StoreReplica
from query_service.stores.base import RangePage
from query_service.stores.custom import CustomQueries
from query_service.stores.engine import StoreClosed, Unknown
from query_service.stores.key_value import KeyValueStore
from query_service.stores.timestamps import Timestamped, shown_timestamp
from query_service.stores.versioned import BeforeHistory, VersionedStore, history_range, version_entry_key
from query_service.stores.windows import TimedStore
from query_service.telemetry.metrics import NodeMetrics, ReadKind
from statehouse.contract import paging
from statehouse.contract.placement import Claim
from statehouse.contract.topology import SESSION, WINDOW
from statehouse.errors import SHOWN_MAX, LookupFailure, Reason, internal_error, shown
from statehouse.keys import ordered as ordered_keys
from statehouse.keys.composite import SessionKey, WindowKey
from statehouse.runtime.background import as_error
from statehouse.runtime.batches import too_large
from statehouse.serdes import FetchNeeded, json_value, shown_value
from statehouse.serdes.wire import framed, refuse_too_many, refuse_too_much, result_of
from statehouse.v1 import query_service_pb2, types_pb2

log = structlog.get_logger(__name__)

K = TypeVar("K", WindowKey, SessionKey)
R = TypeVar("R")


_Found = Timestamped | None
_FoundBy = tuple[_Found, types_pb2.ReplicaStamp]
_Outcome = _Found | Unknown | Exception


@dataclass(frozen=True, slots=True)
class DiskLookup:
    """Stands for an answer for which the disk must be read.

    `complete` reads it off the event loop and returns the answer. It raises LookupFailure as the lookup does, and
    FetchNeeded.
    """

    complete: Callable[[], Awaitable[bytes]]


BATCH_WAITS_S: Final = 0.02
"""A batch waits for the disk no longer than this, and a little longer for each key that isn't in memory: lookups of
several callers go together, and most need no disk. What is not read by then is asked for alone. A disk that is well
answers within it."""
_A_KEY_WAITS_S: Final = 0.002
OWN_BATCH_WAITS_S: Final = 1.0
"""The same for a batch of one caller that asks the node itself: nobody else's lookups wait with it."""
# Values are bounded in number as they are read, and in size only then: so many of the largest that Kafka takes by
# default are one message of ours. More at once are no faster.
_AT_ONCE: Final = 16

_Entry = tuple[int, bytes]
"""A lookup of a batch: its index, and its serialized key."""


@dataclass(slots=True, eq=False)
class _Group:
    """Lookups of a batch that one replica answers, admitted together.

    `request` is what they ask, but for their keys. `stamp_bytes` is the stamp as answers have it.
    `on_disk` has the entries that are not in memory.
    """

    served: ServedStore
    replica: StoreReplica
    recall: Callable[[Sequence[bytes]], Sequence[_Found | Unknown]]
    at_once: int
    stamp: types_pb2.ReplicaStamp
    stamp_bytes: bytes
    request: query_service_pb2.GetRequest
    entries: list[_Entry] = field(default_factory=list)
    on_disk: list[_Entry] = field(default_factory=list)


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
        on_entry_failed: Callable[[str, str], None] = lambda _store, _reason: None,
    ) -> None:
        """`on_entry_failed(store, reason)` is called for each lookup of a batch that fails."""
        self._on_entry_failed = on_entry_failed
        self._admission, self._open_scans, self._metrics = admission, open_scans, metrics
        self._disk = DiskReads()
        self._max_batch_entries = max_batch_entries
        self._max_message_bytes, self._max_page_bytes = max_message_bytes, paging.page_bytes(max_message_bytes)

    @property
    def disk_reads(self) -> int:
        """How many requests' reads of the disk have not ended."""
        return self._disk.count

    def close(self) -> None:
        """Read no more from the disk."""
        self._disk.close()

    def get(self, request: query_service_pb2.GetRequest) -> bytes | DiskLookup:
        """Read one key; return a serialized GetResponse, or what completes it if the key is not in memory.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        started = time.perf_counter()
        served, key, replica, stamp = self._admission.admit_key(request, Claim.FOUND)
        found: _Found | Unknown = _recaller(replica)((key,))[0]
        found_by = stamp
        if not isinstance(found, Unknown) and self._admission.is_scattered(served):
            found, found_by = self._anywhere(served, key, replica, (found, stamp), request)
        if isinstance(found, Unknown):
            return DiskLookup(lambda: self._get_from_disk(started, request, served, key, replica, stamp))
        if found is None:
            self._admission.prove(served, Claim.ABSENT, request.forwarding)
        return _get_response(started, request, served, replica, found, found_by)

    async def _get_from_disk(
        self,
        started: float,
        request: query_service_pb2.GetRequest,
        served: ServedStore,
        key: bytes,
        replica: StoreReplica,
        stamp: types_pb2.ReplicaStamp,
    ) -> bytes:
        """Go on with a `get`. The stamp is of before the read, so the value is at least as new."""
        (found,) = await self._disk.run(request, partial(_one_from_disk, replica, key))
        if isinstance(found, Exception):
            raise found
        best = (found, stamp)
        if self._admission.is_scattered(served):
            best = await self._anywhere_on_disk(served, key, replica, best, request)
        if best[0] is None:
            self._admission.prove(served, Claim.ABSENT, request.forwarding)
        return _get_response(started, request, served, replica, *best)

    def _anywhere(
        self,
        served: ServedStore,
        key: bytes,
        replica: StoreReplica,
        own: _FoundBy,
        request: query_service_pb2.GetRequest,
    ) -> tuple[_Found | Unknown, types_pb2.ReplicaStamp]:
        """Look in a global store's other partitions, too; return the latest value and who has it.

        `own` is what the partition has where the key should be. If no partition has the key, that is returned.
        """
        best = own
        for other, other_stamp in self._admission.other_partitions(served, replica.partition, request):
            (recalled,) = _recaller(other)((key,))
            if isinstance(recalled, Unknown):
                return recalled, other_stamp
            best = _later(best, (recalled, other_stamp))
        return best

    async def _anywhere_on_disk(
        self,
        served: ServedStore,
        key: bytes,
        replica: StoreReplica,
        own: _FoundBy,
        request: query_service_pb2.GetRequest,
    ) -> _FoundBy:
        """Do the same as `_anywhere` off the event loop."""
        best = own
        for other, other_stamp in self._admission.other_partitions(served, replica.partition, request):
            (found,) = await self._disk.run(request, partial(_one_from_disk, other, key))
            if isinstance(found, Exception):
                raise found
            best = _later(best, (found, other_stamp))
        return best

    def parsed_batch(self, data: bytes) -> Batch:
        """Parse a serialized BatchGetRequest.

        Raises:
            DecodeError: it is none.
            LookupFailure: INVALID_REQUEST, it has far more than max_batch_entries lookups.

        """
        refuse_too_much(data, self._max_batch_entries)
        return batch_of(data)

    def batch_get(self, batch: Batch) -> bytes | DiskLookup:
        """Read several keys; return a serialized BatchGetResponse, or what completes it if not all are in memory.

        Each key has its own outcome. Lookups in one partition with the same bounds are admitted and read together. What
        can't fit into the answer is not read: a batch of large values would else take memory as if there were no
        largest message.

        Raises:
            LookupFailure: INVALID_REQUEST, the batch has more than max_batch_entries lookups; MESSAGE_TOO_LARGE, their
                results are more than max_message_bytes.

        """
        refuse_too_many(len(batch.entries), self._max_batch_entries)
        results: dict[int, bytes] = {}
        stores: dict[int, ServedStore] = {}
        groups: dict[tuple[int, int], _Group] = {}
        for index, (asked, shape) in enumerate(batch.entries):
            try:
                served = stores.get(shape)
                if served is None:
                    asks = batch.shapes[shape]
                    served = stores[shape] = self._admission.store(asks.store).asked(exact=asks.json_text)
                key, partition = self._admission.placed(served, asked, batch.shapes[shape].forwarding)
                group = groups.get((shape, partition))
                if group is None:
                    group = groups[shape, partition] = self._group(served, partition, batch.shapes[shape])
                group.entries.append((index, key))
            except BaseException as caught:  # noqa: BLE001 - this entry fails alone; a defect is logged
                results[index] = self._failed(as_error(caught), batch.shapes[shape].store)
        room = self._max_message_bytes - sum(map(len, results.values()))
        for group in groups.values():
            for part in _parts(group, group.entries):
                if room >= 0:
                    started = time.perf_counter()
                    found = _each(group.recall, [key for _, key in part], group.replica)
                    room = self._answer(group, part, found, results, room, started)
        if room < 0:
            raise too_large(self._max_message_bytes)
        if any(group.on_disk for group in groups.values()):
            return DiskLookup(lambda: self._batch_from_disk(batch, groups.values(), results, room))
        return self._together(results)

    def _group(self, served: ServedStore, partition: int, request: query_service_pb2.GetRequest) -> _Group:
        self._admission.prove(served, Claim.FOUND, request.forwarding)
        replica, stamp = self._admission.admit(served, partition, request.freshness, request.forwarding)
        return _Group(served, replica, _recaller(replica), _at_once(replica), stamp, stamped(stamp), request)

    async def _batch_from_disk(
        self,
        batch: Batch,
        groups: Collection[_Group],
        results: dict[int, bytes],
        room: int,
    ) -> bytes:
        """Go on with a `batch_get`, for a moment.

        Entries that are not read by then, or for which there is no room in the threads, fail alone.
        """
        unread = LookupFailure(Reason.WOULD_WAIT, "the key is not in memory here: ask for it alone")
        on_disk = sum(len(group.on_disk) for group in groups)
        # Routers and clients that put lookups together say which epoch they go by.
        is_shared = any(shape.HasField("forwarding") for shape in batch.shapes)
        try:
            async with asyncio.timeout((BATCH_WAITS_S if is_shared else OWN_BATCH_WAITS_S) + on_disk * _A_KEY_WAITS_S):
                await self._read_left(batch, groups, results, room)
        except TimeoutError:
            pass
        except LookupFailure as failure:
            unread = failure
        if sum(map(len, results.values())) > self._max_message_bytes:
            raise too_large(self._max_message_bytes)
        for group in groups:
            for index, _ in group.on_disk:
                if index not in results:
                    results[index] = self._failed(unread, group.served.spec.name)
        return self._together(results)

    def _together(self, results: Mapping[int, bytes]) -> bytes:
        """Return a BatchGetResponse of all entries' results, serialized.

        Raises:
            LookupFailure: MESSAGE_TOO_LARGE, also if it is only so by what stands in front of each result: gRPC would
                refuse it without a word of what to do.

        """
        response = framed(map(results.__getitem__, range(len(results))))
        if len(response) > self._max_message_bytes:
            raise too_large(self._max_message_bytes)
        return response

    async def _read_left(
        self,
        batch: Batch,
        groups: Iterable[_Group],
        results: dict[int, bytes],
        room: int,
    ) -> None:
        """Read what is on disk, and no more than there is room for. In each turn a thread reads about as much as fits.

        Raises:
            LookupFailure: OVERLOADED or NODE_SHUTTING_DOWN.

        """
        left: list[tuple[_Group, Sequence[_Entry]]] = []
        for group in groups:
            if group.served.spec.is_global:
                room = await self._entries_from_disk(group, results, room)
            else:
                left += ((group, part) for part in _parts(group, group.on_disk))
        while left and room >= 0:
            started = time.perf_counter()
            turn = await self._disk.run(batch, partial(_read_parts, left, room))
            for (group, part), found in zip(left, turn, strict=False):
                if room >= 0:
                    room = self._answer(group, part, found, results, room, started)
            del left[: len(turn)]

    async def _entries_from_disk(self, group: _Group, results: dict[int, bytes], room: int) -> int:
        """Read a global store's keys one after the other: each may be in several partitions. Return the room left."""
        for index, key in group.on_disk:
            if room < 0:
                break
            started = time.perf_counter()
            try:
                outcome = await self._get_from_disk(
                    started, group.request, group.served, key, group.replica, group.stamp
                )
                results[index] = result_of(outcome)
            except BaseException as caught:  # noqa: BLE001 - as in `batch_get`
                results[index] = self._failed(as_error(caught), group.served.spec.name)
            room -= len(results[index])
        return room

    def _answer(
        self,
        group: _Group,
        part: Sequence[_Entry],
        outcomes: Sequence[_Outcome],
        results: dict[int, bytes],
        room: int,
        started: float,
    ) -> int:
        """Make the results of entries that were read; return what is left of the room for results, in bytes.

        If it is negative, entries after that have none. Each read counts as having taken an equal part of the time
        since `started`.
        """
        served, stamp, is_scattered = group.served, group.stamp_bytes, self._admission.is_scattered(group.served)
        raw = group.request.raw
        reads, size = 0, 0
        for entry, outcome in zip(part, outcomes, strict=True):
            index, key = entry
            found, found_by = outcome, stamp
            try:
                if is_scattered and not isinstance(found, Unknown | Exception):
                    found, other = self._anywhere(served, key, group.replica, (found, group.stamp), group.request)
                    found_by = stamped(other)
                if isinstance(found, Unknown):
                    group.on_disk.append(entry)
                    continue
                if isinstance(found, Exception):
                    raise found  # noqa: TRY301 - as any other failure of this entry
                if found is None:
                    self._admission.prove(served, Claim.ABSENT, group.request.forwarding)
                reads += 1
                size += 0 if found is None else len(found[0])
                result = result_of(answer(served, found, raw=raw, stamp=found_by))
            except BaseException as caught:  # noqa: BLE001 - as in `batch_get`
                result = self._failed(as_error(caught), served.spec.name)
            results[index] = result
            room -= len(result)
            if room < 0:
                break
        if reads:
            group.replica.lookups += reads
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
        if error.reason is not Reason.WOULD_WAIT:  # it is asked for alone
            self._on_entry_failed(store, error.reason.name)
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
        replica.lookups += 1
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
        replica.lookups += 1
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

    async def get_as_of(self, request: query_service_pb2.GetAsOfRequest) -> query_service_pb2.GetAsOfResponse:
        """Read the value that a key had at a time.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        started = time.perf_counter()
        served, key, replica, stamp = self._admission.admit_key(request, Claim.FOUND)
        store = of_kind(replica, VersionedStore, "GetAsOf")
        if request.HasField("as_of_ms"):
            refuse_negative("as_of_ms", request.as_of_ms)
            read = partial(store.get_as_of, key, request.as_of_ms)
        else:
            read = partial(store.get, key)
        try:
            version = await self._disk.run(request, lambda _has_left: read()) if replica.is_elsewhere else read()
        except BeforeHistory as error:
            raise before_history(error) from error
        except StoreClosed as error:
            raise gave_up(replica) from error
        replica.lookups += 1
        replica.metrics.reads[ReadKind.GET_AS_OF].add(started, 0 if version is None else len(version.value))
        if version is None:
            self._admission.prove(served, Claim.ABSENT, request.forwarding)
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
        refuse_exchanged(request)
        left = paging.after_page(history_range(key, reverse=request.reverse), request)
        limit, max_bytes = paging.page_size(request), self._max_page_bytes
        try:
            page, start_ms = await self._open_scans.run(
                [replica], lambda walk: store.history(key, left, first_ms, last_ms, limit, max_bytes, walk)
            )
        except BeforeHistory as error:
            raise before_history(error) from error
        replica.lookups += 1
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
        arguments = arguments_of(request)
        response = query_service_pb2.QueryStoreResponse(replica=stamp)
        try:
            # A plug-in may be slow, so it must not run on the event loop.
            result = await self._open_scans.run([replica], lambda _walk: store.query(name, key, arguments))
            shown_as_value = json_value(result)
            if request.json_text:
                response.result_text = json.dumps(result, ensure_ascii=False)
            else:
                response.result.CopyFrom(shown_as_value)
        except LookupFailure:
            raise
        except Exception as error:
            log.exception("a custom store's query failed", store=spec.name, kind=spec.kind, query=name)
            raise LookupFailure(
                Reason.INTERNAL,
                f"query {name!r} of {spec.name} failed: {type(error).__name__}: {error}",
                {"store": spec.name, "query": name},
            ) from error
        replica.lookups += 1
        replica.metrics.reads[ReadKind.CUSTOM].add(started, 0)
        return response

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


def _recaller(replica: StoreReplica) -> Callable[[Sequence[bytes]], Sequence[_Found | Unknown]]:
    """Return how to read keys' latest values, as far as memory has them. The store must have one value per key.

    Only a plain key-value store tells what it has in memory. The others are read wherever they are, but for those whose
    entries are in the data plane.

    Raises:
        LookupFailure: WRONG_STORE_KIND.

    """
    store = replica.store
    if isinstance(store, VersionedStore):
        return _unknown if replica.is_elsewhere else store.get_many
    return of_kind(replica, KeyValueStore, "Get").recall


def _unknown(keys: Sequence[bytes]) -> list[_Found | Unknown]:
    return [Unknown.ON_DISK] * len(keys)


def _from_disk(replica: StoreReplica, keys: Sequence[bytes]) -> Sequence[_Found | Exception]:
    """Read keys that are not in memory, in a thread."""
    store = replica.store
    if not isinstance(store, VersionedStore):
        store = of_kind(replica, KeyValueStore, "Get")
    return _each(store.get_many, keys, replica)


def _one_from_disk(replica: StoreReplica, key: bytes, _has_left: HasLeft) -> Sequence[_Found | Exception]:
    return _from_disk(replica, (key,))


def _at_once(replica: StoreReplica) -> int:
    """Return how many keys are read at a time: one where a kind's own code reads, which may do anything."""
    store = replica.store
    return _AT_ONCE if replica.is_elsewhere or (isinstance(store, KeyValueStore) and store.reads_engine) else 1


def _each(
    read: Callable[[Sequence[bytes]], Sequence[R]], keys: Sequence[bytes], replica: StoreReplica
) -> Sequence[R | Exception]:
    """Read keys together. If that fails, read each of them by itself, so that each has its own outcome."""
    try:
        return read(keys)
    except StoreClosed:
        return [gave_up(replica)] * len(keys)
    except BaseException as caught:  # noqa: BLE001 - it is the outcome
        if len(keys) == 1:
            return [as_error(caught)]
        return [outcome for key in keys for outcome in _each(read, (key,), replica)]


def _parts(group: _Group, entries: Sequence[_Entry]) -> list[Sequence[_Entry]]:
    """Return the entries in as many parts as have to be read, one after the other."""
    return [entries[start : start + group.at_once] for start in range(0, len(entries), group.at_once)]


def _read_parts(
    parts: Sequence[tuple[_Group, Sequence[_Entry]]], most_bytes: int, has_left: HasLeft
) -> list[Sequence[_Outcome]]:
    """Read parts from the disk, until their values have `most_bytes` or nobody waits for them any more.

    Return what came of each that was read.
    """
    outcomes: list[Sequence[_Outcome]] = []
    for group, part in parts:
        outcomes.append(_from_disk(group.replica, [key for _, key in part]))
        most_bytes -= sum(len(found[0]) for found in outcomes[-1] if isinstance(found, tuple))
        if most_bytes < 0 or has_left():
            break
    return outcomes


def _get_response(
    started: float,
    request: query_service_pb2.GetRequest,
    served: ServedStore,
    replica: StoreReplica,
    found: _Found,
    stamp: types_pb2.ReplicaStamp,
) -> bytes:
    """Count the read and return the serialized GetResponse."""
    replica.lookups += 1
    replica.metrics.reads[ReadKind.GET].add(started, 0 if found is None else len(found[0]))
    return answer(served, found, raw=request.raw, stamp=stamped(stamp))


def _later(one: _FoundBy, other: _FoundBy) -> _FoundBy:
    """Return what was found with the later timestamp; the first one if none is later."""
    if other[0] is None or (one[0] is not None and one[0][1] >= other[0][1]):
        return one
    return other
