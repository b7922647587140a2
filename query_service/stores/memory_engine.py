"""Families in memory, within a byte budget. A restart starts empty, from the changelog's start."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from sortedcontainers import SortedDict

from query_service.checkpoint import Checkpoint
from query_service.faults import Fault, TaskFault
from query_service.stores.engine import StoreClosed, View, Writes

# What an entry costs beside its bytes: two bytes objects, a dictionary slot, a place in the sorted list.
_ENTRY_OVERHEAD = 200


class MemoryBudgetExceeded(TaskFault):
    """The store would grow beyond its byte budget: its task stops before the process is killed for it."""

    fault = Fault.MEMORY_BUDGET


class MemoryEngine:
    """Sorted dictionaries. A view holds the lock, so it must be short: stores read bounded pages."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._families: dict[str, SortedDict] = {}
        self._sizes: dict[str, int] = {}
        self._checkpoint: Checkpoint | None = None
        self._lock = threading.RLock()
        self._views = 0
        self._closed = False

    def families(self) -> frozenset[str]:
        """Return the families there are."""
        return frozenset(self._families)

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return an entry's value."""
        entries = self._families.get(family)
        return None if entries is None else entries.get(key)

    @contextmanager
    def view(self, families: Collection[str]) -> Iterator[View]:  # noqa: ARG002 - the lock covers all of them
        """Lend the entries as they are; the writer waits."""
        with self._lock:
            if self._closed:
                raise StoreClosed("the store is closed")
            self._views += 1
            try:
                yield _MemoryView(self._families)
            finally:
                self._views -= 1

    def write(self, writes: Writes, checkpoint: Checkpoint) -> None:
        """Write all, or nothing if it would exceed the budget.

        Raises:
            MemoryBudgetExceeded: it would.

        """
        with self._lock:
            added = {family: self._added(family, entries) for family, entries in writes.items()}
            size = sum(self._sizes.values()) + sum(added.values())
            if size > self._budget_bytes and sum(added.values()) > 0:
                raise MemoryBudgetExceeded(
                    f"{size} bytes where the budget is {self._budget_bytes}: raise memory_store_max_bytes, or make the "
                    "store persistent"
                )
            for family, entries in writes.items():
                into = self._families.setdefault(family, SortedDict())
                for key, value in entries:
                    if value is None:
                        into.pop(key, None)
                    else:
                        into[key] = value
                self._sizes[family] = self._sizes.get(family, 0) + added[family]
            self._checkpoint = checkpoint

    def _added(self, family: str, entries: Collection[tuple[bytes, bytes | None]]) -> int:
        """Return by how many bytes writes would make a family grow."""
        held = self._families.get(family, {})
        last = dict(entries)
        added = 0
        for key, value in last.items():
            old = held.get(key)
            added -= 0 if old is None else _size(key, old)
            added += 0 if value is None else _size(key, value)
        return added

    def drop(self, family: str) -> None:
        """Forget a family."""
        with self._lock:
            self._families.pop(family, None)
            self._sizes.pop(family, None)

    def checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint written."""
        return self._checkpoint

    def approximate_count(self, family: str) -> int:
        """Return the number of a family's entries."""
        return len(self._families.get(family, ()))

    def open_views(self) -> int:
        """Return how many views are lent."""
        return self._views

    def size_bytes(self) -> int:
        """Return the estimated bytes of all entries."""
        return sum(self._sizes.values())

    def statistics(self) -> Mapping[str, int]:
        """Return the size and the budget."""
        return {"memory_bytes": self.size_bytes(), "memory_budget_bytes": self._budget_bytes}

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._closed = True
            self._families = {}
            self._sizes = {}


class _MemoryView:
    """The families, while the lock is held."""

    def __init__(self, families: dict[str, SortedDict]) -> None:
        self._families = families

    def entries(self, family: str, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Walk a range."""
        held = self._families.get(family)
        if held is None or (stop is not None and start >= stop):
            return
        for key in held.irange(start, stop, inclusive=(True, False), reverse=reverse):
            yield key, held[key]


def _size(key: bytes, value: bytes) -> int:
    return len(key) + len(value) + _ENTRY_OVERHEAD
