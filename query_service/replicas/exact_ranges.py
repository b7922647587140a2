"""Exact ranges: the positions at which a replica's state was all that the log had then.

A state that was read from a compacted log may lack what a later record has replaced. So it is the log's only at
positions that were reached beside the log's end: by rule 3 of `tail` nothing can be missing there. A state is the same
from the offset after its newest record to its position, so a range begins there. But records between these may have
been removed, so of the batches that end between them only the last is surely the state's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

RANGES_MAX: Final = 16


class ExactRanges:
    """The latest ranges of a replica. Any thread asks, one at a time moves it.

    `log_start` is the first offset of the log from which the state was read: of what was before it nothing is known.
    """

    def __init__(self, log_start: int) -> None:
        self._log_start = log_start
        # Where each begins, where it was opened, and where it ends.
        self._ranges: list[tuple[int, int, int]] = []
        self._is_open = False
        self._lock = threading.Lock()

    def moved(self, records_end: int, position: int, after: int, *, at_once: bool) -> None:
        """Note that the replica moves.

        Args:
            records_end: the offset after the newest record of the state that it had, 0 without any.
            position: where it was.
            after: where it is now.
            at_once: whether what is between was read without a pause, so that all of it was there.

        """
        with self._lock:
            if not at_once:
                self._is_open = False
                return
            if not self._is_open:
                self._open(records_end, position)
            begin, opened_at, end = self._ranges[-1]
            self._ranges[-1] = begin, opened_at, max(end, after)

    def found_at_end(self, records_end: int, position: int) -> None:
        """Note that the replica has all of its log now; the arguments are as in `moved`."""
        with self._lock:
            if not self._is_open:
                self._open(records_end, position)

    def _open(self, records_end: int, position: int) -> None:
        self._ranges.append((records_end or self._log_start, position, position))
        del self._ranges[:-RANGES_MAX]
        self._is_open = True

    def holds(self, end: int, following: Callable[[], int | None]) -> bool:
        """Whether the state at a batch's end is the log's. `following` returns the next known batch's end, if any."""
        with self._lock:
            opened = [opened_at for begin, opened_at, last in self._ranges if begin <= end <= last]
        if any(end >= opened_at for opened_at in opened):
            return True
        following_end = following() if opened else None
        return any(following_end is None or following_end > opened_at for opened_at in opened)
