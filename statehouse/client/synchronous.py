"""The client for programs without an event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from statehouse.client.asynchronous import (
    DEFAULT_MAX_MESSAGE_BYTES,
    DEFAULT_TARGET,
    DEFAULT_TIMEOUT_S,
    AsyncClient,
    AsyncMomentReads,
    AsyncReadSession,
)
from statehouse.client.frames import AsyncFrameReads
from statehouse.client.reads import AsyncStateReads
from statehouse.client.routers import closed
from statehouse.client.watches import BatchWatch, Watch
from statehouse.contract.moments import MomentToken
from statehouse.contract.positions import Token
from statehouse.rpc import forks
from statehouse.rpc.credentials import ClientTls

Item = TypeVar("Item")
Asynchronous = TypeVar("Asynchronous")
Arguments = ParamSpec("Arguments")
_END: Final = object()
_SHUT_DOWN_S: Final = 1.0


def _blocking(
    method: Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Item]],
) -> Callable[Concatenate[_StateReads, Arguments], Item]:
    """Turn an awaited method into a blocking one."""

    @functools.wraps(method)
    def call(self: _StateReads, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Item:
        return self._run(method(self._reads, *args, **kwargs))

    return call


def _iterating(
    method: Callable[Concatenate[Any, Arguments], AsyncIterator[Item]],
) -> Callable[Concatenate[_StateReads, Arguments], Iterator[Item]]:
    """Turn a method that returns an asynchronous iterator into one that returns an iterator."""

    @functools.wraps(method)
    def call(self: _StateReads, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Iterator[Item]:
        return self._iterate(method(self._reads, *args, **kwargs))

    return call


def _watching(
    method: Callable[Concatenate[Any, Arguments], Asynchronous],
    blocking: Callable[[Asynchronous, Callable[[Coroutine[Any, Any, Any]], Any]], Item],
) -> Callable[Concatenate[_Reads, Arguments], Item]:
    """Turn a method that begins an asynchronous watch into one that begins a blocking one."""

    @functools.wraps(method)
    def call(self: _Reads, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Item:
        async def begin() -> Asynchronous:
            return method(self._reads, *args, **kwargs)

        return blocking(self._run(begin()), self._run)

    return call


class _Calls:
    """Has an event loop do work, in a thread of its own that begins with the first work and ends with the last.

    `last`: the last work, when this is ended, or when nothing refers to it.
    """

    def __init__(self, name: str, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._name, self._last = name, last
        self._locks: dict[int, threading.Lock] = {}
        self._begun: _CallThread | None = None
        self.is_closed = False
        """Whether the last work has begun: what comes later would be waited for without end."""

    def begin(self, work: Coroutine[Any, Any, Item]) -> concurrent.futures.Future[Item]:
        """Begin work; return what comes of it.

        Raises:
            LookupFailure: the last work has begun.
            UsageError: the thread is in the process that this one was forked from.

        """
        with self._lock():
            try:
                loop = self._loop()
            except BaseException:
                work.close()
                raise
            return asyncio.run_coroutine_threadsafe(work, loop)

    def end(self) -> None:
        """Do the last work, and end the thread. A process that was forked leaves it to the other one."""
        with self._lock():
            if self.is_closed:
                return
            self.is_closed = True
            begun = self._begun
            if begun is None or begun.pid != os.getpid():
                return
            ending = asyncio.run_coroutine_threadsafe(self._last(), begun.loop)
        try:
            ending.result()
        finally:
            begun.end()
            self._begun = None

    def _loop(self) -> asyncio.AbstractEventLoop:
        if self.is_closed:
            raise closed()
        if self._begun is None:
            forks.use()  # before there is a thread: where gRPC doesn't work, nothing is to be left behind
            self._begun = _CallThread(self._name)
            weakref.finalize(self, self._begun.abandon, self._last).atexit = False
        elif self._begun.pid != os.getpid():
            raise forks.forked(self._begun.pid)
        return self._begun.loop

    def _lock(self) -> threading.Lock:
        # One for each process: a thread that isn't in a forked process may have held the lock when it was forked.
        return self._locks.setdefault(os.getpid(), threading.Lock())


class _CallThread:
    """An event loop that runs in a thread of its own, and the process that it runs in."""

    def __init__(self, name: str) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_tell)
        # A daemon thread: a program that does not close its client must still be able to end.
        self._thread = threading.Thread(target=_run_to_end, args=(self.loop,), name=name, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def abandon(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do the last work and end the thread, if nobody has; wait for neither: it may be this very thread."""
        if self.pid == os.getpid() and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(
                lambda: self.loop.create_task(last()).add_done_callback(lambda _: self.loop.stop())
            )


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # gRPC wakes each loop of the process for every call. A call of a loop that has ended by then, or one that another
    # loop has taken first, is nothing to this one: grpc/grpc issue 25364.
    is_for_another = isinstance(context.get("exception"), BlockingIOError | RuntimeError)
    if not (is_for_another and "PollerCompletionQueue._handle_events" in context["message"]):
        loop.default_exception_handler(context)


