"""Wake-ups from replication threads to those who wait on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

# However often a changelog advances, waiters are woken once in this time: each wake-up has its cost, a batch has one.
_PERIOD_S: Final = 0.01


class Wakeup:
    """Sets the events of those who wait. `poke` may be called from any thread, the rest on the event loop."""

    def __init__(self) -> None:
        self._events: dict[asyncio.Event, Callable[[], bool] | None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_due = False
        self._last_at = 0.0

    @contextmanager
    def waiter(self, condition: Callable[[], bool] | None = None) -> Iterator[asyncio.Event]:
        """Lend an event that is set after every poke; clear it before looking, wait for it after.

        With a `condition`, which costs less than a wake-up, only after those pokes after which it holds.
        """
        self._loop = asyncio.get_running_loop()
        event = asyncio.Event()
        self._events[event] = condition
        try:
            yield event
        finally:
            del self._events[event]

    def poke(self) -> None:
        """Wake all."""
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
