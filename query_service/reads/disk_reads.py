"""Reads of what is not in memory, in threads of their own: a slow or stalled disk holds up only who needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Final, TypeVar, cast

from statehouse.errors import LookupFailure, Reason
from statehouse.runtime.held_bytes import HasSize, HeldBytes

T = TypeVar("T")
HasLeft = Callable[[], bool]
"""Returns whether the caller of a read has left meanwhile."""

THREADS: Final = 16
"""So many reads keep a disk of a cloud busy; while it stalls each holds a thread and nothing else."""
WAITING_MAX: Final = 1_000
"""Requests whose reads have not ended. A disk that answers at all has read them within the second that callers wait."""


class DiskReads:
    """Runs them. Use it only on the event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="disk")
        self._waiting, self._requests = 0, HeldBytes("reads that wait for the disk on this node")

    @property
    def count(self) -> int:
        """How many requests' reads have not ended."""
        return self._waiting

    async def run(self, request: HasSize, read: Callable[[HasLeft], T]) -> T:
        """Return the result of a request's `read`, which may ask whether to go on.

        It does not begin any more if the caller has left before.

        Raises:
            LookupFailure: OVERLOADED, too many reads have not ended, or of too large requests; NODE_SHUTTING_DOWN.

        """
        if self._waiting >= WAITING_MAX:
            raise LookupFailure(Reason.OVERLOADED, f"{WAITING_MAX} requests wait for the disk on this node already")
        has_left = False

        def unless_left() -> T | None:
            return None if has_left else read(lambda: has_left)

        with ExitStack() as held:
            held.enter_context(self._requests.hold(request.ByteSize()))
            try:
                future = self._threads.submit(unless_left)
            except RuntimeError as error:
                raise _stopping() from error
            # It counts until its thread is free, even if the caller leaves: so a stalled disk can't collect them.
            self._waiting += 1
            loop, kept = asyncio.get_running_loop(), held.pop_all()

        def ended(_: Future[T | None]) -> None:
            with suppress(RuntimeError):  # the loop is closed: the process is ending
                loop.call_soon_threadsafe(self._ended, kept)

        future.add_done_callback(ended)
        try:
            return cast("T", await asyncio.shield(asyncio.wrap_future(future)))
        except asyncio.CancelledError as error:
            if future.cancelled():
                raise _stopping() from error
            has_left = True
            raise

    def close(self) -> None:
        """Refuse further reads. Those that have begun end with the disk's answer."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ended(self, kept: ExitStack) -> None:
        self._waiting -= 1
        kept.close()


def _stopping() -> LookupFailure:
    return LookupFailure(Reason.NODE_SHUTTING_DOWN, "the node stopped during the read")
