"""The limit on how many lookups the router has at once. One too many is refused before any work is done for it.

A router without a limit answers no caller in time once it is overloaded: each lookup waits behind lookups whose callers
have given up. A refused caller can go to another router, or slow down.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from statehouse.errors import LookupFailure, Reason


class LookupLimit:
    """Counts the lookups under way. Lives on the event loop."""

    def __init__(self, max_lookups: int) -> None:
        self._max_lookups = max_lookups
        self.under_way = 0
        """How many lookups there are; each of a batch counts."""

    @contextmanager
    def admitted(self, lookups: int = 1) -> Iterator[None]:
        """Count lookups for as long as the context lasts. A batch of any size is admitted as long as there is room.

        Raises:
            LookupFailure: OVERLOADED.

        """
        if self.under_way >= self._max_lookups:
            raise LookupFailure(
                Reason.OVERLOADED,
                f"{self.under_way} lookups are under way in this router, as many as max_lookups admits",
                {"max_lookups": str(self._max_lookups)},
            )
        self.under_way += lookups
        try:
            yield
        finally:
            self.under_way -= lookups
