"""One deadline per request, measured on the event loop's monotonic clock and passed down to every attempt."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol, Self

# We answer a little before callers give up, so that they learn which candidates failed and why: after their deadline
# gRPC drops the answer.
_ANSWER_MARGIN_S = 0.1
_ANSWER_MARGIN_SHARE = 0.1


class HasTime(Protocol):
    """A call whose caller waits for a limited time."""

    def time_remaining(self) -> float | None:
        """Return the seconds left, None for a call without a deadline."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in the event loop's time."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Self:
        """Return the deadline this far from now."""
        return cls(asyncio.get_running_loop().time() + seconds)

    @property
    def remaining_s(self) -> float:
        """Seconds left, 0 if it has passed."""
        return max(0.0, self.at - asyncio.get_running_loop().time())


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """How long requests may take, in seconds: `default_s` without a deadline, and `longest_s` with any."""

    default_s: float
    longest_s: float

    def deadline(self, context: HasTime, *, margins: int = 1) -> Deadline:
        """Return a caller's deadline, less a margin to report a failure in.

        An endless wait occupies a slot, so no caller gets more than `longest_s`. `margins`: how many such margins to
        subtract, for work that is done after the deadline.
        """
        remaining = context.time_remaining()
        if remaining is None:
            return Deadline.after(min(self.default_s, self.longest_s))
        margin = margins * min(_ANSWER_MARGIN_S, remaining * _ANSWER_MARGIN_SHARE)
        return Deadline.after(min(remaining - margin, self.longest_s))
