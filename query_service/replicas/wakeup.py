"""Wake-ups: replication threads wake waiters on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

# Waiters are woken at most once in this time, however often a changelog advances: every wake-up costs processor time.
_PERIOD_S: Final = 0.01


class Wakeup:
    """Sets the events of waiters. Any thread may call `poke`; only the event loop may call the rest."""

    def __init__(self) -> None:
        self._events: dict[asyncio.Event, Callable[[], bool] | None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_due = False
        self._last_at = 0.0

    @contextmanager
    def waiter(self, condition: Callable[[], bool] | None = None) -> Iterator[asyncio.Event]:
        """Yield an event that is set after every poke. Clear it before you check for news, wait for it afterwards.

        With a `condition` the event is set only if the condition holds. It should cost less than a wake-up.
        """
        self._loop = asyncio.get_running_loop()
        event = asyncio.Event()
        self._events[event] = condition
        try:
            yield event
        finally:
            del self._events[event]

    def poke(self) -> None:
        """Wake all waiters."""
        if self._events and not self._is_due and self._loop is not None:
            self._is_due = True
            self._loop.call_soon_threadsafe(self._schedule)

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(max(0.0, self._last_at + _PERIOD_S - loop.time()), self._wake)

    def _wake(self) -> None:
        self._is_due = False
        self._last_at = asyncio.get_running_loop().time()
        for event, condition in self._events.items():
            if condition is None or condition():
                event.set()
