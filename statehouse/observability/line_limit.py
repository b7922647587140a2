"""How many lines of one kind the log may have. Pure."""

from __future__ import annotations

from typing import Final

LINES_AT_ONCE: Final = 100
LINES_PER_S: Final = 5.0
"""Most lines: so many in a burst, then so many a second. A storm of failed lookups writes some 150 MB a day."""


class LineLimit:
    """A bucket of tokens, one a line. Times are of one monotonic clock, in seconds."""

    def __init__(self, at_once: int = LINES_AT_ONCE, per_s: float = LINES_PER_S) -> None:
        self._most, self._per_s = float(at_once), per_s
        self._left, self._at = self._most, 0.0
        self.left_out = 0
        """How many lines were left out since the last one was written."""

    def take(self, now: float) -> bool:
        """Return whether a line may be written; count it if not."""
        self._left = min(self._most, self._left + max(0.0, now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            self.left_out += 1
            return False
        self._left -= 1
        return True
