"""An asyncio event loop with simulated time: when nothing is left to do now, it jumps to the next timer."""

from __future__ import annotations

from asyncio.base_events import BaseEventLoop
from typing import Any


class _Leap:
    """Stands in for the selector: instead of waiting, lets the time pass."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("the simulation stands still: nothing is due, and nothing will be")
        self._loop.now += max(0.0, timeout)
        return []


class VirtualLoop(BaseEventLoop):
    """Single-threaded, without I/O. `now` is its time in seconds, from 0."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._selector = _Leap(self)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        """Return the simulated time."""
        return self.now

    def _process_events(self, event_list: list[Any]) -> None:
        """Take the selector's events: there are none."""

    def _write_to_self(self) -> None:
        """Wake the selector from another thread: there is none."""
