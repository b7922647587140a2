"""Waiting on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")
# To make an entry of an answer takes some microseconds: a turn takes a millisecond.
_ITEMS_A_TURN: Final = 200


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield items, and let others have the event loop now and then, so that lookups don't wait for a whole page."""
    for number, item in enumerate(items, 1):
        yield item
        if number % _ITEMS_A_TURN == 0:
            await asyncio.sleep(0)


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


def is_told_to_end() -> bool:
    """Whether the current task has been cancelled.

    Ask this on a `CancelledError`. If True, the task must end: raise the error again. If False, only the awaited work
    was cancelled: for example, a call whose channel was closed.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
