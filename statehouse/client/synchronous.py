"""The client for programs without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from statehouse.client.answers import (
    Answer,
    Count,
    Entry,
    Fleet,
    KeyedWindow,
    KeyLike,
    Location,
    Page,
    QueryAnswer,
    WatchPosition,
    WindowPage,
)
from statehouse.client.asynchronous import (
    DEFAULT_MAX_MESSAGE_BYTES,
    DEFAULT_TARGET,
    DEFAULT_TIMEOUT_S,
    AsyncClient,
)
from statehouse.client.watches import AsyncWatch, Watch
from statehouse.serdes import JsonValue

Item = TypeVar("Item")
_END: Final = object()


class Client:
    """`AsyncClient` with blocking calls; see there for what they take, return and raise.

    An event loop in a thread of its own does the work, so there is one implementation, and any number of threads may
    share a client. Close it, or use it as a context manager.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        # A daemon: a program that forgets to close its client must still be able to end.
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"statehouse-client-{target}", daemon=True)
        self._thread.start()
        self._client = self._run(self._connect(target, timeout, max_message_bytes))

    @property
    def target(self) -> str:
        """The router's address."""
        return self._client.target

    def get(
        self,
        store: str,
        key: KeyLike,
        *,
        active_only: bool = False,
        max_lag: int | None = None,
        max_staleness_ms: int | None = None,
        raw: bool = False,
        timeout: float | None = None,
    ) -> Answer:
        """Look one key up."""
        return self._run(
            self._client.get(
                store,
                key,
                active_only=active_only,
                max_lag=max_lag,
                max_staleness_ms=max_staleness_ms,
                raw=raw,
                timeout=timeout,
            )
        )

    def pages(
        self,
        store: str,
        *,
        from_key: KeyLike | None = None,
        to_key: KeyLike | None = None,
        prefix: KeyLike | None = None,
        reverse: bool = False,
        page_size: int = 0,
        active_only: bool = False,
        max_lag: int | None = None,
        max_staleness_ms: int | None = None,
        raw: bool = False,
        timeout: float | None = None,
    ) -> Iterator[Page]:
        """Scan a store page by page."""
        return self._iterate(
            self._client.pages(
                store,
                from_key=from_key,
                to_key=to_key,
                prefix=prefix,
                reverse=reverse,
                page_size=page_size,
                active_only=active_only,
                max_lag=max_lag,
                max_staleness_ms=max_staleness_ms,
                raw=raw,
                timeout=timeout,
            )
        )

    def scan(
        self,
        store: str,
        *,
        from_key: KeyLike | None = None,
        to_key: KeyLike | None = None,
        prefix: KeyLike | None = None,
        reverse: bool = False,
        page_size: int = 0,
        active_only: bool = False,
        max_lag: int | None = None,
        max_staleness_ms: int | None = None,
        raw: bool = False,
        timeout: float | None = None,
    ) -> Iterator[Entry]:
        """Scan a store entry by entry."""
        pages = self.pages(
            store,
            from_key=from_key,
            to_key=to_key,
            prefix=prefix,
            reverse=reverse,
            page_size=page_size,
            active_only=active_only,
            max_lag=max_lag,
            max_staleness_ms=max_staleness_ms,
            raw=raw,
            timeout=timeout,
        )
        for page in pages:
            yield from page.entries

    def window_pages(
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
        active_only: bool = False,
        max_lag: int | None = None,
        max_staleness_ms: int | None = None,
        raw: bool = False,
        timeout: float | None = None,
    ) -> Iterator[WindowPage]:
        """Scan the windows of a range of keys page by page."""
        return self._iterate(
            self._client.window_pages(
                store,
                from_key=from_key,
                to_key=to_key,
                prefix=prefix,
                from_ms=from_ms,
                to_ms=to_ms,
                reverse=reverse,
                page_size=page_size,
                active_only=active_only,
                max_lag=max_lag,
                max_staleness_ms=max_staleness_ms,
                raw=raw,
                timeout=timeout,
            )
        )

    def scan_windows(
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
        active_only: bool = False,
        max_lag: int | None = None,
        max_staleness_ms: int | None = None,
        raw: bool = False,
        timeout: float | None = None,
    ) -> Iterator[KeyedWindow]:
        """Scan windows one by one."""
        return self._iterate(
            self._client.scan_windows(
                store,
                from_key=from_key,
                to_key=to_key,
                prefix=prefix,
                from_ms=from_ms,
                to_ms=to_ms,
                reverse=reverse,
                page_size=page_size,
                active_only=active_only,
                max_lag=max_lag,
                max_staleness_ms=max_staleness_ms,
                raw=raw,
                timeout=timeout,
            )
        )

    def query_store(
        self,
        store: str,
        key: KeyLike,
        query: str,
        arguments: Mapping[str, JsonValue] | None = None,
        *,
        active_only: bool = False,
        max_lag: int | None = None,
        max_staleness_ms: int | None = None,
        timeout: float | None = None,
    ) -> QueryAnswer:
        """Ask a custom store a query of its own about a key."""
        return self._run(
            self._client.query_store(
                store,
                key,
                query,
                arguments,
                active_only=active_only,
                max_lag=max_lag,
                max_staleness_ms=max_staleness_ms,
                timeout=timeout,
            )
        )

    def count(
        self,
        store: str,
        *,
        exact: bool = False,
        active_only: bool = False,
        max_lag: int | None = None,
        max_staleness_ms: int | None = None,
        timeout: float | None = None,
    ) -> Count:
        """Count a store's entries."""
        return self._run(
            self._client.count(
                store,
                exact=exact,
                active_only=active_only,
                max_lag=max_lag,
                max_staleness_ms=max_staleness_ms,
                timeout=timeout,
            )
        )

    def watch(
        self,
        store: str,
        key: KeyLike | None = None,
        *,
        prefix: KeyLike | None = None,
        partition: int | None = None,
        resume: Iterable[WatchPosition] = (),
        active_only: bool = False,
        max_lag: int | None = None,
        max_staleness_ms: int | None = None,
        raw: bool = False,
    ) -> Watch:
        """Watch a key, a prefix or a store."""

        async def begin() -> AsyncWatch:
            return self._client.watch(
                store,
                key,
                prefix=prefix,
                partition=partition,
                resume=resume,
                active_only=active_only,
                max_lag=max_lag,
                max_staleness_ms=max_staleness_ms,
                raw=raw,
            )

        return Watch(self._run(begin()), self._run)

    def locate(
        self,
        store: str,
        key: KeyLike,
        *,
        active_only: bool = False,
        max_lag: int | None = None,
        max_staleness_ms: int | None = None,
        timeout: float | None = None,
    ) -> Location:
        """Tell where a key lives."""
        return self._run(
            self._client.locate(
                store,
                key,
                active_only=active_only,
                max_lag=max_lag,
                max_staleness_ms=max_staleness_ms,
                timeout=timeout,
            )
        )

    def fleet(self, *, timeout: float | None = None) -> Fleet:
        """Return the fleet, as the router sees it."""
        return self._run(self._client.fleet(timeout=timeout))

    def close(self) -> None:
        """Close the connection and end the thread. Harmless when closed."""
        if self._loop.is_closed():
            return
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @staticmethod
    async def _connect(target: str, timeout_s: float, max_message_bytes: int) -> AsyncClient:
        # Made on the loop it is used on, as grpc.aio demands.
        return AsyncClient(target, timeout=timeout_s, max_message_bytes=max_message_bytes)

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
