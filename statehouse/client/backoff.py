"""Who is left alone for a while because it failed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 8.0

Key = TypeVar("Key", bound=Hashable)


class Backoff(Generic[Key]):
    """Pauses by key, doubling from the first to the longest as long as trials fail. Times are of any one clock.

    After a pause one trial is let through, and the next one only after another pause: while somebody is silent, one
    caller a pause finds out, not all of them.
    """

    def __init__(self) -> None:
        self._pauses: dict[Key, tuple[float, float]] = {}  # until when, and how long it was

    def may_try(self, key: Key, now_s: float) -> bool:
        """Whether to ask it; after a pause True once, which begins the next."""
        paused = self._pauses.get(key)
        if paused is None:
            return True
        until_s, pause_s = paused
        if now_s < until_s:
            return False
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self._pauses[key] = (now_s + pause_s, pause_s)
        return True

    def failed(self, key: Key, now_s: float) -> None:
        """Leave it alone; what fails in a pause says nothing new."""
        if key not in self._pauses:
            self._pauses[key] = (now_s + FIRST_PAUSE_S, FIRST_PAUSE_S)

    def succeeded(self, key: Key) -> None:
        """Take it back."""
        self._pauses.pop(key, None)

    def retain(self, is_wanted: Callable[[Key], bool]) -> None:
        """Forget the others."""
        self._pauses = {key: paused for key, paused in self._pauses.items() if is_wanted(key)}
