"""Lookups of single keys on this node: the latest value, windows, sessions, versions."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Final, TypeVar

import structlog

from query_service.reads.admission import Admission
from query_service.reads.decoded_values import decoded_value
from query_service.reads.disk_reads import DiskReads, HasLeft
from query_service.reads.fleet_view import ServedStore
from query_service.reads.moments import Admitted, agreed, moment_in
from query_service.reads.open_scans import OpenScans, gave_up
from query_service.reads.page_responses import shown_within, within_message
from query_service.reads.position_waits import ReplicaBehind
from query_service.reads.store_queries import arguments_of, before_history, of_kind, refuse_negative, wrong_kind
from query_service.reads.time_ranges import TimeRange, refuse_exchanged, sessions_in, windows_in
from query_service.reads.value_ages import refuse_old_values
from query_service.replicas.replica import StoreReplica
from query_service.stores.base import RangePage
from query_service.stores.custom import CustomQueries
from query_service.stores.engine import StoreClosed
from query_service.stores.key_value import KeyValueStore
from query_service.stores.timestamps import Timestamped, shown_timestamp
from query_service.stores.versioned import BeforeHistory, Version, VersionedStore, history_range, version_entry_key
from query_service.stores.windows import TimedStore
from query_service.telemetry.metrics import NodeMetrics, ReadKind
from statehouse.contract import paging
from statehouse.contract.moments import MomentBound
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


_Found = Timestamped | None
_FoundBy = tuple[_Found, types_pb2.ReplicaStamp]

BATCH_WAITS_S: Final = 0.02
"""A batch waits for its reads no longer than this, and a little longer for each key: lookups of several callers go
together, and most need no disk. What is not read by then is asked for alone."""
_A_KEY_WAITS_S: Final = 0.002
OWN_BATCH_WAITS_S: Final = 1.0
"""The same for a batch of one caller that asks the node itself: nobody else's lookups wait with it."""
# Values are bounded in number as they are read, and in size only then: so many of the largest that Kafka takes by
# default are one message of ours. More at once are no faster.
_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class _Asked:
    """A lookup that was admitted: its place in a batch, what it asks, and who answers."""

    place: int
    request: query_service_pb2.GetRequest
    served: ServedStore
    key: bytes
    admitted: Admitted

    @property
    def replica(self) -> StoreReplica:
        """The replica that answers."""
        return self.admitted.replica


