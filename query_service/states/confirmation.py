"""Confirmation: the last time at which a replica is known to have had all records of its log. No I/O, no clock.

A replica that has reached an end which the broker named has everything that was committed when the end was asked for
(docs/adr/0002). Several threads read and change the confirmation of a replica. Each makes a new value from the old one,
and the replica swaps the value as a whole, so that no thread sees half of a change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class KnownEnd:
    """An end offset of the log, and when the broker was asked for it.

    Attributes:
        offset: the end offset.
        asked_at: monotonic clock, in seconds.
        asked_at_ms: wall clock, in milliseconds.

    """

    offset: int
    asked_at: float
    asked_at_ms: int


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The known end of the log, and when the replica was last known to be complete.

    Attributes:
        at_end_ms: wall clock in milliseconds when the state was last known to be complete. At first the checkpoint's.
        at_end: the same on the monotonic clock, in seconds; None until this process has reached an end.
        newest: the last known end.
        awaited: the end that the replica must reach to be confirmed again: the newest or an older one. A replica with a
            steady lag never reaches the newest end before the next one is known.
        position: the position that was last confirmed.

    """

    at_end_ms: int
    at_end: float | None = None
    newest: KnownEnd | None = None
    awaited: KnownEnd | None = None
    position: int | None = None

    def told(self, end: KnownEnd) -> Confirmation:
        """Return the confirmation after the broker has named an end."""
        return replace(self, newest=end, awaited=self.awaited or end)

    def at(self, position: int) -> Confirmation:
        """Return the confirmation after the replica has reached `position`; the same object if nothing new follows."""
        newest = self.newest
        end = newest if newest is not None and position >= newest.offset else self.awaited
        if end is None or position < end.offset:
            return self
        if self.at_end is not None and self.at_end >= end.asked_at:
            return self if self.awaited is newest else replace(self, awaited=newest)
        return Confirmation(end.asked_at_ms, end.asked_at, newest, newest, position)
