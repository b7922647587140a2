"""Coalescing: lookups that come while a call to the same destination is under way go together in the next one.

A unary call costs gRPC in Python more than the lookup does, so a program that asks for many keys at the same time
spends its time on calls. An idle queue sends immediately: only lookups that come during a call are gathered (TCP's
Nagle algorithm and group commit do the same). A late call no longer holds the queue up, so a slow lookup delays only
the lookups in its own call.

The router's coalescing has the same idea but other needs. Here, lookups that a program makes together become one call,
so even the first waits until all are there; a program may ask for any number, so the queue is bounded. There, lookups
come one by one, the concurrency limit counts the callers, and the first goes out immediately, without a task of its
own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from statehouse.client.batches import LookupOutcome, room_of_call
from statehouse.errors import LookupFailure, Reason
from statehouse.runtime.background import BackgroundWork
from statehouse.runtime.batches import fitting
from statehouse.v1 import query_service_pb2

LATE_S: Final = 0.02
"""A call that takes longer is late and no longer holds the queue up; a normal call takes far less."""
MAX_CALLS: Final = 32
"""Most calls under way per queue; all but one of them are late."""
MAX_WAITING: Final = 10_000
"""Most lookups that wait in a queue; more are refused."""
# The queue ends lookups whose time is over at most that often: it looks at all of the open ones for it.
_LATER_S: Final = 0.005


@dataclass(slots=True, eq=False)
class QueuedLookup:
    """A lookup in a queue; its caller stops waiting at `give_up_at`, in the loop's time (seconds)."""

    request: query_service_pb2.GetRequest
    give_up_at: float
    outcome: asyncio.Future[LookupOutcome]
    size: int = 0
    call: _Call | None = None


@dataclass(slots=True, eq=False)
class _Call:
    """A call under way; once all its callers have gone it is cancelled."""

    lookups: list[QueuedLookup] = field(default_factory=list)
    waited_for: int = 0
    task: asyncio.Task[None] | None = None


SendLookups = Callable[[Sequence[QueuedLookup]], Awaitable[Sequence[LookupOutcome]]]


class LookupQueue:
    """Lookups to one destination. Lives on the event loop.

    `send(lookups)` makes a call and returns one outcome per lookup, in their order.
    """

    def __init__(self, send: SendLookups, max_bytes: int) -> None:
        self._send, self._max_bytes = send, max_bytes
        self._waiting: deque[QueuedLookup] = deque()
        self._calls: set[_Call] = set()
        self._background = BackgroundWork()
        self._blocking: _Call | None = None
        self._open: set[QueuedLookup] = set()
        # One timer for all of them: a timer for each takes a tenth of a lookup's time.
        self._timer: asyncio.TimerHandle | None = None

    async def ask(self, request: query_service_pb2.GetRequest, give_up_at: float) -> LookupOutcome:
        """Return a lookup's outcome. If the caller is cancelled, the lookup is not sent any more.

        Raises:
            TimeoutError: there was none at `give_up_at`.

        """
        if len(self._waiting) >= MAX_WAITING:
            message = f"{MAX_WAITING} lookups of this client wait for a call already"
            return LookupFailure(Reason.OVERLOADED, message)
        loop = asyncio.get_running_loop()
        lookup = QueuedLookup(request, give_up_at, loop.create_future(), request.ByteSize())
        self._waiting.append(lookup)
        self._open.add(lookup)
        if self._timer is None or give_up_at < self._timer.when():
            self._look_again(loop, give_up_at)
        self._go_on()
        try:
            return await lookup.outcome
        except (asyncio.CancelledError, TimeoutError):
            self._left(lookup)
            raise
        finally:
            self._open.discard(lookup)

    def refuse_waiting(self, failure: LookupFailure) -> None:
        """Give this outcome to all lookups that still wait for a call."""
        while self._waiting:
            _settle(self._waiting.popleft(), failure)

    async def close(self) -> None:
        """Cancel all calls; their lookups fail."""
        self.refuse_waiting(_closed())
        if self._timer is not None:
            self._timer.cancel()
        await self._background.cancel()

    def _look_again(self, loop: asyncio.AbstractEventLoop, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(at, self._end_late_ones, loop)

    def _end_late_ones(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the lookups whose time is over."""
        self._timer = None
        now = loop.time()
        in_time = []
        for lookup in self._open:
            if lookup.outcome.done():
                continue
            if lookup.give_up_at <= now:
                lookup.outcome.set_exception(TimeoutError())
            else:
                in_time.append(lookup.give_up_at)
        if in_time:
            self._look_again(loop, max(min(in_time), now + _LATER_S))

    def _go_on(self) -> None:
        """Begin a call, unless one under way holds the queue. It takes the lookups that wait when its task starts."""
        if self._blocking is None and self._waiting and len(self._calls) < MAX_CALLS:
            self._blocking = call = _Call()
            self._calls.add(call)
            call.task = self._background.start(self._make(call), "coalesced call")

    async def _make(self, call: _Call) -> None:
        call.lookups = self._next()
        call.waited_for = len(call.lookups)
        for lookup in call.lookups:
            lookup.call = call
        late = asyncio.get_running_loop().call_later(LATE_S, self._release, call)
        try:
            if call.lookups:
                for lookup, outcome in zip(call.lookups, await self._send(call.lookups), strict=True):
                    _settle(lookup, outcome)
        except Exception as error:  # noqa: BLE001 - a defect, which is the callers' to see
            for lookup in call.lookups:
                if not lookup.outcome.done():
                    lookup.outcome.set_exception(error)
        finally:
            late.cancel()
            for lookup in call.lookups:
                if not lookup.outcome.done():
                    _settle(lookup, _closed())
            self._calls.discard(call)
            self._release(call)

    def _next(self) -> list[QueuedLookup]:
        """Take the lookups for one call; drop those whose callers have stopped waiting."""
        while self._waiting and self._waiting[0].outcome.done():
            self._waiting.popleft()
        count = fitting((lookup.size for lookup in self._waiting), room_of_call(self._max_bytes))
        taken = (self._waiting.popleft() for _ in range(count))
        return [lookup for lookup in taken if not lookup.outcome.done()]

    def _release(self, call: _Call) -> None:
        """Let the queue go on: the call is done, or late."""
        if self._blocking is call:
            self._blocking = None
        self._go_on()

    @staticmethod
    def _left(lookup: QueuedLookup) -> None:
        call = lookup.call
        if call is None:
            return
        call.waited_for -= 1
        if call.waited_for == 0 and call.task is not None:
            call.task.cancel()


def _settle(lookup: QueuedLookup, outcome: LookupOutcome) -> None:
    if not lookup.outcome.done():
        lookup.outcome.set_result(outcome)


def _closed() -> LookupFailure:
    return LookupFailure(Reason.UNREACHABLE, "the client was closed")
