"""Waiting on the event loop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

T = TypeVar("T")
# To make an entry of an answer takes some microseconds: a turn takes a millisecond.
_ITEMS_A_TURN: Final = 200


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield items, and let others have the event loop now and then, so that lookups don't wait for a whole page."""
    for number, item in enumerate(items, 1):
        yield item
        if number % _ITEMS_A_TURN == 0:
            await asyncio.sleep(0)


@dataclass(frozen=True, slots=True)
class StopSignals:
    """What signals have asked of a process that may take its time to stop.

    Attributes:
        asked: set by SIGTERM and SIGINT.
        at_once: set by SIGINT, and by any signal after the first.

    """

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    at_once: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, signal_number: int) -> None:
        """Take a signal."""
        if self.asked.is_set() or signal_number == signal.SIGINT:
            self.at_once.set()
        self.asked.set()

    def now(self) -> None:
        """Ask for an immediate end, for another reason than a signal."""
        self.at_once.set()
        self.asked.set()


def stop_signals() -> StopSignals:
    """Return what SIGTERM and SIGINT ask from now on. Call it on the event loop, in the main thread."""
    stop, loop = StopSignals(), asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.take, signal_number)
    return stop


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait until an event is set; return False if it is not set within `seconds`.

    Not `asyncio.wait_for`: before Python 3.12 it loses a cancellation that comes at the same moment as the event
    (python/cpython#86296), and then a loop that the cancellation should end goes on for ever.
    """
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


async def first_of(work: asyncio.Future[Any], event: asyncio.Event, timeout_s: float | None = None) -> None:
    """Wait until work is done or an event is set, and not longer than that."""
    told = asyncio.ensure_future(event.wait())
    either: set[asyncio.Future[Any]] = {work, told}
    try:
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        told.cancel()


def is_told_to_end() -> bool:
    """Whether the current task has been cancelled.

    Ask this on a `CancelledError`. If True, the task must end: raise the error again. If False, only the awaited work
    was cancelled: for example, a call whose channel was closed.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
