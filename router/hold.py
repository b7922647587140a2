"""Holding lookups that nobody can answer yet, instead of failing them, as Vitess' vtgate does in a failover.

A hold is for the seconds in which a partition has nobody for a lookup: the active is gone and its session not yet over,
or the only copy restarts. It is bounded in every way, and off by default, because callers who wait pile up:

- a partition's window begins with the first lookup that would fail and lasts `window_s` at most;
- after a window the next one begins no sooner than `min_interval_s` later: what is down for good fails at once;
- at most `most` lookups are held by the router.

Of those that wait for one partition a single one keeps asking; when it gets through, the others follow. In a dry run
nothing is held, and the metrics say what would have been.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum

from statehouse.rpc.deadline import Deadline

Place = tuple[str, int]
"""A store and its partition."""


class HoldVerdict(Enum):
    """What becomes of a lookup that would fail; the values are labels of a metric."""

    OFF = "off"
    HELD = "held"
    DRY_RUN = "dry_run"
    FULL = "full"
    TOO_SOON = "too_soon"


@dataclass(frozen=True, slots=True)
class HoldLimits:
    """`window_s` 0: nothing is held."""

    window_s: float = 0.0
    most: int = 1_000
    min_interval_s: float = 60.0
    is_dry_run: bool = False


@dataclass(slots=True)
class Window:
    """The time in which lookups for one partition are held. Times are of one monotonic clock, in seconds."""

    until: float
    ended_at: float | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Whose turn it is to ask."""


class Holds:
    """Decides who is held. Without I/O; `now` is the event loop's time."""

    def __init__(self, limits: HoldLimits) -> None:
        self._limits = limits
        self._windows: dict[Place, Window] = {}
        self._held = 0

    @property
    def held(self) -> int:
        """How many lookups are held."""
        return self._held

    def begin(self, place: Place, now: float) -> tuple[HoldVerdict, Window | None]:
        """Decide on a lookup that would fail; of one that is held return the window, to be given back to `end`."""
        limits = self._limits
        if limits.window_s <= 0:
            return HoldVerdict.OFF, None
        window = self._windows.get(place)
        if window is not None and window.ended_at is None and now >= window.until:
            window.ended_at = window.until
        if window is None or (window.ended_at is not None and now >= window.ended_at + limits.min_interval_s):
            window = self._windows[place] = Window(now + limits.window_s)
        if window.ended_at is not None:
            return HoldVerdict.TOO_SOON, None
        if limits.is_dry_run:
            return HoldVerdict.DRY_RUN, None
        if self._held >= limits.most:
            return HoldVerdict.FULL, None
        self._held += 1
        return HoldVerdict.HELD, window

    def end(self, window: Window, now: float, *, is_answered: bool) -> None:
        """Take back a lookup that was held. The first answer ends the window: whoever is left asks at once."""
        self._held -= 1
        if window.ended_at is None and (is_answered or now >= window.until):
            window.ended_at = min(now, window.until)

    def retain(self, stores: Collection[str]) -> None:
        """Forget the windows of stores that are no more."""
        self._windows = {place: window for place, window in self._windows.items() if place[0] in stores}


class Held:
    """A lookup that is held. Lives on the event loop; `end` must be called."""

    def __init__(self, holds: Holds, window: Window) -> None:
        self._holds, self._window = holds, window
        self._has_turn = self._was_told = False

    async def turn(self, deadline: Deadline) -> bool:
        """Wait until it is worth asking: our turn, or somebody got through; False if the lookup is to fail now."""
        window = self._window
        if self._has_turn:
            return asyncio.get_running_loop().time() < window.until
        if self._was_told:
            return False
        try:
            async with asyncio.timeout_at(min(window.until, deadline.at)):
                await window.turn.acquire()
        except TimeoutError:
            return False
        if window.ended_at is None:
            self._has_turn = True
        else:
            window.turn.release()
            self._was_told = True
        return True

    def end(self, *, is_answered: bool) -> None:
        """Leave; the next one asks."""
        self._holds.end(self._window, asyncio.get_running_loop().time(), is_answered=is_answered)
        if self._has_turn:
            self._window.turn.release()
