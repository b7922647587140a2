"""The limit on how many lookups the router has under way. One too many is refused before any work is done for it.

The bytes of their requests are bounded in the same way.

A router without a limit answers no caller in time once it is overloaded: each lookup waits behind lookups whose callers
have given up. A refused caller can go to another router, or slow down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from statehouse.errors import LookupFailure, Reason
from statehouse.runtime.held_bytes import HELD_BYTES_MAX

# For the requests of lookups that don't wait for positions. Requests that wait are kept longer, and with many positions
# they take in memory many times their bytes on the wire.
_QUICK_BYTES_MAX: Final = 64 * 1024 * 1024


class LookupLimit:
    """Counts the lookups under way. Lives on the event loop.

    Lookups that may wait for a position count separately, up to half as many: a position that never comes occupies only
    the places of lookups that wait for it. `elsewhere()`: how many lookups are under way that the router hears about
    only if they don't go well; they count, too.
    """

    def __init__(self, max_lookups: int, elsewhere: Callable[[], int] = lambda: 0) -> None:
        self._elsewhere = elsewhere
        self._quick = _Kind("are under way", max_lookups, max_lookups, _QUICK_BYTES_MAX)
        self._patient = _Kind("wait for positions", max(1, max_lookups // 2), max_lookups, HELD_BYTES_MAX)

    @property
    def under_way(self) -> int:
        """How many lookups there are; each of a batch counts."""
        return self._quick.lookups + self._patient.lookups + self._elsewhere()

    @contextmanager
    def admitted(self, size: int, lookups: int = 1, *, is_under_way: bool = False) -> Iterator[OpenLookups]:
        """Count lookups for as long as the context lasts. A batch of any size is admitted as long as there is room.

        `size`: bytes of their request. `is_under_way`: the proxy has admitted them, and hands them over.

        Raises:
            LookupFailure: OVERLOADED.

        """
        if not is_under_way:
            self._quick.check(self._elsewhere())
        self._quick.enter(lookups, size)
        place = OpenLookups(self._quick, self._patient)
        try:
            yield place
        finally:
            self._quick.leave(lookups - place.patient, size - place.patient_bytes)
            self._patient.leave(place.patient, place.patient_bytes)


class _Kind:
    """The lookups of one kind, and the bytes of their requests.

    `what`: what they do, in words for a refused caller. `max_here`: how many there may be; `setting`: max_lookups.
    """

    __slots__ = ("_max_bytes", "_max_here", "_setting", "_what", "lookups", "size")

    def __init__(self, what: str, max_here: int, setting: int, max_bytes: int) -> None:
        self._what, self._max_here, self._setting, self._max_bytes = what, max_here, setting, max_bytes
        self.lookups = self.size = 0

    def check(self, elsewhere: int = 0) -> None:
        """Refuse a request if there is no room for one lookup in addition to those that are `elsewhere`."""
        if (count := self.lookups + elsewhere) >= self._max_here:
            raise LookupFailure(
                Reason.OVERLOADED,
                f"{count} lookups {self._what} in this router, as many as max_lookups admits",
                {"max_lookups": str(self._setting)},
            )
        if self.size >= self._max_bytes:
            raise LookupFailure(
                Reason.OVERLOADED,
                f"{self.lookups} lookups {self._what} in this router, whose requests have {self.size:,} bytes: at "
                f"{self._max_bytes:,} no more are admitted",
            )

    def enter(self, lookups: int, size: int) -> None:
        self.lookups += lookups
        self.size += size

    def leave(self, lookups: int, size: int) -> None:
        self.lookups -= lookups
        self.size -= size


class OpenLookups:
    """A request that was admitted: how many of its lookups, and of its bytes, count among those that may wait."""

    __slots__ = ("_patient", "_quick", "patient", "patient_bytes")

    def __init__(self, quick: _Kind, patient: _Kind) -> None:
        self._quick, self._patient = quick, patient
        self.patient = self.patient_bytes = 0

    def wait_for_positions(self, size: int, lookups: int = 1) -> None:
        """Count so many of the lookups, and so many of the bytes, among those that may wait, from now on.

        Raises:
            LookupFailure: OVERLOADED.

        """
        self._patient.check()
        self._patient.enter(lookups, size)
        self._quick.leave(lookups, size)
        self.patient += lookups
        self.patient_bytes += size
