"""The streams of pages: a page is made once for all who look at it, and sent when it has changed.

Nothing is queued: a slow reader misses what came in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from statehouse.web.pages.samples import COLUMN_S

BEAT_S: Final = COLUMN_S
"""Pages change no more often, all together, unless something urgent has happened: a new epoch, or a node that fell
silent. To make one takes the processor from lookups for a moment, and most of what it shows changes with the columns
of the heat map."""
URGENT_S: Final = 0.1
"""So long after it, as what is urgent seldom comes alone."""


class LivePages:
    """The streams that are open. Lives on the event loop."""

    def __init__(self) -> None:
        self._news, self._urgent = asyncio.Event(), asyncio.Event()
        self._made: dict[str, str] = {}
        self._next_beat: asyncio.TimerHandle | None = None
        self._told_s = float("-inf")

    def changed(self, is_urgent: bool) -> None:
        """Note that pages may look different now."""
        self._made.clear()
        if is_urgent:
            urgent, self._urgent = self._urgent, asyncio.Event()
            urgent.set()
            self._tell()
        elif self._next_beat is None:
            loop = asyncio.get_running_loop()
            self._next_beat = loop.call_at(max(loop.time(), self._told_s + BEAT_S), self._tell)

    def _tell(self) -> None:
        """Have all streams look at their pages."""
        if self._next_beat is not None:
            self._next_beat.cancel()
            self._next_beat = None
        self._told_s = asyncio.get_running_loop().time()
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def stream(self, name: str, make: Callable[[], str]) -> AsyncIterator[str]:
        """Yield a page now, and again whenever it looks different. `name`: the same for the same page."""
        last = ""
        while True:
            urgent, news = self._urgent, self._news
            text = self._page(name, make)
            if text != last:
                yield text
                last = text
            await news.wait()
            if urgent.is_set():
                await asyncio.sleep(URGENT_S)

    def _page(self, name: str, make: Callable[[], str]) -> str:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]
