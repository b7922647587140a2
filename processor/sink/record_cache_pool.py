"""The record cache's pool, which the batches of a processor's queries borrow from."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


def pool_share(max_bytes: int, lent: Sequence[int], borrowers: int) -> int:
    """Return what a batch may borrow: all that is free, but half a fair share for each query that has borrowed nothing.

    So no batch waits for another one; each gets half a fair share at least, and much more if it is the only one.
    Never is more lent than `max_bytes`.

    Args:
        max_bytes: the pool.
        lent: what the batches of other queries have borrowed.
        borrowers: the number of queries that use the pool.

    """
    others_idle = max(borrowers - len(lent) - 1, 0)
    return max(max_bytes - sum(lent) - others_idle * (max_bytes // (2 * borrowers)), 0)


class RecordCachePool:
    """Lends bytes of the record cache to batches; `pool_share` says how many. The queries' threads share it."""

    def __init__(self, max_bytes: int, borrowers: int) -> None:
        self._max_bytes, self._borrowers = max_bytes, borrowers
        self._lent: list[int] = []
        self._lock = threading.Lock()

    @contextmanager
    def lent(self) -> Iterator[int]:
        """Lend a batch its share while the block runs."""
        with self._lock:
            share = pool_share(self._max_bytes, self._lent, self._borrowers)
            self._lent.append(share)
        try:
            yield share
        finally:
            with self._lock:
                self._lent.remove(share)
