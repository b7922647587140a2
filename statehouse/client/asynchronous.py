"""The client for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

import grpc
import grpc.aio

from statehouse.client import batches, conversion
from statehouse.client.answers import (
    Answer,
    Count,
    Entry,
    Fleet,
    KeyedWindow,
    KeyLike,
    Location,
    Lookup,
    Page,
    QueryAnswer,
    Session,
    WatchPosition,
    Window,
    WindowPage,
)
from statehouse.client.watches import AsyncWatch
from statehouse.consistency import ANY, Freshness
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.failures import from_rpc_error
from statehouse.serdes import JsonValue
from statehouse.v1 import (
    fleet_service_pb2,
    fleet_service_pb2_grpc,
    query_service_pb2,
    query_service_pb2_grpc,
)

DEFAULT_TARGET: Final = "127.0.0.1:7100"
DEFAULT_TIMEOUT_S: Final = 5.0
DEFAULT_MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024


class _HasPageToken(Protocol):
    page_token: str


class _HasNextPageToken(Protocol):
    next_page_token: str


Response = TypeVar("Response")
PageRequest = TypeVar("PageRequest", bound=_HasPageToken)
PageResponse = TypeVar("PageResponse", bound=_HasNextPageToken)

_CHANNEL_OPTIONS: Final = (
    # A router that restarts is found again within a second, not after gRPC's default of up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # One that vanished without closing its connections is noticed by pings.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # What may be retried is decided by the router, which knows the candidates.
    ("grpc.enable_retries", 0),
)


class AsyncClient:
    """Reads stores through a router. Belongs to the event loop it is first used on.

    `target`: a router's host:port, or a node's, which answers for its own partitions only.
    `timeout`: seconds for each call, each page of a scan being one; a method's `timeout` overrides it.
    `max_message_bytes`: must be what routers and nodes have.

    `freshness`: the bounds of a `Freshness` must all hold. With none, the active answers if it can, else the freshest
    standby, and the answer says which.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        self.target = target
        self._timeout_s, self._max_message_bytes = timeout, max_message_bytes
        self._options = [
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", max_message_bytes),
            *_CHANNEL_OPTIONS,
        ]
        self._channel = grpc.aio.insecure_channel(target, options=self._options)
        self._query = query_service_pb2_grpc.QueryServiceStub(self._channel)
        self._fleet = fleet_service_pb2_grpc.FleetServiceStub(self._channel)

    async def get(
        self,
        store: str,
        key: KeyLike,
        *,
        freshness: Freshness = ANY,
        raw: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - it is sent with the call, so that nobody works past it
    ) -> Answer:
        """Look one key up; with `raw` the value comes as the bytes in the changelog.

        Raises:
            LookupFailure: nobody could answer within the bounds, or the request is wrong.

        """
        request = conversion.to_get(Lookup(store, key, freshness, raw))
        seconds = self._seconds(timeout)
        return conversion.from_get(await self._call(self._query.Get(request, timeout=seconds), seconds))

    async def get_as_of(
        self,
        store: str,
        key: KeyLike,
        as_of_ms: int | None = None,
        *,
        freshness: Freshness = ANY,
        raw: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> Answer:
        """Look up the value that a key of a versioned store had at a time, epoch milliseconds; None is the latest.

        Raises:
            LookupFailure: the time is before the history that the store keeps, the store is of another kind, nobody
                could answer within the bounds, or the request is wrong.

        """
        request = query_service_pb2.GetAsOfRequest(
            store=store,
            key=conversion.to_key(key),
            as_of_ms=as_of_ms,
            freshness=conversion.to_freshness(freshness),
            raw=raw,
        )
        seconds = self._seconds(timeout)
        return conversion.from_get_as_of(await self._call(self._query.GetAsOf(request, timeout=seconds), seconds))

    async def batch_get(
        self,
        requests: Iterable[Lookup],
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> list[Answer | LookupFailure]:
        """Look several keys up, of any stores; one outcome a key, in their order.

        A key that can't be answered has its failure as its outcome, and so has every key of a call that fails: nothing
        is raised. What is too much for one call is split into several, one after the other, each with `timeout`.
        """
        seconds = self._seconds(timeout)

        async def ask(batch: query_service_pb2.BatchGetRequest) -> query_service_pb2.BatchGetResponse:
            return await self._call(self._query.BatchGet(batch, timeout=seconds), seconds)

        return await batches.batch_get(list(map(conversion.to_get, requests)), ask, self._max_message_bytes)

    async def pages(
        self,
        store: str,
        *,
        from_key: KeyLike | None = None,
        to_key: KeyLike | None = None,
        prefix: KeyLike | None = None,
        reverse: bool = False,
        page_size: int = 0,
        freshness: Freshness = ANY,
        raw: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> AsyncIterator[Page]:
        """Scan a store page by page, in unsigned byte order of the serialized keys; both ends are inclusive.

        `prefix` excludes the ends. `page_size` 0 is the server's default. Each page is read as it is asked for; a page
        may be empty and not the last.

        Raises:
            LookupFailure: some partition could not be read within the bounds, or the request is wrong.

        """
        request = query_service_pb2.ScanRequest(
            store=store,
            from_key=None if from_key is None else conversion.to_key(from_key),
            to_key=None if to_key is None else conversion.to_key(to_key),
            prefix=None if prefix is None else conversion.to_key(prefix),
            reverse=reverse,
            page_size=page_size,
            freshness=conversion.to_freshness(freshness),
            raw=raw,
        )
        async for response in self._paged(self._query.Scan, request, timeout):
            yield conversion.from_scan(response)

    async def scan(
        self,
        store: str,
        *,
        from_key: KeyLike | None = None,
        to_key: KeyLike | None = None,
        prefix: KeyLike | None = None,
        reverse: bool = False,
        page_size: int = 0,
        freshness: Freshness = ANY,
        raw: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> AsyncIterator[Entry]:
        """Scan a store entry by entry: `pages` without their seams."""
        pages = self.pages(
            store,
            from_key=from_key,
            to_key=to_key,
            prefix=prefix,
            reverse=reverse,
            page_size=page_size,
            freshness=freshness,
            raw=raw,
            timeout=timeout,
        )
        async for page in pages:
            for entry in page.entries:
                yield entry

    async def window_pages(
        self,
        store: str,
        *,
        from_key: KeyLike | None = None,
        to_key: KeyLike | None = None,
        prefix: KeyLike | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
        reverse: bool = False,
        page_size: int = 0,
        freshness: Freshness = ANY,
        raw: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> AsyncIterator[WindowPage]:
        """Scan the windows of a range of keys that start within `from_ms` and `to_ms` (both inclusive), page by page.

        In the order of keys, each key's windows by start; keys, pages and failures are as in `pages`.

        Raises:
            LookupFailure: some partition could not be read within the bounds, or the request is wrong.

        """
        request = query_service_pb2.ScanWindowsRequest(
            store=store,
            from_key=None if from_key is None else conversion.to_key(from_key),
            to_key=None if to_key is None else conversion.to_key(to_key),
            prefix=None if prefix is None else conversion.to_key(prefix),
            from_ms=from_ms,
            to_ms=to_ms,
            reverse=reverse,
            page_size=page_size,
            freshness=conversion.to_freshness(freshness),
            raw=raw,
        )
        async for response in self._paged(self._query.ScanWindows, request, timeout):
            yield conversion.from_scan_windows(response)

    async def scan_windows(
        self,
        store: str,
        *,
        from_key: KeyLike | None = None,
        to_key: KeyLike | None = None,
        prefix: KeyLike | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
        reverse: bool = False,
        page_size: int = 0,
        freshness: Freshness = ANY,
        raw: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> AsyncIterator[KeyedWindow]:
        """Scan windows one by one: `window_pages` without their seams."""
        pages = self.window_pages(
            store,
            from_key=from_key,
            to_key=to_key,
            prefix=prefix,
            from_ms=from_ms,
            to_ms=to_ms,
            reverse=reverse,
            page_size=page_size,
            freshness=freshness,
            raw=raw,
            timeout=timeout,
        )
        async for page in pages:
            for window in page.windows:
                yield window

    async def fetch_windows(
        self,
        store: str,
        key: KeyLike,
        *,
        from_ms: int | None = None,
        to_ms: int | None = None,
        reverse: bool = False,
        page_size: int = 0,
        freshness: Freshness = ANY,
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
            key=conversion.to_key(key),
            from_ms=from_ms,
            to_ms=to_ms,
            reverse=reverse,
            page_size=page_size,
            freshness=conversion.to_freshness(freshness),
            raw=raw,
        )
        async for response in self._paged(self._query.FetchWindows, request, timeout):
            for window in response.windows:
                yield conversion.from_window(window)

    async def fetch_sessions(
        self,
        store: str,
        key: KeyLike,
        *,
        from_ms: int | None = None,
        to_ms: int | None = None,
        reverse: bool = False,
        page_size: int = 0,
        freshness: Freshness = ANY,
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
            key=conversion.to_key(key),
            from_ms=from_ms,
            to_ms=to_ms,
            reverse=reverse,
            page_size=page_size,
            freshness=conversion.to_freshness(freshness),
            raw=raw,
        )
        async for response in self._paged(self._query.FetchSessions, request, timeout):
            for session in response.sessions:
                yield conversion.from_session(session)

    async def query_store(
        self,
        store: str,
        key: KeyLike,
        query: str,
        arguments: Mapping[str, JsonValue] | None = None,
        *,
        freshness: Freshness = ANY,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> QueryAnswer:
        """Ask a custom store a query of its own about a key; `arguments` are what it needs beside, as JSON has it.

        Raises:
            LookupFailure: nobody could answer within the bounds, or the request is wrong.
            ValueError: an argument is not JSON.

        """
        request = query_service_pb2.QueryStoreRequest(
            store=store,
            key=conversion.to_key(key),
            freshness=conversion.to_freshness(freshness),
            query=query,
            arguments=conversion.to_arguments(arguments or {}),
        )
        seconds = self._seconds(timeout)
        return conversion.from_query_store(await self._call(self._query.QueryStore(request, timeout=seconds), seconds))

    async def count(
        self,
        store: str,
        *,
        exact: bool = False,
        freshness: Freshness = ANY,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> Count:
        """Count a store's entries: the engines' estimate, or with `exact` by a scan.

        Raises:
            LookupFailure: some partition could not be counted within the bounds, or the request is wrong.

        """
        request = query_service_pb2.CountRequest(
            store=store,
            exact=exact,
            freshness=conversion.to_freshness(freshness),
        )
        seconds = self._seconds(timeout)
        return conversion.from_count(await self._call(self._query.Count(request, timeout=seconds), seconds))

    def watch(
        self,
        store: str,
        key: KeyLike | None = None,
        *,
        prefix: KeyLike | None = None,
        partition: int | None = None,
        resume: Iterable[WatchPosition] = (),
        freshness: Freshness = ANY,
        raw: bool = False,
    ) -> AsyncWatch:
        """Watch a key, the keys with a prefix, or with neither all: the values now, then every change as it comes.

        `partition`: only this one. `resume`: the `positions` of an earlier watch of the same keys. The bounds are for
        the first answer. There is no timeout: a watch goes on until it is closed, also when partitions move.

        Raises (while it is iterated):
            LookupFailure: nobody can serve a partition any more, the router has gone, or the request is wrong.

        """
        positions = tuple(resume)
        request = query_service_pb2.WatchRequest(
            store=store,
            key=None if key is None else conversion.to_key(key),
            prefix=None if prefix is None else conversion.to_key(prefix),
            partition=partition,
            resume=map(conversion.to_position, positions),
            freshness=conversion.to_freshness(freshness),
            raw=raw,
        )
        return AsyncWatch(self._query.Watch(request), lambda failure: self._named(failure, self._timeout_s), positions)

    async def locate(
        self,
        store: str,
        key: KeyLike,
        *,
        freshness: Freshness = ANY,
        timeout: float | None = None,  # noqa: ASYNC109 - as above
    ) -> Location:
        """Tell where a key lives and, for each replica, whether a lookup within the bounds would use it.

        Raises:
            LookupFailure: the store is unknown, the key wrong, or the router not ready.

        """
        request = fleet_service_pb2.LocateKeyRequest(
            store=store,
            key=conversion.to_key(key),
            freshness=conversion.to_freshness(freshness),
        )
        seconds = self._seconds(timeout)
        return conversion.from_locate(await self._call(self._fleet.LocateKey(request, timeout=seconds), seconds))

    async def fleet(self, *, timeout: float | None = None) -> Fleet:  # noqa: ASYNC109 - as above
        """Return the newest assignment and the nodes, as the router sees them.

        Raises:
            LookupFailure: the router can't be reached or is not ready.

        """
        seconds = self._seconds(timeout)
        request = fleet_service_pb2.GetFleetRequest()
        return conversion.from_fleet(await self._call(self._fleet.GetFleet(request, timeout=seconds), seconds))

    async def close(self) -> None:
        """Close the connection; calls under way fail."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _seconds(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s

    async def _paged(
        self,
        method: grpc.aio.UnaryUnaryMultiCallable[PageRequest, PageResponse],
        request: PageRequest,
        timeout_s: float | None,
    ) -> AsyncIterator[PageResponse]:
        """Read page after page, each as it is asked for."""
        seconds = self._seconds(timeout_s)
        while True:
            response = await self._call(method(request, timeout=seconds), seconds)
            yield response
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token

    async def _call(self, call: Awaitable[Response], seconds: float) -> Response:
        try:
            return await call
        except grpc.RpcError as error:
            raise self._named(from_rpc_error(error), seconds) from error

    def _named(self, failure: LookupFailure, seconds: float) -> LookupFailure:
        """Say of a transport failure whom it concerns: what gRPC has to say of it helps nobody."""
        if "grpc_status" not in failure.metadata:
            return failure
        metadata = {**failure.metadata, "target": self.target}
        if failure.reason is Reason.UNREACHABLE:
            message = f"{self.target} can't be reached ({failure.message}); is the router running there?"
            return LookupFailure(Reason.UNREACHABLE, message, metadata)
        if failure.reason is Reason.ATTEMPT_TIMED_OUT:
            message = f"{self.target} gave no answer within {seconds:g} s; allow more time with timeout"
            return LookupFailure(Reason.DEADLINE_EXCEEDED, message, metadata)
        return failure
