"""The heartbeats to write for a node that may not get to run, and when its stop has taken too long.

Times are monotonic seconds.
"""

from __future__ import annotations

from typing import Final

BLOCKED_MAX_S: Final = 120.0
"""A node that has said nothing for longer loses its tasks: it may never come back. Disks that stall come back sooner,
and then it's cheaper to wait: the state needn't be restored elsewhere."""

_LATE: Final = 1.5


class HeartbeatRepeater:
    """Decides which heartbeat is due: one that the node says is due once, and again while the node says nothing more.

    So heartbeats are at most one and a half intervals apart, until the node has been silent for `blocked_max_s`.
    """

    def __init__(self, interval_s: float, blocked_max_s: float = BLOCKED_MAX_S) -> None:
        self._repeat_s, self._blocked_max_s = _LATE * interval_s, blocked_max_s
        self._value: bytes | None = None
        self._is_new = False
        self._said_at = self._taken_at = 0.0

    def say(self, value: bytes | None, now: float) -> None:
        """Take what the node says: its heartbeat, or None if it must be silent."""
        self._value, self._said_at, self._is_new = value, now, True

    def take(self, now: float, *, may_repeat: bool = True) -> bytes | None:
        """Return the heartbeat that is due, None if none is.

        `may_repeat` is False while somebody has stopped the process, as a debugger does: nobody says when it goes on.
        """
        is_due = self._is_new or (
            may_repeat and now - self._taken_at >= self._repeat_s and not self.has_fallen_silent(now)
        )
        if not is_due:
            return None
        self._is_new, self._taken_at = False, now
        return self._value

    def has_fallen_silent(self, now: float) -> bool:
        """Whether the node has been blocked for so long that its heartbeats are no longer repeated."""
        return self._value is not None and now - self._said_at > self._blocked_max_s


class StopLimit:
    """When a stop must have ended, and what it has left to do. The earliest end that anybody has named counts."""

    def __init__(self) -> None:
        self.left = "all of it: the node did not begin to stop"
        self._until: float | None = None

    def ask(self, now: float, seconds: float) -> None:
        """The stop is to end within `seconds`."""
        until = now + seconds
        self._until = until if self._until is None else min(self._until, until)

    def is_over(self, now: float) -> bool:
        """Whether the stop takes too long."""
        return self._until is not None and now > self._until
