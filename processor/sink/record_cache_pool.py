"""The record cache's pool, which the batches of a processor's queries borrow from."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from processor.sink.record_cache import pool_share


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
