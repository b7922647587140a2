"""The streams of pages: a page is made once for all who look at it, and sent when it has changed.

Nothing is queued: a slow reader misses what came in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from statehouse.waiting import is_set_within

BEAT_S: Final = 1.0
"""A page changes no more often, unless something urgent has happened: a new epoch, or a node that fell silent."""
URGENT_S: Final = 0.1
"""So long after it, as what is urgent seldom comes alone."""
APART_S: Final = 0.03
"""Pages that are due together are made so far apart. To make ten at once takes the processor for 10 ms, which is what
one lookup in a hundred then waits for."""
LATE_S: Final = BEAT_S / 2
"""No page waits longer than this for its turn, however many there are."""


class LivePages:
    """The streams that are open. Lives on the event loop."""

    def __init__(self) -> None:
        self._news, self._urgent = asyncio.Event(), asyncio.Event()
        self._made: dict[str, str] = {}
        self._next_turn_s = 0.0

    def changed(self, is_urgent: bool) -> None:
        """Note that pages may look different now."""
        self._made.clear()
        news, self._news = self._news, asyncio.Event()
        news.set()
        if is_urgent:
            urgent, self._urgent = self._urgent, asyncio.Event()
            urgent.set()

    async def stream(self, name: str, make: Callable[[], str]) -> AsyncIterator[str]:
        """Yield a page now, and again whenever it looks different. `name`: the same for the same page."""
        last = ""
        while True:
            urgent, news = self._urgent, self._news
            text = self._page(name, make)
            if text != last:
                yield text
                last = text
            if not await is_set_within(urgent, BEAT_S):
                await news.wait()
                await is_set_within(urgent, self._until_turn_s())
            if urgent.is_set():
                await asyncio.sleep(URGENT_S)

    def _until_turn_s(self) -> float:
        """Take the next turn to make a page; return how long it is until then."""
        now_s = asyncio.get_running_loop().time()
        turn_s = min(max(now_s, self._next_turn_s), now_s + LATE_S)
        self._next_turn_s = turn_s + APART_S
        return turn_s - now_s

    def _page(self, name: str, make: Callable[[], str]) -> str:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]
