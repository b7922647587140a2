"""The reads of the asynchronous client, and of its sessions."""

from __future__ import annotations

import math
import numbers
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial, wraps
from inspect import signature
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypedDict, TypeVar

from statehouse.client import conversion
from statehouse.client.answers import (
    Answer,
    AnyKey,
    Entry,
    EntryCount,
    KeyedSession,
    KeyedWindow,
    KeyLike,
    Lookup,
    Page,
    QueryAnswer,
    Session,
    SessionPage,
    VersionedRecord,
    WatchPosition,
    Window,
    WindowPage,
)
from statehouse.client.connections import Connections
from statehouse.client.key_reads import KeyReads
from statehouse.client.keys import needs_serde, prefix_key, to_key
from statehouse.client.moments import shown_by
from statehouse.client.peers import Method
from statehouse.client.routers import RouterPeer, Routers
from statehouse.client.watches import AsyncBatchWatch, AsyncWatch, OpeningWatchCall, WatchCall, WatchStream
from statehouse.contract.consistency import ANY, Freshness
from statehouse.contract.moments import Asked, MomentToken
from statehouse.contract.positions import Token
from statehouse.contract.watch_marks import mark_in
from statehouse.errors import LookupFailure, shown
from statehouse.serdes import JsonValue
from statehouse.v1 import query_service_pb2, types_pb2

LONGEST_S: Final = 7 * 86_400.0
"""Longest time of a call. Clocks can't count to the end of what people give for "for ever"."""


def in_seconds(timeout: object) -> float:
    """Return the seconds that a caller allows a call, however it wrote the number.

    Raises:
        TypeError: it is no number.
        ValueError: it is NaN.

    """
    if not isinstance(timeout, numbers.Real):
        raise TypeError(f"a timeout is a number of seconds, and {shown(repr(timeout))} is none")
    try:
        seconds = float(timeout)
    except OverflowError:  # a huge integer
        seconds = LONGEST_S
    if math.isnan(seconds):
        raise ValueError("a timeout is a number of seconds, and NaN is none")
    return min(seconds, LONGEST_S)


class _PageRequest(Protocol):
    store: str
    page_token: str

    @property
    def freshness(self) -> types_pb2.Freshness: ...


class _HasNextPageToken(Protocol):
    next_page_token: str


PageRequest = TypeVar("PageRequest", bound=_PageRequest)
PageResponse = TypeVar("PageResponse", bound=_HasNextPageToken)
Arguments = ParamSpec("Arguments")
Read = TypeVar("Read")
Item = TypeVar("Item")


class KeyRangeFields(TypedDict):
    """The fields of a scan's request that say which keys it reads."""

    from_key: types_pb2.Key | None
    to_key: types_pb2.Key | None
    prefix: types_pb2.Key | None


