"""Holding lookups that no replica can answer yet, instead of failing them, as Vitess' vtgate does in a failover.

A hold covers the seconds in which no replica of a partition can answer: the active is gone and its session has not
timed out yet, or the only copy restarts. It is bounded in every way, because waiting callers pile up:

- a partition's window begins with the first lookup that would fail and lasts `window_s` at most;
- the next window begins at least `min_interval_s` after the last one, so a partition that stays down fails fast;
- at most `most` lookups are held by the router.

Only one of the lookups held for a partition keeps asking; when it gets an answer, the others ask immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum

from statehouse.rpc.deadline import Deadline

PartitionKey = tuple[str, int]
"""A store and its partition."""


class HoldOutcome(Enum):
    """What happens to a lookup that would fail; the values are labels of a metric."""

    OFF = "off"
    HELD = "held"
    FULL = "full"
    TOO_SOON = "too_soon"


@dataclass(slots=True)
class HoldWindow:
    """The window in which lookups for one partition are held. Times are seconds of one monotonic clock."""

    until: float
    ended_at: float | None = None
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    """The one lookup that asks for all has this lock."""


class Holds:
    """Decides which lookups are held. Without I/O; `now` is the event loop's time. `window_s` 0: nothing is held."""

    def __init__(self, *, window_s: float, most: int, min_interval_s: float) -> None:
        self._window_s, self._most, self._min_interval_s = window_s, most, min_interval_s
        self._windows: dict[PartitionKey, HoldWindow] = {}
        self.held = 0
        """How many lookups are held."""

    def begin(self, partition: PartitionKey, now: float) -> tuple[HoldOutcome, HoldWindow | None]:
        """Decide on a lookup that would fail; if it is held, return the window, too, for `end`."""
        if self._window_s <= 0:
            return HoldOutcome.OFF, None
        window = self._windows.get(partition)
        if window is not None and window.ended_at is None and now >= window.until:
            window.ended_at = window.until
        if window is None or (window.ended_at is not None and now >= window.ended_at + self._min_interval_s):
            window = self._windows[partition] = HoldWindow(now + self._window_s)
        if window.ended_at is not None:
            return HoldOutcome.TOO_SOON, None
        if self.held >= self._most:
            return HoldOutcome.FULL, None
        self.held += 1
        return HoldOutcome.HELD, window

    def end(self, window: HoldWindow, now: float, *, is_answered: bool) -> None:
        """End the hold of a lookup. The first answer ends the window: all lookups still held ask immediately."""
        self.held -= 1
        if window.ended_at is None and (is_answered or now >= window.until):
            window.ended_at = min(now, window.until)

    def retain(self, stores: Collection[str]) -> None:
        """Forget the windows of stores that no longer exist."""
        self._windows = {partition: window for partition, window in self._windows.items() if partition[0] in stores}


class HeldLookup:
    """A lookup that is held. Lives on the event loop; `end` must be called."""

    def __init__(self, holds: Holds, window: HoldWindow) -> None:
        self._holds, self._window = holds, window
        self._is_asking = self._was_told = False

    async def may_ask(self, deadline: Deadline) -> bool:
        """Wait until asking may help: it is our turn, or a lookup got through; False if the lookup must fail now."""
        window = self._window
        if self._is_asking:
            return asyncio.get_running_loop().time() < window.until
        if self._was_told:
            return False
        try:
            async with asyncio.timeout_at(min(window.until, deadline.at)):
                await window.asking.acquire()
        except TimeoutError:
            return False
        if window.ended_at is None:
            self._is_asking = True
        else:
            window.asking.release()
            self._was_told = True
        return True

    def end(self, *, is_answered: bool) -> None:
        """End the hold; the next held lookup asks."""
        self._holds.end(self._window, asyncio.get_running_loop().time(), is_answered=is_answered)
        if self._is_asking:
            self._window.asking.release()
