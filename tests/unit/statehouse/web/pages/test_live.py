"""Streams of pages: made once for all, sent when they look different."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from statehouse.web.pages.live import APART_S, BEAT_S, LivePages


async def test_readers_of_one_page_share_it_and_get_what_is_new():
    live, made = LivePages(), []

    def make() -> str:
        made.append(len(made))
        return f"page {len(made)}"

    streams = [live.stream("map?", make) for _ in range(3)]
    assert [await anext(stream) for stream in streams] == ["page 1"] * 3
    waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await asyncio.sleep(0)
    live.changed(is_urgent=True)
    assert await asyncio.gather(*waiting) == ["page 2"] * 3
    assert len(made) == 2


async def test_a_page_that_looks_the_same_is_not_sent_again():
    live, looks = LivePages(), ["same", "same", "other"]
    stream = live.stream("map?", lambda: looks.pop(0))
    assert await anext(stream) == "same"
    waiting = asyncio.ensure_future(anext(stream))
    while len(looks) > 0:
        live.changed(is_urgent=True)
        await asyncio.sleep(0.01)
    assert await waiting == "other"


async def test_pages_that_are_due_together_are_made_apart():
    live, loop = LivePages(), asyncio.get_running_loop()
    made_at_s: list[float] = []

    def make() -> str:
        made_at_s.append(loop.time())
        return str(made_at_s[-1])

    streams = [live.stream(f"page {number}", make) for number in range(5)]
    for stream in streams:
        await anext(stream)
    made_at_s.clear()
    waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await asyncio.sleep(0)
    live.changed(is_urgent=False)
    await asyncio.gather(*waiting)
    # A timer may be early by the clock's resolution.
    assert all(later - earlier > APART_S - 0.002 for earlier, later in pairwise(made_at_s))


async def test_what_is_urgent_does_not_wait_for_a_turn():
    live = LivePages()
    streams = [live.stream(f"page {number}", lambda: str(next(numbers))) for number in range(200)]
    numbers = iter(range(1_000))
    for stream in streams:
        await anext(stream)
    waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await asyncio.sleep(0)
    live.changed(is_urgent=False)
    live.changed(is_urgent=True)
    async with asyncio.timeout(BEAT_S):
        await asyncio.gather(*waiting)
