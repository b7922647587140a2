"""Coalescing: lookups that come while a call to the same destination is under way go together in the next one.

A unary call costs gRPC in Python more than the lookup does, so a program that asks for many keys at once spends its
time on calls. An idle lane sends at once, and nothing waits for company: the queue is what gathers while a call is out
(TCP's Nagle algorithm and group commit do the same). A call that is late no longer holds the queue up, so a lookup that
takes long doesn't make the others wait for it, but for those that left together with it.

The router's coalescing has this idea, too, and other needs. Here lookups that a program makes in one go shall be one
call, so even the first waits until they are all there; a program may ask for any number, so those that wait are
bounded. There lookups come one by one, from callers that are counted already, and the first goes as it is, without a
task of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from statehouse.client.batches import Outcome, fitting
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2

LATE_S: Final = 0.02
"""From then on a call doesn't hold up those that wait; many times what one takes that isn't late."""
MAX_CALLS: Final = 32
"""Most calls under way in a lane, all but one of them late."""
MAX_WAITING: Final = 10_000
"""Most lookups that wait in a lane; more are refused."""


@dataclass(slots=True, eq=False)
class Lookup:
    """A lookup in a lane; `give_up_at` is when its caller goes, in the loop's time."""

    request: query_service_pb2.GetRequest
    give_up_at: float
    outcome: asyncio.Future[Outcome]
    size: int = 0
    call: _Call | None = None


@dataclass(slots=True, eq=False)
class _Call:
    """A call under way; once all its callers have gone it is cancelled."""

    lookups: list[Lookup] = field(default_factory=list)
    waited_for: int = 0
    task: asyncio.Task[None] | None = None


Send = Callable[[Sequence[Lookup]], Awaitable[Sequence[Outcome]]]


class Lane:
    """Lookups to one destination. Lives on the event loop.

    `send(lookups)` makes a call and returns one outcome a lookup, in their order.
    """

    def __init__(self, send: Send, max_bytes: int) -> None:
        self._send, self._max_bytes = send, max_bytes
        self._waiting: deque[Lookup] = deque()
        self._calls: set[_Call] = set()
        self._holder: _Call | None = None

    async def ask(self, request: query_service_pb2.GetRequest, give_up_at: float) -> Outcome:
        """Return what becomes of a lookup. A caller that is cancelled takes its lookup out of the queue."""
        if len(self._waiting) >= MAX_WAITING:
            message = f"{MAX_WAITING} lookups of this client wait for a call already"
            return LookupFailure(Reason.OVERLOADED, message)
        lookup = Lookup(request, give_up_at, asyncio.get_running_loop().create_future(), request.ByteSize())
        self._waiting.append(lookup)
        self._go_on()
        try:
            return await lookup.outcome
        except asyncio.CancelledError:
            self._left(lookup)
            raise

    def refuse_waiting(self, failure: LookupFailure) -> None:
        """Give those that wait for a call this outcome instead."""
        while self._waiting:
            _settle(self._waiting.popleft(), failure)

    async def close(self) -> None:
        """Give up all calls; their lookups fail."""
        self.refuse_waiting(_closed())
        tasks = [call.task for call in self._calls if call.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _go_on(self) -> None:
        """Begin a call, unless one under way holds the queue. It takes what is there when its task begins."""
        if self._holder is None and self._waiting and len(self._calls) < MAX_CALLS:
            self._holder = call = _Call()
            self._calls.add(call)
            call.task = asyncio.get_running_loop().create_task(self._make(call))

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

    def _next(self) -> list[Lookup]:
        """Take what goes into one call; those whose callers have gone are dropped."""
        while self._waiting and self._waiting[0].outcome.done():
            self._waiting.popleft()
        count = fitting((lookup.size for lookup in self._waiting), self._max_bytes)
        taken = (self._waiting.popleft() for _ in range(count))
        return [lookup for lookup in taken if not lookup.outcome.done()]

    def _release(self, call: _Call) -> None:
        """Let those that wait go on: the call is done, or late."""
        if self._holder is call:
            self._holder = None
        self._go_on()

    @staticmethod
    def _left(lookup: Lookup) -> None:
        call = lookup.call
        if call is None:
            return
        call.waited_for -= 1
        if call.waited_for == 0 and call.task is not None:
            call.task.cancel()


def _settle(lookup: Lookup, outcome: Outcome) -> None:
    if not lookup.outcome.done():
        lookup.outcome.set_result(outcome)


def _closed() -> LookupFailure:
    return LookupFailure(Reason.UNREACHABLE, "the client was closed")
