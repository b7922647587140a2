"""Fetches what a serde needs before it can decode, off the event loop and within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar

import structlog

from statehouse.errors import LookupFailure, Reason
from statehouse.runtime.held_bytes import HasSize, HeldBytes
from statehouse.serdes import FetchNeeded, SerdeUnavailable

log = structlog.get_logger(__name__)

T = TypeVar("T")

_THREADS: Final = 4
_UNDER_WAY_MAX: Final = 64
# A page may hold values of many schemas, and each is noticed when the one before it is known.
_ROUNDS: Final = 64
_WAITING_MAX: Final = 1_000
# A fetch may ask for several schemas, one after the other; its reader does not wait for a registry that drips.
_PATIENCE: Final = 2


class SerdeFetches:
    """Runs fetches in its own threads; equal needs are fetched once, and so many reads wait at most, or so large ones.

    Use it only on the event loop.

    `timeout_s`: how long the registry may take.
    """

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="serde")
        self._under_way: dict[Hashable, Future[None]] = {}
        self._waiting, self._requests = 0, HeldBytes("reads that wait for schemas on this node")

    async def run(self, request: HasSize, needed: FetchNeeded) -> None:
        """Wait until a fetch for a request is done, whatever its outcome. A caller that leaves does not end it.

        Raises:
            LookupFailure: SERDE_UNAVAILABLE, it takes too long or is defect; OVERLOADED, too many are under way, or too
                many reads wait, or too large ones.

        """
        if self._waiting >= _WAITING_MAX:
            raise LookupFailure(Reason.OVERLOADED, f"{_WAITING_MAX} reads wait for schemas on this node already")
        with self._requests.hold(request.ByteSize()):
            future = self._under_way.get(needed.need) or self._begun(needed)
            self._waiting += 1
            try:
                async with asyncio.timeout(_PATIENCE * self._timeout_s):
                    await asyncio.shield(asyncio.wrap_future(future))
            except TimeoutError as error:
                raise SerdeUnavailable("the schema was not fetched in time; raw reads work") from error
            except Exception as error:
                raise SerdeUnavailable(f"the serde's fetch failed: {type(error).__name__}: {error}") from error
            finally:
                self._waiting -= 1

    async def until_decoded(self, request: HasSize, decode: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `decode` for a request, repeated after each fetch that it asks for.

        Raises:
            LookupFailure: as in `run`, or as `decode` raises.

        """
        for _ in range(_ROUNDS):
            try:
                return await decode()
            except FetchNeeded as needed:
                await self.run(request, needed)
        raise SerdeUnavailable(f"the read needs more than {_ROUNDS} schemas that this node does not know: read it raw")

    def close(self) -> None:
        """Refuse further fetches; those under way end soon."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begun(self, needed: FetchNeeded) -> Future[None]:
        if len(self._under_way) >= _UNDER_WAY_MAX:
            raise LookupFailure(
                Reason.OVERLOADED, f"{_UNDER_WAY_MAX} fetches of schemas are under way on this node already"
            )
        future = self._threads.submit(needed.fetch)
        self._under_way[needed.need] = future
        loop = asyncio.get_running_loop()

        def done(_: Future[None]) -> None:
            with suppress(RuntimeError):  # the loop is closed: the process is ending
                loop.call_soon_threadsafe(self._done, needed.need)

        future.add_done_callback(done)
        return future

    def _done(self, need: Hashable) -> None:
        fetched = self._under_way.pop(need)
        if not fetched.cancelled() and (error := fetched.exception()) is not None:
            # Once, however many reads have waited for it.
            log.error("a serde's fetch failed", need=repr(need), exc_info=error)
