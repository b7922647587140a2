"""Long calls of a server: bounded in number, and ended together when it stops. Needs no grpcio."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from statehouse.background import log_defect
from statehouse.errors import LookupFailure, Reason

FIRST_RESPONSE_S: Final = 1.0
"""Within this time a node says whether it serves a stream, before it does any work for it."""
PROGRESS_INTERVAL_S: Final = 2.0
"""How often a node sends something on each stream, changes or not."""
SILENCE_S: Final = 3 * PROGRESS_INTERVAL_S
"""After this many seconds without a message on a stream, the other end counts as frozen or cut off."""
TAKEN_WITHIN_S: Final = 60.0
"""A caller who takes nothing off a stream for so long loses the place."""


class CallerLeftError(Exception):
    """A response could not be sent: the caller has left, and grpcio was about to say so. No defect."""


class OpenStreams:
    """The streams that a server has open, at most `limit`. Lives on the event loop."""

    def __init__(self, limit: int, owner: str) -> None:
        self._limit, self._owner = limit, owner
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    @property
    def open(self) -> int:
        """How many streams are open."""
        return len(self._tasks)

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do a stream's work, until it is done, the caller leaves, or `stop` is called.

        Raises:
            CallerLeftError: the work could not send a response.
            LookupFailure: OVERLOADED or NODE_SHUTTING_DOWN, or what the work raises.

        """
        if self._stopping or len(self._tasks) >= self._limit:
            work.close()
            if self._stopping:
                raise self._shutting_down()
            raise LookupFailure(
                Reason.OVERLOADED,
                f"this {self._owner} has {self._limit} watches open, as many as max_watches allows",
                {"max_watches": str(self._limit)},
            )
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        try:
            await asyncio.wait({task})
        finally:
            self._tasks.remove(task)
            if not task.done():  # the caller has left
                task.cancel()
                await asyncio.wait({task})
                log_defect(task, (LookupFailure, CallerLeftError))
        if task.cancelled():
            raise self._shutting_down()
        task.result()

    def stop(self) -> None:
        """End all streams, and accept no more."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()

    def _shutting_down(self) -> LookupFailure:
        return LookupFailure(Reason.NODE_SHUTTING_DOWN, f"this {self._owner} is shutting down; resume elsewhere")