class LookupHandler:
    """Answers lookups of single keys. Threads read: a slow disk holds up nobody else, nor the event loop."""

    def __init__(
        self,
        admission: Admission,
        open_scans: OpenScans,
        metrics: NodeMetrics,
        *,
        max_batch_entries: int,
        max_message_bytes: int,
        on_entry_failed: Callable[[str, str], None] = lambda _store, _reason: None,
        disk: DiskReads | None = None,
    ) -> None:
        """`on_entry_failed(store, reason)` is called for each lookup of a batch that fails. `disk`: runs reads."""
        self._on_entry_failed = on_entry_failed
        self._admission, self._open_scans, self._metrics = admission, open_scans, metrics
        self._disk = disk or DiskReads()
        self.max_batch_entries = max_batch_entries
        self._max_message_bytes, self._max_page_bytes = max_message_bytes, paging.page_bytes(max_message_bytes)

    @property
    def disk_reads(self) -> int:
        """How many requests' reads have not ended."""
        return self._disk.count

    def close(self) -> None:
        """Read no more."""
        self._disk.close()

    async def get(self, request: query_service_pb2.GetRequest) -> bytes:
        """Read one key; return a serialized GetResponse. Its stamp is of before the read: the value is at least as new.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        started = time.perf_counter()
        asked = _Asked(0, request, *self._admission.admit_key(request, Claim.FOUND))
        (found,) = await self._disk.run(request, partial(_read, [asked], self._max_message_bytes))
        return await self._answer(asked, found, started)

    async def batch_get(self, request: query_service_pb2.BatchGetRequest) -> bytes:
        """Read several keys; return a serialized BatchGetResponse.

        Each key has its own outcome. What can't fit into the answer is not read: a batch of large values would else
        take memory as if there were no largest message.

        Raises:
            LookupFailure: INVALID_REQUEST, the batch has more than max_batch_entries lookups; MESSAGE_TOO_LARGE, their
                results are more than max_message_bytes.

        """
        lookups = request.requests
        refuse_too_many(len(lookups), self.max_batch_entries)
        results: dict[int, bytes] = {}  # by place
        asked: list[_Asked] = []
        for place, lookup in enumerate(lookups):
            try:
                asked.append(_Asked(place, lookup, *self._admission.admit_key(lookup, Claim.FOUND)))
            except BaseException as caught:  # noqa: BLE001 - this lookup fails alone; a defect is logged
                results[place] = self._failed(as_error(caught), lookup.store)
        asked = self._agreed(asked, results)
        # Those of one replica are read together.
        asked.sort(key=lambda each: (each.served.spec.name, each.replica.partition, each.place))
        # Routers and clients that put lookups together say which epoch they go by.
        is_shared = any(lookup.HasField("forwarding") for lookup in lookups)
        waits_s = BATCH_WAITS_S if is_shared else OWN_BATCH_WAITS_S
        unread = LookupFailure(Reason.WOULD_WAIT, "the key has not been read in time: ask for it alone")
        try:
            async with asyncio.timeout(waits_s + len(asked) * _A_KEY_WAITS_S):
                await self._read_all(request, asked, results)
        except TimeoutError:
            pass
        except LookupFailure as failure:
            unread = failure
        if sum(map(len, results.values())) > self._max_message_bytes:
            raise too_large(self._max_message_bytes)
        for each in asked:
            if each.place not in results:
                results[each.place] = self._failed(unread, each.request.store)
        response = framed(map(results.__getitem__, range(len(lookups))))
        if len(response) > self._max_message_bytes:
            raise too_large(self._max_message_bytes)
        return response

    def _agreed(self, asked: list[_Asked], results: dict[int, bytes]) -> list[_Asked]:
        """Return the lookups of a batch so that those that ask for a moment are of the same one."""
        open_to = [each for each in asked if each.admitted.moment is not None]
        if not open_to:
            return asked

        def again(part: int, moment: MomentBound) -> Admitted:
            each = open_to[part]
            partition, request = each.replica.partition, each.request
            return self._admission.admit(each.served, partition, request.freshness, request.forwarding, moment)

        try:
            admitted = agreed([each.admitted for each in open_to], again)
        except LookupFailure as failure:
            for each in open_to:
                results[each.place] = self._failed(failure, each.request.store)
            return [each for each in asked if each.place not in results]
        now = {each.place: replace(each, admitted=one) for each, one in zip(open_to, admitted, strict=True)}
        return [now.get(each.place, each) for each in asked]

    async def _read_all(
        self, request: query_service_pb2.BatchGetRequest, asked: Sequence[_Asked], results: dict[int, bytes]
    ) -> None:
        """Read lookups of a batch, no more than there is room for. In each turn a thread reads about as much as fits.

        Raises:
            LookupFailure: OVERLOADED or NODE_SHUTTING_DOWN.

        """
        room = self._max_message_bytes - sum(map(len, results.values()))
        while asked and room >= 0:
            started = time.perf_counter()
            turn = await self._disk.run(request, partial(_read, asked, room))
            for each, found in zip(asked, turn, strict=False):
                try:
                    results[each.place] = result_of(await self._answer(each, found, started))
                except BaseException as caught:  # noqa: BLE001 - as in `batch_get`
                    results[each.place] = self._failed(as_error(caught), each.request.store)
                room -= len(results[each.place])
                if room < 0:
                    break
                started = time.perf_counter()
            asked = asked[len(turn) :]

    async def _answer(self, asked: _Asked, found: _Found | Exception, started: float) -> bytes:
        """Return the serialized GetResponse of a lookup that was read, and count it.

        Raises:
            LookupFailure: as `get`.
            FetchNeeded: the value can't be decoded yet.

        """
        if isinstance(found, Exception):
            raise found
        served, request, replica = asked.served, asked.request, asked.replica
        best = (found, asked.admitted.stamp)
        if self._admission.is_scattered(served):
            best = await self._anywhere(asked, best)
        found, stamp = best
        if found is None:
            self._admission.prove(served, Claim.ABSENT, request.forwarding)
        else:
            refuse_old_values(request, [found[1]])
        replica.lookups += 1
        replica.metrics.reads[ReadKind.GET].add(started, 0 if found is None else len(found[0]))
        if found is None:
            return query_service_pb2.GetResponse(found=False, replica=stamp).SerializeToString()
        data, timestamp_ms = found
        return query_service_pb2.GetResponse(
            found=True,
            value=decoded_value(served, data, raw=request.raw),
            replica=stamp,
            timestamp_ms=shown_timestamp(timestamp_ms),
        ).SerializeToString()

    async def _anywhere(self, asked: _Asked, own: _FoundBy) -> _FoundBy:
        """Look in a global store's other partitions, too; return the latest value and who has it.

        `own` is what the partition has where the key should be. If no partition has the key, that is returned.
        """
        best = own
        others = self._admission.other_partitions(asked.served, asked.replica.partition, asked.request)
        for admitted in others:
            other = replace(asked, admitted=admitted)
            (found,) = await self._disk.run(asked.request, partial(_read, [other], self._max_message_bytes))
            if isinstance(found, Exception):
                raise found
            best = _later(best, (found, admitted.stamp))
        return best

    def _failed(self, error: Exception, store: str) -> bytes:
        """Return the result of an entry that failed, and count it."""
        if isinstance(error, ReplicaBehind):
            # The answers to the other entries must not wait for this entry's position or batch.
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
        served, key, admitted = self._admission.admit_key(request)
        replica, stamp = admitted.replica, admitted.stamp
        store = of_kind(replica, TimedStore, "FetchWindows", WINDOW)
        page = await self._timed_page(admitted, store, key, request, windows_in(request))
        refuse_old_values(request, (entry[2] for entry in page.entries))
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
            response.next_page_token = paging.next_page_token(
                request, page.entries[-1][0].to_entry_key(), moment_in(stamp), stamp.version
            )
        return response

    async def fetch_sessions(
        self, request: query_service_pb2.FetchSessionsRequest
    ) -> query_service_pb2.FetchSessionsResponse:
        """Read a page of a key's sessions.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        started = time.perf_counter()
        served, key, admitted = self._admission.admit_key(request)
        replica, stamp = admitted.replica, admitted.stamp
        store = of_kind(replica, TimedStore, "FetchSessions", SESSION)
        page = await self._timed_page(admitted, store, key, request, sessions_in(request))
        refuse_old_values(request, (entry[2] for entry in page.entries))
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
            response.next_page_token = paging.next_page_token(
                request, page.entries[-1][0].to_entry_key(), moment_in(stamp), stamp.version
            )
        return response

    async def get_as_of(self, request: query_service_pb2.GetAsOfRequest) -> query_service_pb2.GetAsOfResponse:
        """Read the value that a key had at a time.

        Raises:
            LookupFailure: this node can't answer; the reason says why.

        """
        started = time.perf_counter()
        served, key, admitted = self._admission.admit_key(request, Claim.FOUND)
        replica, stamp = admitted.replica, admitted.stamp
        store = of_kind(replica, VersionedStore, "GetAsOf")
        refuse_negative("as_of_ms", request.as_of_ms)
        try:
            version = await self._disk.run(request, lambda _has_left: _version(admitted, store, key, request))
        except BeforeHistory as error:
            raise before_history(error) from error
        except StoreClosed as error:
            raise gave_up(replica) from error
        replica.lookups += 1
        replica.metrics.reads[ReadKind.GET_AS_OF].add(started, 0 if version is None else len(version.value))
        if version is None:
            self._admission.prove(served, Claim.ABSENT, request.forwarding)
            return query_service_pb2.GetAsOfResponse(found=False, replica=stamp)
        refuse_old_values(request, [version.timestamp_ms])
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
        served, key, admitted = self._admission.admit_key(request)
        replica, stamp = admitted.replica, admitted.stamp
        store = of_kind(replica, VersionedStore, "GetHistory")
        first_ms = request.from_ms if request.HasField("from_ms") else None
        last_ms = request.to_ms if request.HasField("to_ms") else None
        refuse_negative("from_ms", first_ms or 0)
        refuse_negative("to_ms", last_ms or 0)
        refuse_exchanged(request)
        left = paging.after_page(history_range(key, reverse=request.reverse), request)
        limit, max_bytes = paging.page_size(request), self._max_page_bytes
        try:
            page, start_ms = await self._open_scans.read(
                admitted, lambda walk: store.history(key, left, first_ms, last_ms, limit, max_bytes, walk)
            )
        except BeforeHistory as error:
            raise before_history(error) from error
        refuse_old_values(request, (each.timestamp_ms for each in page.entries))
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
            response.next_page_token = paging.next_page_token(request, last, moment_in(stamp), stamp.version)
        return response

    async def query_store(self, request: query_service_pb2.QueryStoreRequest) -> query_service_pb2.QueryStoreResponse:
        """Run a custom store's own query.

        Raises:
            LookupFailure: this node can't answer, or the store's query failed; the reason says why.

        """
        started = time.perf_counter()
        _, key, admitted = self._admission.admit_key(request)
        replica, stamp = admitted.replica, admitted.stamp
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
        admitted: Admitted,
        store: TimedStore[K],
        key: bytes,
        request: query_service_pb2.FetchWindowsRequest | query_service_pb2.FetchSessionsRequest,
        span: TimeRange[K],
    ) -> RangePage[tuple[K, bytes, int]]:
        """Return a page of one key's entries."""
        prefix = ordered_keys.escaped(key)
        keys = paging.after_page(paging.KeyRange(prefix, paging.after_prefix(prefix), request.reverse), request)
        limit = paging.page_size(request)
        return await self._open_scans.read(
            admitted,
            lambda walk: store.scan_with_timestamps(
                keys, span.accept, span.first_ms, span.last_ms, limit, self._max_page_bytes, walk
            ),
        )


