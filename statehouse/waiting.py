"""Waiting on the event loop."""

from __future__ import annotations

import asyncio


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait until an event is set; False if it isn't within `seconds`.

    Not by `asyncio.wait_for`: before Python 3.12 that loses a cancellation that comes together with what it waits for
    (python/cpython#86296), and a loop that is to end by it goes on for ever.
    """
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
