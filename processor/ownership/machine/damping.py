"""Damping: a member whose sessions keep ending is treated as if it left, until it has been steady for a while.

Without it, a node in a crash loop makes the fleet move its tasks away and back each time. As for flapping routes
(RFC 2439), the ends of sessions are counted, and a member beyond a limit is held back; each further end doubles the
time for which it must be steady. No I/O. Every `now` is in seconds of a monotonic clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from processor.ownership.settings import OwnershipSettings
from statehouse.runtime.backoff import BackoffPolicy

# More doublings than any hold-down needs to reach its bound.
_ENDS_BEYOND_LIMIT = 32


@dataclass(slots=True)
class _Penalty:
    words: str
    steady_s: float
    until: float | None = None
    """When the hold ends; None while the member is away."""


class Damping:
    """Counts the ends of sessions by member, and holds members back."""

    def __init__(self, settings: OwnershipSettings) -> None:
        """Start without memory: a restarted controller counts from zero."""
        self._limit, self._window_s = settings.flap_limit, settings.flap_window_s
        self._penalty_times = BackoffPolicy("damped", settings.session_timeout_s, settings.flap_window_s)
        self._ended_at: dict[str, deque[float]] = {}
        self._penalties: dict[str, _Penalty] = {}
        self._news: list[str] = []

    def ended(self, name: str, now: float) -> None:
        """Record that a member left, timed out, or came back as another process."""
        ends = self._ended_at.setdefault(name, deque(maxlen=self._limit + _ENDS_BEYOND_LIMIT))
        ends.append(now)
        count = sum(now - at < self._window_s for at in ends)
        if count > self._limit:
            steady_s = self._penalty_times.pause_s(count - self._limit)
            words = (
                f"{name} is held back: {count} restarts or lost sessions within {self._window_s:g} s, "
                f"until it has been steady for {steady_s:g} s"
            )
            self._penalties[name] = _Penalty(words, steady_s)
        elif name in self._penalties:
            self._penalties[name].until = None

    def began(self, name: str, now: float) -> None:
        """Record that a member is present from now on."""
        penalty = self._penalties.get(name)
        if penalty is not None:
            penalty.until = now + penalty.steady_s
            self._news.append(penalty.words)

    def pass_time(self, now: float) -> list[str]:
        """Release members that have been steady, and forget old ends; return the changes, in words."""
        for name, ends in list(self._ended_at.items()):
            penalty = self._penalties.get(name)
            if penalty is not None and penalty.until is not None:
                if now < penalty.until:
                    continue
                del self._penalties[name]
                self._news.append(f"{name} is no longer held back: it has been steady for {penalty.steady_s:g} s")
            if now - ends[-1] >= self._window_s:
                del self._ended_at[name]
                self._penalties.pop(name, None)
        news, self._news = self._news, []
        return news

    @property
    def damped(self) -> Mapping[str, str]:
        """Members held back -> the reason."""
        return {name: penalty.words for name, penalty in self._penalties.items()}
