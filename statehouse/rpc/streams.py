"""Long calls of a server: bounded in number and in what they keep, ended together when it stops. Needs no grpcio."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from statehouse.errors import LookupFailure, Reason
from statehouse.runtime.address_limits import AddressLimit
from statehouse.runtime.background import log_defect
from statehouse.runtime.held_bytes import HeldBytes

FIRST_RESPONSE_S: Final = 1.0
"""Within this time a node says whether it serves a stream, before it does any work for it."""
PROGRESS_INTERVAL_S: Final = 2.0
"""How often a node sends something on each stream, changes or not."""
SILENCE_S: Final = 3 * PROGRESS_INTERVAL_S
"""After this many seconds without a message on a stream, the other end counts as frozen or cut off."""
TAKEN_WITHIN_S: Final = 60.0
"""A caller that takes nothing off a stream for so long loses the place."""


class CallerLeftError(Exception):
    """A response could not be sent: the caller has left, and grpcio was about to say so. No defect."""


class StreamLimit:
    """Places for streams that are open at the same time, at most `limit`; `what`: what they are, in the plural."""

    def __init__(self, limit: int, what: str) -> None:
        self.limit, self._what = limit, what
        self.open = 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """Take a place for as long as the context lasts.

        Raises:
            LookupFailure: OVERLOADED, there is none.

        """
        if self.open >= self.limit:
            raise LookupFailure(Reason.OVERLOADED, f"{self.limit} {self._what} are open, as many as are allowed")
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1


class OpenStreams:
    """The streams that a server has open, at most `limit`. Lives on the event loop.

    `requests`: what is kept for them. `shares`: how many of them an address may have; without it as many as there are.
    """

    def __init__(self, limit: int, owner: str, shares: AddressLimit | None = None) -> None:
        self._limit, self._owner, self._shares = limit, owner, shares
        self.requests = HeldBytes(f"the watches of this {owner}")
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    @property
    def open(self) -> int:
        """How many streams are open."""
        return len(self._tasks)

    async def run(self, work: Coroutine[Any, Any, None], request_bytes: int, address: str = "") -> None:
        """Do a stream's work, until it is done, the caller leaves, or `stop` is called.

        `request_bytes`: size of its request, which is kept as long. `address`: the caller's.

        Raises:
            CallerLeftError: the work could not send a response.
            LookupFailure: OVERLOADED or NODE_SHUTTING_DOWN, or what the work raises.

        """
        with ExitStack() as held:
            try:
                self._refuse_if_full()
                held.enter_context(self._share_of(address))
                held.enter_context(self.requests.hold(request_bytes))
            except LookupFailure:
                work.close()
                raise
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

    def _refuse_if_full(self) -> None:
        if self._stopping:
            raise self._shutting_down()
        if len(self._tasks) >= self._limit:
            raise LookupFailure(
                Reason.OVERLOADED,
                f"this {self._owner} has {self._limit} watches open, as many as max_watches allows",
                {"max_watches": str(self._limit)},
            )

    @contextmanager
    def _share_of(self, address: str) -> Iterator[None]:
        if self._shares is None:
            yield
            return
        if self._shares.enter(address) is not None:
            words = "as many watches of this address are open as are allowed: max_watches_per_address"
            raise LookupFailure(Reason.OVERLOADED, words)
        try:
            yield
        finally:
            self._shares.leave(address)

    def _shutting_down(self) -> LookupFailure:
        return LookupFailure(Reason.NODE_SHUTTING_DOWN, f"this {self._owner} is shutting down; resume elsewhere")
