"""Decides from connections to a node's address when the node is gone, before its session times out. Pure.

Where a process has ended and its host lives, the host's kernel refuses connections. It accepts them for a process that
is frozen or busy, and nobody answers where packets are lost. But a refusal alone proves nothing: it may be of a host
that has just come up, of something else at this address, or of a device on the way. So a node is taken for gone only by
many refusals in a row, after a connection that was open, and without a heartbeat since. All of this the acting
controller has seen itself.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

REFUSALS_MIN: Final = 4
SPAN_S: Final = 0.2
"""What listens again within this time was restarted, or was never away."""


class Seen(Enum):
    """What became of an attempt to connect."""

    ACCEPTED = auto()
    REFUSED = auto()
    NOTHING = auto()
    """It timed out or failed in another way: nobody knows whether the process is there."""


@dataclass(frozen=True, slots=True, order=True)
class NodeAddress:
    """A process of a node, and the address in its heartbeats."""

    name: str
    incarnation: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Sighting:
    """An attempt to connect to a process, which ended at `at`, in seconds of a monotonic clock."""

    of: NodeAddress
    seen: Seen
    at: float


class Refusals:
    """What speaks for the end of one process. Every time is in seconds of a monotonic clock."""

    __slots__ = ("_count", "_doubted_at", "_first_at", "_last_at", "_was_open")

    def __init__(self) -> None:
        """Start without any evidence."""
        self._was_open = False
        self._count = 0
        self._first_at = self._last_at = 0.0
        self._doubted_at = -math.inf

    def see(self, seen: Seen, at: float) -> None:
        """Take what became of an attempt to connect."""
        if seen is not Seen.REFUSED:
            self._was_open = self._was_open or seen is Seen.ACCEPTED
            self._count = 0
            return
        if not self._was_open or at <= self._doubted_at:
            return
        if not self._count:
            self._first_at = at
        self._count += 1
        self._last_at = at

    def doubt(self, at: float) -> None:
        """Take a sign of life at `at`, or the end of a time without news: earlier refusals prove nothing."""
        self._doubted_at = max(self._doubted_at, at)
        self._count = 0

    @property
    def prove_end(self) -> bool:
        """Whether the process is gone."""
        return self._count >= REFUSALS_MIN and self._last_at - self._first_at >= SPAN_S


class EarlyBudget:
    """How often nodes may be taken for gone early: so often at most in a window of time, all together and each."""

    def __init__(self, most: int, most_of_one: int, window_s: float) -> None:
        """Start with nothing spent."""
        self._most_of_one, self._window_s = most_of_one, window_s
        self._spent: deque[tuple[float, str]] = deque()
        self._most = most

    def take(self, name: str, now: float) -> bool:
        """Spend one on a node; False if nothing is left for it."""
        while self._spent and now - self._spent[0][0] >= self._window_s:
            self._spent.popleft()
        of_one = sum(spent == name for _, spent in self._spent)
        if len(self._spent) >= self._most or of_one >= self._most_of_one:
            return False
        self._spent.append((now, name))
        return True
