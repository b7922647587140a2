"""The client for programs without an event loop."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from statehouse.client.answers import Explanation, Fleet, InputRecord, KeyLike, Location, WatchPosition
from statehouse.client.asynchronous import (
    DEFAULT_MAX_MESSAGE_BYTES,
    DEFAULT_TARGET,
    DEFAULT_TIMEOUT_S,
    AsyncClient,
    AsyncReadSession,
)
from statehouse.client.reads import AsyncReads
from statehouse.client.watches import AsyncWatch, Watch
from statehouse.consistency import ANY, Freshness
from statehouse.positions import Token
from statehouse.rpc.credentials import ClientTls

Item = TypeVar("Item")
Arguments = ParamSpec("Arguments")
_END: Final = object()
_SHUT_DOWN_S: Final = 1.0


def _blocking(
    method: Callable[Concatenate[AsyncReads, Arguments], Coroutine[Any, Any, Item]],
) -> Callable[Concatenate[_Reads, Arguments], Item]:
    """Turn an awaited method into a blocking one."""

    @functools.wraps(method)
    def call(self: _Reads, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Item:
        return self._run(method(self._reads, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[AsyncReads, Arguments], AsyncIterator[Item]],
) -> Callable[Concatenate[_Reads, Arguments], Iterator[Item]]:
    """Turn a method that returns an asynchronous iterator into one that returns an iterator."""

    @functools.wraps(method)
    def call(self: _Reads, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Iterator[Item]:
        return self._iterate(method(self._reads, *args, **kwargs))

    return call


class _Reads:
    """The reads of an `AsyncReads`, with blocking calls."""

    def __init__(self, reads: AsyncReads, loop: asyncio.AbstractEventLoop) -> None:
        self._reads, self._loop = reads, loop

    @property
    def target(self) -> str:
        """The router's address."""
        return self._reads.target

    get = _blocking(AsyncReads.get)
    get_as_of = _blocking(AsyncReads.get_as_of)
    batch_get = _blocking(AsyncReads.batch_get)
    pages = _iterating(AsyncReads.pages)
    scan = _iterating(AsyncReads.scan)
    window_pages = _iterating(AsyncReads.window_pages)
    scan_windows = _iterating(AsyncReads.scan_windows)
    session_pages = _iterating(AsyncReads.session_pages)
    scan_sessions = _iterating(AsyncReads.scan_sessions)
    fetch_windows = _iterating(AsyncReads.fetch_windows)
    fetch_sessions = _iterating(AsyncReads.fetch_sessions)
    get_history = _iterating(AsyncReads.get_history)
    query_store = _blocking(AsyncReads.query_store)
    count = _blocking(AsyncReads.count)

    def watch(
        self,
        store: str,
        key: KeyLike | None = None,
        *,
        prefix: KeyLike | None = None,
        partition: int | None = None,
        resume: Iterable[WatchPosition] = (),
        freshness: Freshness = ANY,
        at_least: Token | None = None,
        raw: bool = False,
    ) -> Watch:
        """Watch a key, a prefix or a store."""

        async def begin() -> AsyncWatch:
            return self._reads.watch(
                store,
                key,
                prefix=prefix,
                partition=partition,
                resume=resume,
                freshness=freshness,
                at_least=at_least,
                raw=raw,
            )

        return Watch(self._run(begin()), self._run)

    def _run(self, work: Coroutine[Any, Any, Item]) -> Item:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupted caller must not leave the call running
            raise

    def _iterate(self, items: AsyncIterator[Item]) -> Iterator[Item]:
        async def following() -> Item | object:
            return await anext(items, _END)

        while (item := self._run(following())) is not _END:
            yield item  # type: ignore[misc] # not the sentinel, so an item


class Client(_Reads):
    """`AsyncClient` with blocking calls; see there for arguments, results and errors.

    An event loop in a thread of its own does the work, so there is one implementation, and any number of threads may
    share a client. Close it, or use it as a context manager.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        direct: bool = True,
        tls: ClientTls | None = None,
    ) -> None:
        loop = asyncio.new_event_loop()
        # A daemon thread: a program that does not close its client must still be able to end.
        self._thread = threading.Thread(target=loop.run_forever, name=f"statehouse-client-{target}", daemon=True)
        self._thread.start()
        connecting = self._connect(target, timeout, max_message_bytes, direct=direct, tls=tls)
        try:
            self._client = asyncio.run_coroutine_threadsafe(connecting, loop).result()
        except BaseException:
            self._end(loop)
            raise
        super().__init__(self._client, loop)

    def locate(self, store: str, key: KeyLike, *, freshness: Freshness = ANY, timeout: float | None = None) -> Location:
        """Return where a key lives."""
        return self._run(self._client.locate(store, key, freshness=freshness, timeout=timeout))

    def explain(
        self,
        store: str,
        key: KeyLike,
        *,
        freshness: Freshness = ANY,
        at_least: Token | None = None,
        raw: bool = False,
        timeout: float | None = None,
    ) -> Explanation:
        """Look one key up through the router, and return each step."""
        return self._run(
            self._client.explain(store, key, freshness=freshness, at_least=at_least, raw=raw, timeout=timeout)
        )

    def fleet(self, *, timeout: float | None = None) -> Fleet:
        """Return the newest assignment and the nodes."""
        return self._run(self._client.fleet(timeout=timeout))

    def await_input(self, store: str, *records: InputRecord, timeout: float | None = None) -> Token:
        """Wait until the processor has committed records of the store's inputs; return what a read must see."""
        return self._run(self._client.await_input(store, *records, timeout=timeout))

    def session(self, at_least: Token | None = None) -> ReadSession:
        """Begin a session. Each read in it sees at least what the session's earlier reads saw, on any replica."""
        return ReadSession(self._client.session(at_least), self._loop)

    def close(self) -> None:
        """Close the connection and end the thread. Closing twice does no harm."""
        if self._loop.is_closed():
            return
        self._run(self._shut_down())
        self._end(self._loop)

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @staticmethod
    async def _connect(
        target: str, timeout_s: float, max_message_bytes: int, *, direct: bool, tls: ClientTls | None
    ) -> AsyncClient:
        # Made on the loop it is used on, as grpc.aio demands.
        return AsyncClient(target, timeout=timeout_s, max_message_bytes=max_message_bytes, direct=direct, tls=tls)

    async def _shut_down(self) -> None:
        """Close the connection, and let other threads' calls end."""
        await self._client.close()
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        if under_way:
            await asyncio.wait(under_way, timeout=_SHUT_DOWN_S)


class ReadSession(_Reads):
    """`AsyncReadSession` with blocking calls."""

    def __init__(self, session: AsyncReadSession, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(session, loop)
        self._session = session

    @property
    def token(self) -> Token:
        """What the session's reads saw."""
        return self._session.token

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; there is nothing to release."""