def _items_of(
    pages: Callable[Concatenate[AsyncStateReads, Arguments], AsyncIterator[Read]],
    name: str,
    kind: type[Item],
    items: Callable[[Read], Iterable[Item]],
    doc: str,
) -> Callable[Concatenate[AsyncStateReads, Arguments], AsyncIterator[Item]]:
    """Make of a method that reads pages one of that name that reads what is in them; its arguments are the same."""

    async def read(pages: AsyncIterator[Read]) -> AsyncIterator[Item]:
        async for page in pages:
            for item in items(page):
                yield item

    @wraps(pages)
    def call(self: AsyncStateReads, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> AsyncIterator[Item]:
        return read(pages(self, *args, **kwargs))

    # People read these by help().
    call.__name__, call.__doc__ = name, doc
    returned = f"AsyncIterator[{kind.__name__}]"
    call.__signature__ = signature(pages).replace(return_annotation=returned)  # type: ignore[attr-defined] # any function may have it
    return call


class AsyncStateReads:
    """The reads of what stores hold.

    `timeout`: seconds for each call; each page of a scan is a call.
    `freshness`: all bounds of a `Freshness` must hold. Without bounds, the active answers if it can, else the freshest
    standby; the answer says which. `at_least`: the read sees at least what the answers with this token saw, or waits
    for it; `Freshness.at_least` means the same. `Freshness.moment`: all that a read returns, of all keys, partitions
    and pages, is of one batch of the store's query.
    """

    def __init__(self, connections: Connections, timeout_s: float) -> None:
        self._connections, self._timeout_s = connections, in_seconds(timeout_s)

    @property
    def target(self) -> str:
        """The router's address."""
        return self._connections.target

    @property
    def _router(self) -> Routers:
        return self._connections.router

    @property
    def _lookups(self) -> KeyReads:
        return self._connections.lookups

    async def get(
        self,
        store: str,
        key: AnyKey,
        *,
        freshness: Freshness = ANY,
        at_least: Token | None = None,
        raw: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - it is sent with the call, so that nobody works past it
    ) -> Answer:
        """Look one key up; with `raw` the value comes as the bytes in the changelog.

        Raises:
            TypeError: the store's keys aren't of the key's type.
            LookupFailure: nobody could answer within the bounds, or the request is wrong.

        """
        async with self._turn(store):
            request = query_service_pb2.GetRequest(
                store=store,
                key=await self._key(store, key, timeout),
                freshness=self._wire(store, freshness, at_least),
                raw=raw,
                json_text=not raw,
            )
            answer = await self._lookups.get(request, self._seconds(timeout))
            self._saw(answer.token)
            self._saw_moment(store, answer.moment)
            return answer

    async def get_as_of(
        self,
        store: str,
        key: AnyKey,
        as_of_ms: int | None = None,
        *,
        freshness: Freshness = ANY,
        at_least: Token | None = None,
        raw: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> Answer:
        """Look up the value that a key of a versioned store had at a time, epoch milliseconds; None is the latest.

        Raises:
            LookupFailure: the time is before the history that the store keeps, the store is of another kind, nobody
                could answer within the bounds, or the request is wrong.

        """
        async with self._turn(store):
            request = query_service_pb2.GetAsOfRequest(
                store=store,
                key=await self._key(store, key, timeout),
                as_of_ms=as_of_ms,
                freshness=self._wire(store, freshness, at_least),
                raw=raw,
                json_text=not raw,
            )
            response = await self._lookups.call(lambda query: query.GetAsOf, request, self._seconds(timeout))
            answer = conversion.from_get(response, store)
            self._saw(answer.token)
            self._saw_moment(store, answer.moment)
            return answer

    async def batch_get(
        self,
        requests: Iterable[Lookup],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> list[Answer | LookupFailure]:
        """Look several keys up, of any stores; return one outcome per key, in their order.

        Lookups with `Freshness.moment` show one batch of each query, of whichever stores they are.

        No failure is raised: a key that can't be answered has its failure as its outcome, and if a call fails, so has
        each of its keys. Too many keys for one call are split into several calls, one after the other, each with
        `timeout`. If `requests` have `at_least` bounds and the client's target is a node, not a router, a key whose
        position is not reached yet fails with WOULD_WAIT.

        Raises:
            TypeError: the keys of a lookup's store aren't of its key's type.
        """
        lookups = list(requests)
        async with self._turn(*(each.store for each in lookups)):
            return await self._batch_get(lookups, timeout)

    async def _batch_get(
        self,
        requests: Sequence[Lookup],
        timeout: float | None,  # noqa: ASYNC109 - as above
    ) -> list[Answer | LookupFailure]:
        asked = [replace(each, freshness=self._bounds(each.store, each.freshness)) for each in requests]
        outcomes: dict[int, Answer | LookupFailure] = {}
        wire: dict[int, query_service_pb2.GetRequest] = {}
        keys = await self._lookups.wire_keys([(each.store, each.key) for each in asked], self._seconds(timeout))
        for index, (each, key) in enumerate(zip(asked, keys, strict=True)):
            if isinstance(key, LookupFailure):
                outcomes[index] = key
            else:
                wire[index] = conversion.to_get(each, key)
        answered = await self._lookups.batch_get(list(wire.values()), self._seconds(timeout)) if wire else []
        outcomes.update(zip(wire, answered, strict=True))
        for index, outcome in zip(wire, answered, strict=True):
            if isinstance(outcome, Answer):
                self._saw(outcome.token)
                self._saw_moment(asked[index].store, outcome.moment)
        return [outcomes[index] for index in range(len(asked))]

    async def pages(
        self,
        store: str,
        *,
        from_key: AnyKey | None = None,
        to_key: AnyKey | None = None,
        prefix: KeyLike | None = None,
        reverse: bool = False,
        page_size: int = 0,
        as_of_ms: int | None = None,
        freshness: Freshness = ANY,
        at_least: Token | None = None,
        raw: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> AsyncIterator[Page]:
        """Scan a store page by page, in unsigned byte order of the serialized keys; both ends are inclusive.

        Numbers are compared with the ends as numbers, unless an end is bytes. They come in the order of bytes all the
        same: those below zero last. `prefix` can't be combined with the ends. `page_size` 0 is the server's default.
        `as_of_ms`: of a versioned store, the entries as they were at this time, epoch milliseconds; None is the latest.
        Each page is read when the caller asks for it; an empty page need not be the last.

        Raises:
            LookupFailure: some partition could not be read within the bounds, the time is before the history that it
                keeps, or the request is wrong.

        """
        request = query_service_pb2.ScanRequest(
            store=store,
            **await self._key_range(store, from_key, to_key, prefix, timeout),
            reverse=reverse,
            page_size=page_size,
            as_of_ms=as_of_ms,
            raw=raw,
            json_text=not raw,
        )
        responses = self._paged(self._router.make, lambda query: query.Scan, request, freshness, at_least, timeout)
        async for response in responses:
            yield conversion.from_scan(response, store)

    scan = _items_of(
        pages, "scan", Entry, lambda page: page.entries, "Scan a store entry by entry: the entries of `pages`."
    )

    async def window_pages(
        self,
        store: str,
        *,
        from_key: AnyKey | None = None,
        to_key: AnyKey | None = None,
        prefix: KeyLike | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
        reverse: bool = False,
        page_size: int = 0,
        freshness: Freshness = ANY,
        at_least: Token | None = None,
        raw: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> AsyncIterator[WindowPage]:
        """Scan the windows of a range of keys that start within `from_ms` and `to_ms` (both inclusive), page by page.

        Windows come in the order of keys, then of starts; keys, pages and failures are as in `pages`.

        Raises:
            LookupFailure: some partition could not be read within the bounds, or the request is wrong.

        """
        request = query_service_pb2.ScanWindowsRequest(
            store=store,
            **await self._key_range(store, from_key, to_key, prefix, timeout),
            from_ms=from_ms,
            to_ms=to_ms,
            reverse=reverse,
            page_size=page_size,
            raw=raw,
            json_text=not raw,
        )
        responses = self._paged(
            self._router.make, lambda query: query.ScanWindows, request, freshness, at_least, timeout
        )
        async for response in responses:
            yield conversion.from_scan_windows(response, store)

    scan_windows = _items_of(
        window_pages,
        "scan_windows",
        KeyedWindow,
        lambda page: page.windows,
        "Scan windows one by one: the windows of `window_pages`.",
    )

    async def session_pages(
        self,
        store: str,
        *,
        from_key: AnyKey | None = None,
        to_key: AnyKey | None = None,
        prefix: KeyLike | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
        reverse: bool = False,
        page_size: int = 0,
        freshness: Freshness = ANY,
        at_least: Token | None = None,
        raw: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> AsyncIterator[SessionPage]:
        """Scan the sessions of a range of keys that overlap `from_ms` to `to_ms` (both inclusive), page by page.

        Sessions come in the order of keys, then of starts; keys, pages and failures are as in `pages`.

        Raises:
            LookupFailure: some partition could not be read within the bounds, or the request is wrong.

        """
        request = query_service_pb2.ScanSessionsRequest(
            store=store,
            **await self._key_range(store, from_key, to_key, prefix, timeout),
            from_ms=from_ms,
            to_ms=to_ms,
            reverse=reverse,
            page_size=page_size,
            raw=raw,
            json_text=not raw,
        )
        responses = self._paged(
            self._router.make, lambda query: query.ScanSessions, request, freshness, at_least, timeout
        )
        async for response in responses:
            yield conversion.from_scan_sessions(response, store)

    scan_sessions = _items_of(
        session_pages,
        "scan_sessions",
        KeyedSession,
        lambda page: page.sessions,
        "Scan sessions one by one: the sessions of `session_pages`.",
    )

    async def fetch_windows(
        self,
        store: str,
        key: AnyKey,
        *,
        from_ms: int | None = None,
        to_ms: int | None = None,
        reverse: bool = False,
        page_size: int = 0,
        freshness: Freshness = ANY,
        at_least: Token | None = None,
        raw: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> AsyncIterator[Window]:
        """Read the windows of a key that start within `from_ms` and `to_ms` (both inclusive), oldest first.

        Each page of them is read as it is asked for.

        Raises:
            LookupFailure: nobody could answer within the bounds, the store is of another kind, or the request is wrong.

        """
        request = query_service_pb2.FetchWindowsRequest(
            store=store,
            key=await self._key(store, key, timeout),
            from_ms=from_ms,
            to_ms=to_ms,
            reverse=reverse,
            page_size=page_size,
            raw=raw,
            json_text=not raw,
        )
        responses = self._paged(
            self._lookups.call, lambda query: query.FetchWindows, request, freshness, at_least, timeout
        )
        async for response in responses:
            for window in response.windows:
                yield conversion.from_window(window)

    async def fetch_sessions(
        self,
        store: str,
        key: AnyKey,
        *,
        from_ms: int | None = None,
        to_ms: int | None = None,
        reverse: bool = False,
        page_size: int = 0,
        freshness: Freshness = ANY,
        at_least: Token | None = None,
        raw: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> AsyncIterator[Session]:
        """Read the sessions of a key that overlap `from_ms` to `to_ms` (both inclusive), oldest first.

        Each page of them is read as it is asked for.

        Raises:
            LookupFailure: nobody could answer within the bounds, the store is of another kind, or the request is wrong.

        """
        request = query_service_pb2.FetchSessionsRequest(
            store=store,
            key=await self._key(store, key, timeout),
            from_ms=from_ms,
            to_ms=to_ms,
            reverse=reverse,
            page_size=page_size,
            raw=raw,
            json_text=not raw,
        )
        responses = self._paged(
            self._lookups.call, lambda query: query.FetchSessions, request, freshness, at_least, timeout
        )
        async for response in responses:
            for session in response.sessions:
                yield conversion.from_session(session)

    async def get_history(
        self,
        store: str,
        key: AnyKey,
        *,
        from_ms: int | None = None,
        to_ms: int | None = None,
        reverse: bool = False,
        page_size: int = 0,
        freshness: Freshness = ANY,
        at_least: Token | None = None,
        raw: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> AsyncIterator[VersionedRecord]:
        """Read the versions of a key that were valid within `from_ms` and `to_ms` (both inclusive), oldest first.

        The store is a versioned one. `from_ms` None is the start of the history that it keeps. Each page is read as it
        is asked for.

        Raises:
            LookupFailure: the span begins or ends before the history that the store keeps, the store is of another
                kind, nobody could answer within the bounds, or the request is wrong.

        """
        request = query_service_pb2.GetHistoryRequest(
            store=store,
            key=await self._key(store, key, timeout),
            from_ms=from_ms,
            to_ms=to_ms,
            reverse=reverse,
            page_size=page_size,
            raw=raw,
            json_text=not raw,
        )
        responses = self._paged(
            self._lookups.call, lambda query: query.GetHistory, request, freshness, at_least, timeout
        )
        async for response in responses:
            for version in response.versions:
                yield conversion.from_version(version)

    async def count(
        self,
        store: str,
        *,
        exact: bool = False,
        freshness: Freshness = ANY,
        at_least: Token | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> EntryCount:
        """Count a store's entries: the storage engines' estimate, or with `exact` a count by a scan.

        Raises:
            LookupFailure: some partition could not be counted within the bounds, or the request is wrong.

        """
        async with self._turn(store):
            request = query_service_pb2.CountRequest(
                store=store,
                exact=exact,
                freshness=self._wire(store, freshness, at_least),
            )
            response = await self._router.make(lambda query: query.Count, request, self._seconds(timeout))
            answer = conversion.from_count(response, store)
            self._saw(answer.token)
            self._saw_moment(store, shown_by(store, request.freshness, response.replicas))
            return answer

    async def _key(self, store: str, key: AnyKey, timeout_s: float | None) -> types_pb2.Key:
        return await self._lookups.wire_key(store, key, self._seconds(timeout_s))

    async def _key_range(
        self,
        store: str,
        first: AnyKey | None,
        last: AnyKey | None,
        prefix: KeyLike | None,
        timeout_s: float | None,
    ) -> KeyRangeFields:
        """Return the keys that a scan reads, in their wire form."""
        return {
            "from_key": None if first is None else await self._key(store, first, timeout_s),
            "to_key": None if last is None else await self._key(store, last, timeout_s),
            "prefix": None if prefix is None else prefix_key(prefix),
        }

    def _turn(self, *_stores: str) -> AbstractAsyncContextManager[object]:
        """Return what a read of these stores is made within."""
        return nullcontext()

    def _bounds(self, _store: str, freshness: Freshness, at_least: Token | None = None) -> Freshness:
        """Return the bounds of a read of a store."""
        if at_least is None:
            return freshness
        return replace(freshness, at_least=at_least if freshness.at_least is None else at_least | freshness.at_least)

    def _saw(self, token: Token) -> None:
        """Note the token of an answer."""

    def _saw_moment(self, store: str, moment: MomentToken | None) -> None:
        """Note the batch that an answer about a store is of."""
        self._connections.moments.note(store, moment)

    def _wire(self, store: str, freshness: Freshness, at_least: Token | None) -> types_pb2.Freshness | None:
        return conversion.to_freshness(self._bounds(store, freshness, at_least), store)

    def _seconds(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else in_seconds(timeout_s)

    async def _paged(
        self,
        call: Callable[[Method[PageRequest, PageResponse], PageRequest, float], Awaitable[PageResponse]],
        method: Method[PageRequest, PageResponse],
        request: PageRequest,
        freshness: Freshness,
        at_least: Token | None,
        timeout_s: float | None,
    ) -> AsyncIterator[PageResponse]:
        """Read page after page, each when the caller asks for it, with the bounds of that moment; note what it saw.

        All show the batch of the first one. So each asks for it: tokens of earlier versions' routers don't name it.
        """
        seconds = self._seconds(timeout_s)
        while True:
            async with self._turn(request.store):
                if (bounds := self._wire(request.store, freshness, at_least)) is not None:
                    request.freshness.CopyFrom(bounds)
                response = await call(method, request, seconds)
                stamps = _stamps(response)
                self._saw(conversion.token_of(request.store, stamps))
                moment = shown_by(request.store, request.freshness, stamps)
                self._saw_moment(request.store, moment)
            yield response
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token
            if moment is not None and freshness.moment is not None:
                freshness = replace(freshness, moment=replace(freshness.moment, asked=Asked.EXACTLY, token=moment))


class AsyncReads(AsyncStateReads):
    """`AsyncStateReads`, and the reads that are of no moment: queries of custom stores, and watches."""

    async def query_store(
        self,
        store: str,
        key: AnyKey,
        query: str,
        arguments: Mapping[str, JsonValue] | None = None,
        *,
        freshness: Freshness = ANY,
        at_least: Token | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> QueryAnswer:
        """Ask a custom store one of its own queries about a key; `arguments` are its further JSON values by name.

        Raises:
            LookupFailure: nobody could answer within the bounds, or the request is wrong.
            ValueError: an argument is not JSON.

        """
        request = query_service_pb2.QueryStoreRequest(
            store=store,
            key=await self._key(store, key, timeout),
            freshness=self._wire(store, freshness, at_least),
            query=query,
            **conversion.to_arguments(arguments or {}),
            json_text=True,
        )
        response = await self._router.make(lambda query: query.QueryStore, request, self._seconds(timeout))
        shown_by(store, request.freshness, (response.replica,))
        answer = conversion.from_query_store(response, store)
        self._saw(answer.token)
        return answer

    def watch(
        self,
        store: str,
        key: AnyKey | None = None,
        *,
        prefix: KeyLike | None = None,
        partition: int | None = None,
        resume: Iterable[WatchPosition] = (),
        freshness: Freshness = ANY,
        at_least: Token | None = None,
        raw: bool = False,
    ) -> AsyncWatch:
        """Watch a key, the keys with a prefix, or all keys: the values now, then every change as it comes.

        `partition`: watch only this one. `resume`: the `positions` of an earlier watch of the same keys. The bounds
        hold for the first answer. There is no timeout: a watch goes on until it is closed, also when partitions move.

        Raises (while it is iterated):
            TypeError: the store's keys aren't of the key's type.
            LookupFailure: no replica can serve a partition any more, the router has gone, or the request is wrong.

        """
        positions = tuple(resume)
        request = query_service_pb2.WatchRequest(
            store=store,
            prefix=None if prefix is None else prefix_key(prefix),
            partition=partition,
            resume=map(conversion.to_position, positions),
            freshness=self._wire(store, freshness, at_least),
            raw=raw,
            json_text=not raw,
        )
        return AsyncWatch(self._stream(request, key), store, self._saw, positions)

    def watch_batches(
        self,
        store: str,
        key: AnyKey | None = None,
        *,
        prefix: KeyLike | None = None,
        partition: int | None = None,
        after: str | None = None,
        freshness: Freshness = ANY,
        raw: bool = False,
    ) -> AsyncBatchWatch:
        """Watch a key, the keys with a prefix, or all keys, batch by batch: apply each of them as a whole.

        The first one has all values at its end. `after`: the `token` of the last batch of an earlier watch of the same
        keys; then the first one has what has changed since. `freshness.moment`: which batch may be the first. Several
        may come as one.

        Raises (while it is iterated):
            LookupFailure: as `watch`; MOMENTS_UNAVAILABLE, the store shows no batches; MOMENT_GONE, they began anew.

        Raises:
            ValueError: `after` is no token.

        """
        resumed = () if after is None else mark_in(after).positions
        request = query_service_pb2.WatchRequest(
            store=store,
            prefix=None if prefix is None else prefix_key(prefix),
            partition=partition,
            resume=resumed,
            freshness=self._wire(store, freshness, None),
            mark_moments=True,
            raw=raw,
            json_text=not raw,
        )

        def saw(token: Token, moment: MomentToken) -> None:
            self._saw(token)
            self._saw_moment(store, moment)

        return AsyncBatchWatch(self._stream(request, key), store, saw)

    def _stream(self, request: query_service_pb2.WatchRequest, key: AnyKey | None) -> WatchStream:
        """Begin a watch of a key, None: of what the request says already."""
        peer = self._router.current
        call: WatchCall | OpeningWatchCall
        if key is None:
            call = peer.watch(request)
        elif not needs_serde(key):
            request.key.CopyFrom(to_key(key))
            call = peer.watch(request)
        else:
            call = OpeningWatchCall(partial(self._begin_watch, peer, request, key))

        def named(failure: LookupFailure) -> LookupFailure:
            self._router.stream_failed(peer, failure)
            return peer.named(failure, self._timeout_s)

        return WatchStream(call, named)

    async def _begin_watch(self, peer: RouterPeer, request: query_service_pb2.WatchRequest, key: AnyKey) -> WatchCall:
        request.key.CopyFrom(await self._key(request.store, key, None))
        return peer.watch(request)


def _stamps(response: Any) -> Iterable[types_pb2.ReplicaStamp]:  # noqa: ANN401 - of all partitions, or of one key
    stamps: Iterable[types_pb2.ReplicaStamp] = (
        response.replicas if hasattr(response, "replicas") else (response.replica,)
    )
    return stamps
