"""Streams of pages: made once for all, sent when they look different."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from statehouse.web.pages.live import BEAT_S, LivePages


def numbered_pages() -> tuple[list[int], Callable[[], str]]:
    """Return what makes pages, each with its number, and the list of those that it has made."""
    made: list[int] = []

    def make() -> str:
        made.append(len(made))
        return f"page {len(made)}"

    return made, make


async def test_readers_of_one_page_share_it_and_get_what_is_new():
    live, (made, make) = LivePages(), numbered_pages()
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


async def test_readers_who_came_at_different_times_still_share_a_page():
    live, (made, make) = LivePages(), numbered_pages()
    streams = [live.stream("map?", make) for _ in range(3)]
    waiting = []
    for stream in streams:
        await anext(stream)
        waiting.append(asyncio.ensure_future(anext(stream)))
        await asyncio.sleep(0.01)
    for _ in range(20):  # many small changes, as answers come from nodes
        live.changed(is_urgent=False)
        await asyncio.sleep(0.01)
    assert await asyncio.gather(*waiting) == ["page 2"] * 3
    waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await asyncio.sleep(0)
    live.changed(is_urgent=False)
    assert await asyncio.gather(*waiting) == ["page 3"] * 3
    assert len(made) == 3


async def test_a_change_within_the_beat_is_shown_at_its_end_and_what_is_urgent_at_once():
    live, loop = LivePages(), asyncio.get_running_loop()
    texts = iter(range(100))
    stream = live.stream("map?", lambda: str(next(texts)))
    await anext(stream)
    live.changed(is_urgent=False)
    await anext(stream)
    began_s = loop.time()
    live.changed(is_urgent=False)  # the last change for a while
    await anext(stream)
    assert loop.time() - began_s > BEAT_S - 0.1
    live.changed(is_urgent=False)
    live.changed(is_urgent=True)
    async with asyncio.timeout(BEAT_S - 0.1):
        await anext(stream)
