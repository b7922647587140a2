"""Maxima over the last minute. Pure: callers say what time it is.

As in Kafka's own metrics there are two samples of half the window each, so a maximum counts for half a minute to a
minute.
"""

from __future__ import annotations

from typing import Final

SAMPLE_S: Final = 30.0


class WindowedMaximum:
    """The largest value of the present sample and of the one before. Not thread-safe."""

    __slots__ = ("_before", "_number", "_present")

    def __init__(self) -> None:
        """Start without values."""
        self._number = 0
        self._present: float | None = None
        self._before: float | None = None

    def add(self, value: float, now_s: float) -> None:
        """Take a value."""
        self._advance(now_s)
        self._present = value if self._present is None else max(self._present, value)

    def at(self, now_s: float) -> float | None:
        """Return the largest value, None without any."""
        self._advance(now_s)
        return max((value for value in (self._present, self._before) if value is not None), default=None)

    def _advance(self, now_s: float) -> None:
        number = int(now_s // SAMPLE_S)
        if number > self._number:
            self._before = self._present if number == self._number + 1 else None
            self._number, self._present = number, None
