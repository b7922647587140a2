"""How long the machine didn't let this process run: a bound on a time that was measured must not count that.

A machine that gives nobody a processor for a second says nothing of what was measured meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_TICK_S: Final = 0.02
_USUAL_S: Final = 0.05
"""A thread may be so late on any machine; more is a stall."""


class Stalls:
    """Adds up by how much ticks come later than they should. `now_s`: of the first tick, by any clock."""

    def __init__(self, now_s: float) -> None:
        self._last_s = now_s
        self.seconds = 0.0
        """All stalls together."""

    def tick(self, now_s: float) -> None:
        """Take the time of a tick, which should come `_TICK_S` after the one before."""
        late_s = now_s - self._last_s - _TICK_S
        if late_s > _USUAL_S:
            self.seconds += late_s
        self._last_s = now_s


@contextmanager
def stalls() -> Iterator[Stalls]:
    """Watch for stalls while the block runs."""
    watched, is_over = Stalls(time.monotonic()), threading.Event()

    def watch() -> None:
        while not is_over.wait(_TICK_S):
            watched.tick(time.monotonic())

    thread = threading.Thread(target=watch, name="stalls", daemon=True)
    thread.start()
    try:
        yield watched
    finally:
        is_over.set()
        thread.join()
