"""Walks: reads of many entries. A walk ends early when its caller leaves, its time is up or its store is to be closed.

A store iterates through `Walk.over`, inside its view. So the end of the walk also releases the view's iterators, and a
read that nobody waits for can't keep a store open.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

from query_service.stores.engine import StoreClosed
from statehouse.errors import LookupFailure, Reason, StatehouseError

T = TypeVar("T")

# After this many entries a walk lets other threads run. They take well under a millisecond. With four counts running,
# the event loop then waits 0.2 ms (median) for the interpreter. If each walk kept the interpreter until Python takes it
# away after 5 ms, the loop would wait 25 ms. The price is that a walk takes half as long again; a larger number would
# be cheaper and make the wait longer.
ENTRIES_A_TURN = 128
# Less than so many entries take. A walk over a few entries of each of several partitions lets others run as often: to
# do so after each partition would take longer than to read it.
_SHORTEST_TURN_S = 0.0001


class WalkCancelled(StatehouseError):
    """The caller has left, so nobody waits for the result."""


class Walk:
    """One read of many entries.

    `timeout_s` is how long the read may take. `is_closing` returns whether the store waits for its reads to end.
    """

    def __init__(self, timeout_s: float = math.inf, is_closing: Callable[[], bool] = lambda: False) -> None:
        self.opened_at = time.monotonic()
        self._timeout_s, self._is_closing = timeout_s, is_closing
        self._cancelled = False
        self._turn_began: float | None = None
        self.on_begin: Callable[[], None] = lambda: None  # called when the store has its view

    def cancel(self) -> None:
        """Make the walk end soon. Safe to call from any thread."""
        self._cancelled = True

    def over(self, entries: Iterable[T]) -> Iterator[T]:
        """Yield the entries, as long as the walk may go on.

        Raises:
            WalkCancelled: the walk was cancelled.
            StoreClosed: the store is being closed.
            LookupFailure: SCAN_TOO_LONG.

        """
        self.on_begin()
        following = iter(entries)
        for entry in following:
            self._check()
            yield entry
            yield from islice(following, ENTRIES_A_TURN - 1)

    def _check(self) -> None:
        if self._cancelled:
            raise WalkCancelled("cancelled")
        if self._is_closing():
            raise StoreClosed("the store is being closed")
        now = time.monotonic()
        if self._turn_began is None:
            self._turn_began = now
        elif now - self._turn_began > _SHORTEST_TURN_S:
            time.sleep(0)  # lets other threads have the interpreter
            now = self._turn_began = time.monotonic()
        if now - self.opened_at > self._timeout_s:
            limit_ms = str(round(self._timeout_s * 1000))
            raise LookupFailure(
                Reason.SCAN_TOO_LONG, f"the read took longer than {limit_ms} ms", {"scan_timeout_ms": limit_ms}
            )
