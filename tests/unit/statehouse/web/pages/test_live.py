"""Streams of pages: made once for all, sent when they look different."""

from __future__ import annotations

import asyncio

from statehouse.web.pages.live import LivePages


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
