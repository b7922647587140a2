"""The client's watches: iterators that know where to resume."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Generic, Self, TypeVar

import grpc
import grpc.aio

from statehouse.client import conversion
from statehouse.client.answers import Batch, Update, WatchPosition
from statehouse.client.batch_parts import BatchParts
from statehouse.client.watch_progress import WatchProgress
from statehouse.contract.moments import MomentToken, unavailable
from statehouse.contract.positions import Token
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.failures import from_rpc_error
from statehouse.runtime.waiting import is_told_to_end
from statehouse.v1 import query_service_pb2

UNMARKED: Final = "the router is of an earlier version, and marks no batches: upgrade it"
Item_co = TypeVar("Item_co", covariant=True)
WatchCall = grpc.aio.UnaryStreamCall[query_service_pb2.WatchRequest, query_service_pb2.WatchResponse]


class OpeningWatchCall:
    """A call that begins when it is first read: something has to be asked for before."""

    def __init__(self, begin: Callable[[], Awaitable[WatchCall]]) -> None:
        self._begin = begin
        self._call: WatchCall | None = None
        self._is_cancelled = False

    async def read(self) -> Any:  # noqa: ANN401 - as gRPC's
        """Read the next response.

        Raises:
            LookupFailure: the call can't begin.
            grpc.RpcError: it failed.

        """
        if self._call is None:
            self._call = await self._begin()
        if self._is_cancelled:
            self._call.cancel()
        return await self._call.read()

    def cancel(self) -> None:
        """End it."""
        self._is_cancelled = True
        if self._call is not None:
            self._call.cancel()


class WatchStream:
    """The responses of a watch. `named` names the router in a failure."""

    def __init__(self, call: WatchCall | OpeningWatchCall, named: Callable[[LookupFailure], LookupFailure]) -> None:
        self._call, self._named = call, named

    async def read(self) -> query_service_pb2.WatchResponse:
        """Return the next response.

        Raises:
            LookupFailure: there is none.
            StopAsyncIteration: the watch or its client was closed.

        """
        try:
            response = await self._call.read()
        except grpc.RpcError as error:
            raise self._named(from_rpc_error(error)) from error
        except asyncio.CancelledError:
            if is_told_to_end():
                raise
            # Our task was not cancelled, the call was: the watch or its client was closed, maybe by another task.
            raise StopAsyncIteration from None
        if isinstance(response, query_service_pb2.WatchResponse):
            return response
        raise LookupFailure(Reason.UNREACHABLE, "the watch was ended without a reason; resume it")

    def cancel(self) -> None:
        """Leave."""
        self._call.cancel()


class _Asynchronous(ABC, Generic[Item_co]):
    """Yields what comes of a watch."""

    def __init__(self, stream: WatchStream) -> None:
        self._stream = stream

    def __aiter__(self) -> Self:
        return self

    @abstractmethod
    async def __anext__(self) -> Item_co:
        """Return the next one."""

    async def close(self) -> None:
        """Leave."""
        self._stream.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncWatch(_Asynchronous[Update]):
    """Yields updates until it or its client is closed; raises `LookupFailure` when no replica can serve it any more.

    Leave it with `close`, or use it as a context manager.
    """

    def __init__(
        self,
        stream: WatchStream,
        store: str,
        saw: Callable[[Token], None],
        resume: tuple[WatchPosition, ...],
    ) -> None:
        super().__init__(stream)
        self._store, self._saw = store, saw
        self._progress = WatchProgress(resume)
        self._under_way: Update | None = None

    @property
    def positions(self) -> tuple[WatchPosition, ...]:
        """Where to resume: after the processed updates. An update is processed when the next one is asked for."""
        return self._progress.positions

    async def __anext__(self) -> Update:
        if self._under_way is not None:
            self._progress.note(self._under_way)
        while True:
            update = await self._next()
            if update.changes or update.current or update.gap:
                self._under_way = update
                return update
            self._progress.note(update)

    async def _next(self) -> Update:
        update = conversion.from_watch(await self._stream.read(), self._store)
        self._saw(update.token)
        return update


class AsyncBatchWatch(_Asynchronous[Batch]):
    """Yields whole batches until it or its client is closed; raises `LookupFailure` when it can't go on.

    Leave it with `close`, or use it as a context manager.
    """

    def __init__(self, stream: WatchStream, store: str, saw: Callable[[Token, MomentToken], None]) -> None:
        super().__init__(stream)
        self._store, self._saw = store, saw
        self._parts = BatchParts(store)
        self._has_begun = False

    async def __anext__(self) -> Batch:
        while True:
            response = await self._stream.read()
            if not self._has_begun and not response.HasField("mark"):
                self._stream.cancel()
                raise unavailable(self._store, UNMARKED)
            self._has_begun = True
            if not response.HasField("mark"):
                self._parts.take(conversion.from_watch(response, self._store), response.ByteSize())
            elif response.mark.HasField("moment"):
                batch = self._parts.whole(response.mark)
                for update in batch.updates:
                    self._saw(update.token, batch.moment)
                return batch


class _Blocking(Generic[Item_co]):
    """Yields the same to programs without an event loop."""

    def __init__(self, watch: _Asynchronous[Item_co], run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._watch, self._run = watch, run

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item_co:
        try:
            item: Item_co = self._run(self._watch.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None
        return item

    def close(self) -> None:
        """Leave."""
        self._run(self._watch.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Watch(_Blocking[Update]):
    """`AsyncWatch` for programs without an event loop."""

    _watch: AsyncWatch

    @property
    def positions(self) -> tuple[WatchPosition, ...]:
        """Where to resume."""
        return self._watch.positions


class BatchWatch(_Blocking[Batch]):
    """`AsyncBatchWatch` for programs without an event loop."""