def _run_to_end(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(_wind_up())
    finally:
        loop.close()


async def _wind_up() -> None:
    """Let calls under way end, and close iterators that nobody has read to their end."""
    await _end_other_tasks()
    await asyncio.get_running_loop().shutdown_asyncgens()
    await _end_other_tasks()  # iterators that nobody refers to close in tasks of their own


async def _end_other_tasks() -> None:
    under_way = asyncio.all_tasks() - {asyncio.current_task()}
    if under_way:
        _, late = await asyncio.wait(under_way, timeout=_SHUT_DOWN_S)
        for each in late:
            each.cancel()  # a caller that waits for it would do so without end
        if late:
            await asyncio.wait(late, timeout=_SHUT_DOWN_S)


class _StateReads:
    """The reads of an `AsyncStateReads`, with blocking calls."""

    def __init__(self, reads: AsyncStateReads, calls: _Calls) -> None:
        self._reads, self._calls = reads, calls

    @property
    def target(self) -> str:
        """The router's address."""
        return self._reads.target

    get = _blocking(AsyncStateReads.get)
    get_as_of = _blocking(AsyncStateReads.get_as_of)
    batch_get = _blocking(AsyncStateReads.batch_get)
    pages = _iterating(AsyncStateReads.pages)
    scan = _iterating(AsyncStateReads.scan)
    window_pages = _iterating(AsyncStateReads.window_pages)
    scan_windows = _iterating(AsyncStateReads.scan_windows)
    session_pages = _iterating(AsyncStateReads.session_pages)
    scan_sessions = _iterating(AsyncStateReads.scan_sessions)
    fetch_windows = _iterating(AsyncStateReads.fetch_windows)
    fetch_sessions = _iterating(AsyncStateReads.fetch_sessions)
    get_history = _iterating(AsyncStateReads.get_history)
    count = _blocking(AsyncStateReads.count)

    def _run(self, work: Coroutine[Any, Any, Item]) -> Item:
        future = self._calls.begin(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise closed() from None
        except BaseException:
            future.cancel()  # an interrupted caller must not leave the call running
            raise

    def _iterate(self, items: AsyncIterator[Item]) -> Iterator[Item]:
        async def following() -> Item | object:
            return await anext(items, _END)

        while (item := self._run(following())) is not _END:
            yield item  # type: ignore[misc] # not the sentinel, so an item


class _Reads(_StateReads):
    """The reads of an `AsyncFrameReads`, with blocking calls."""

    query_store = _blocking(AsyncFrameReads.query_store)
    describe = _blocking(AsyncFrameReads.describe)
    arrow_batches = _iterating(AsyncFrameReads.arrow_batches)
    frame_batches = _iterating(AsyncFrameReads.frame_batches)
    frame_of_moment = _blocking(AsyncFrameReads.frame_of_moment)
    to_arrow = _blocking(AsyncFrameReads.to_arrow)
    to_pandas = _blocking(AsyncFrameReads.to_pandas)

    watch = _watching(AsyncFrameReads.watch, Watch)
    watch_batches = _watching(AsyncFrameReads.watch_batches, BatchWatch)


class Client(_Reads):
    """`AsyncClient` with blocking calls; see there for arguments, results and errors.

    An event loop in a thread of its own does the work, so there is one implementation, and any number of threads may
    share a client. Close it, or use it as a context manager: what is left open is closed some time after the last
    reference to it. Thread and connections begin with the first use, so a
    client may be made before a process is forked. Once it is in use, it raises `UsageError` in forked processes.
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        direct: bool = True,
        tls: ClientTls | None = None,
        tracing: bool = False,
    ) -> None:
        self._client = AsyncClient(
            target, timeout=timeout, max_message_bytes=max_message_bytes, direct=direct, tls=tls, tracing=tracing
        )
        super().__init__(self._client, _Calls(f"statehouse-client-{target}", self._client.close))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.target!r})"

    def __reduce__(self) -> tuple[object, ...]:
        """Say how to make a client of the same settings: threads and connections can't be taken along."""
        return functools.partial(type(self), **self._client.settings), (self.target,)

    locate = _blocking(AsyncClient.locate)
    explain = _blocking(AsyncClient.explain)
    fleet = _blocking(AsyncClient.fleet)
    stores = _blocking(AsyncClient.stores)
    partitions = _blocking(AsyncClient.partitions)
    await_input = _blocking(AsyncClient.await_input)
    describe_moment = _blocking(AsyncClient.describe_moment)

    def session(self, at_least: Token | None = None) -> ReadSession:
        """Begin a session. Each read in it sees at least what the session's earlier reads saw, on any replica."""
        return ReadSession(self._client.session(at_least), self._calls)

    def moment(self, at_least: MomentToken | None = None) -> MomentReads:
        """Begin reads of one moment: whatever is read in it is of the same batch, of each query."""
        return MomentReads(self._client.moment(at_least), self._calls)

    def close(self) -> None:
        """Close the connection and end the thread; calls under way fail. Closing twice does no harm."""
        self._calls.end()

    def __enter__(self) -> Self:
        """Return itself.

        Raises:
            LookupFailure: it was closed.

        """
        if self._calls.is_closed:
            raise closed()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ReadSession(_Reads):
    """`AsyncReadSession` with blocking calls."""

    def __init__(self, session: AsyncReadSession, calls: _Calls) -> None:
        super().__init__(session, calls)
        self._session = session

    @property
    def token(self) -> Token:
        """What the session's reads saw."""
        return self._session.token

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.target!r}, token={str(self.token)!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End; there is nothing to release."""


class MomentReads(_StateReads):
    """`AsyncMomentReads` with blocking calls."""

    def __init__(self, reads: AsyncMomentReads, calls: _Calls) -> None:
        super().__init__(reads, calls)
        self._of_moment = reads

    @property
    def moment(self) -> MomentToken:
        """The batches that were shown, one of each query."""
        return self._of_moment.moment

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.target!r}, moment={str(self.moment)!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End; there is nothing to release."""
