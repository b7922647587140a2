"""Waiting on the event loop."""

from __future__ import annotations

import asyncio


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