def _size(page: RangePage[tuple[K, bytes, int]]) -> int:
    """Return the size of a page's values, in bytes."""
    return sum(len(data) for _, data, _ in page.entries)


def parsed_batch(data: bytes, most: int) -> query_service_pb2.BatchGetRequest:
    """Parse a serialized BatchGetRequest.

    Raises:
        DecodeError: it is none.
        LookupFailure: INVALID_REQUEST, it has far more than `most` lookups.

    """
    refuse_too_much(data, most)
    return query_service_pb2.BatchGetRequest.FromString(data)


def _read(asked: Sequence[_Asked], most_bytes: int, has_left: HasLeft) -> list[_Found | Exception]:
    """Read lookups, until their values have `most_bytes` or nobody waits for them any more. In a thread.

    Return what came of each that was read, in order.
    """
    outcomes: list[_Found | Exception] = []
    while len(outcomes) < len(asked) and most_bytes >= 0 and not (outcomes and has_left()):
        rest = asked[len(outcomes) :]
        first = rest[0].admitted
        # None behind one that is of another replica or batch: outcomes are in the order of the lookups.
        alike = takewhile(partial(_is_alike, first), rest[: _at_once(first.replica)])
        found = _each(first, [each.key for each in alike])
        most_bytes -= sum(len(each[0]) for each in found if isinstance(each, tuple))
        outcomes += found
    return outcomes


