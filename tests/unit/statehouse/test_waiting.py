from __future__ import annotations

import asyncio

import pytest

from statehouse.waiting import is_set_within


async def test_the_event_or_the_time_ends_it() -> None:
    event = asyncio.Event()
    assert not await is_set_within(event, 0.001)
    asyncio.get_running_loop().call_soon(event.set)
    assert await is_set_within(event, 60)


@pytest.mark.parametrize("turns_between", range(4))
async def test_a_cancellation_counts_whenever_the_event_comes(turns_between: int) -> None:
    event = asyncio.Event()

    async def go_on() -> None:
        while True:
            event.clear()
            await is_set_within(event, 60)

    loop = asyncio.create_task(go_on())
    for _ in range(3):
        await asyncio.sleep(0)
    event.set()
    for _ in range(turns_between):
        await asyncio.sleep(0)
    loop.cancel()
    await asyncio.wait({loop}, timeout=5)
    assert loop.cancelled()
