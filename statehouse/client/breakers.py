"""Circuit breakers: a node or copy that failed is not asked for a while. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from statehouse.runtime.backoff import BackoffPolicy

POLICY: Final = BackoffPolicy("left_alone", first_s=0.5, longest_s=8.0)


class CircuitBreakers:
    """Tells which keys may be tried. All times are seconds of one clock, any clock.

    After each pause one trial is allowed. So while a node stays silent, only one caller per pause waits for it in vain.
    """

    def __init__(self) -> None:
        self._open: dict[str, tuple[float, int]] = {}  # the pause's end, and the number of pauses so far

    def may_try(self, key: str, now_s: float) -> bool:
        """Whether to try it. After a pause this is True once, and the next pause begins."""
        left_alone = self._open.get(key)
        if left_alone is None:
            return True
        until_s, pauses = left_alone
        if now_s < until_s:
            return False
        self._pause(key, now_s, pauses + 1)
        return True

    def failed(self, key: str, now_s: float) -> None:
        """Begin a pause. A failure during a pause changes nothing."""
        if key not in self._open:
            self._pause(key, now_s, 1)

    def succeeded(self, key: str) -> None:
        """End its pauses: it may be tried again."""
        self._open.pop(key, None)

    def retain(self, is_wanted: Callable[[str], bool]) -> None:
        """Forget all keys that are not wanted."""
        self._open = {key: left_alone for key, left_alone in self._open.items() if is_wanted(key)}

    def _pause(self, key: str, now_s: float, pauses: int) -> None:
        self._open[key] = (now_s + POLICY.pause_s(pauses), pauses)