def _is_alike(first: Admitted, asked: _Asked) -> bool:
    """Whether a lookup is of the same replica and batch as another."""
    return asked.replica is first.replica and asked.admitted.moment == first.moment


def _at_once(replica: StoreReplica) -> int:
    """Return how many keys are read at a time: one where a kind's own code reads, which may do anything."""
    store = replica.store
    return 1 if isinstance(store, KeyValueStore) and not store.reads_engine else _AT_ONCE


def _version(
    admitted: Admitted, store: VersionedStore, key: bytes, request: query_service_pb2.GetAsOfRequest
) -> Version | None:
    """Return the version that a request asks for."""
    with admitted.reading():
        return store.get_as_of(key, request.as_of_ms) if request.HasField("as_of_ms") else store.get(key)


def _each(admitted: Admitted, keys: Sequence[bytes]) -> Sequence[_Found | Exception]:
    """Read keys together. If that fails, read each of them by itself, so that each has its own outcome."""
    try:
        with admitted.reading():
            return _latest(admitted.replica, keys)
    except StoreClosed:
        return [gave_up(admitted.replica)] * len(keys)
    except BaseException as caught:  # noqa: BLE001 - it is the outcome
        if len(keys) == 1:
            return [as_error(caught)]
        return [outcome for key in keys for outcome in _each(admitted, (key,))]


def _latest(replica: StoreReplica, keys: Sequence[bytes]) -> Sequence[_Found]:
    """Return keys' latest values. The store must have one value per key.

    Raises:
        LookupFailure: WRONG_STORE_KIND.

    """
    store = replica.store
    if not isinstance(store, VersionedStore):
        store = of_kind(replica, KeyValueStore, "Get")
    return store.get_many(keys)


def _later(one: _FoundBy, other: _FoundBy) -> _FoundBy:
    """Return what was found with the later timestamp; the first one if none is later."""
    if other[0] is None or (one[0] is not None and one[0][1] >= other[0][1]):
        return one
    return other
