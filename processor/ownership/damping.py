"""Damping: a member whose sessions keep ending is given nothing new until it has been steady for a while.

Without it a node in a crash loop makes the fleet carry its tasks away and back each time. As with routes that flap
(RFC 2439) ends are counted, and beyond a limit the member is held back; each further end doubles the time it has to be
steady for. No I/O. Every `now` is a monotonic clock's, in seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from processor.ownership.settings import OwnershipSettings

# Far more doublings than any hold-down takes to reach its bound.
_ENDS_BEYOND_LIMIT = 32


@dataclass(slots=True)
class _Hold:
    words: str
    steady_s: float
    until: float | None = None
    """When it ends; None while the member is away."""


class Damping:
    """Ends of sessions by member, and who is held back for them."""

    def __init__(self, settings: OwnershipSettings) -> None:
        """Start with no memory: a restarted controller counts anew."""
        self._limit, self._window_s = settings.flap_limit, settings.flap_window_s
        self._first_hold_s = settings.session_timeout_s
        self._ended_at: dict[str, deque[float]] = {}
        self._holds: dict[str, _Hold] = {}
        self._news: list[str] = []

    def ended(self, name: str, now: float) -> None:
        """Take note that a member left, timed out, or came back as another process."""
        ends = self._ended_at.setdefault(name, deque(maxlen=self._limit + _ENDS_BEYOND_LIMIT))
        ends.append(now)
        count = sum(now - at < self._window_s for at in ends)
        if count > self._limit:
            steady_s = min(self._first_hold_s * 2 ** (count - self._limit - 1), self._window_s)
            words = (
                f"{name} is held back: {count} restarts or lost sessions within {self._window_s:g} s, "
                f"until it has been steady for {steady_s:g} s"
            )
            self._holds[name] = _Hold(words, steady_s)
        elif name in self._holds:
            self._holds[name].until = None

    def began(self, name: str, now: float) -> None:
        """Take note that a member is there, since now."""
        hold = self._holds.get(name)
        if hold is not None:
            hold.until = now + hold.steady_s
            self._news.append(hold.words)

    def pass_time(self, now: float) -> list[str]:
        """Let go who has been steady, forget ends that no longer count; return what changed, in words."""
        for name, ends in list(self._ended_at.items()):
            hold = self._holds.get(name)
            if hold is not None and hold.until is not None:
                if now < hold.until:
                    continue
                del self._holds[name]
                self._news.append(f"{name} is no longer held back: it has been steady for {hold.steady_s:g} s")
            if now - ends[-1] >= self._window_s:
                del self._ended_at[name]
                self._holds.pop(name, None)
        news, self._news = self._news, []
        return news

    @property
    def held_back(self) -> Mapping[str, str]:
        """Who is held back, and why."""
        return {name: hold.words for name, hold in self._holds.items()}
