"""The engine in memory, within a budget in bytes. After a restart it is empty and is restored from the log's start."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby, islice

from sortedcontainers import SortedDict

from query_service.states.checkpoint import Checkpoint
from query_service.states.faults import Fault, TaskFault
from query_service.stores.engine import EngineView, StoreClosed, Writes

# Memory that an entry takes beside its bytes: two bytes objects, a dictionary slot, a slot in the sorted list.
_ENTRY_OVERHEAD = 200
# A walk reads this many entries each time it holds the lock; in between the writer can get the lock.
_ENTRIES_A_TURN = 128


class MemoryBudgetExceeded(TaskFault):
    """The store would exceed its budget in bytes: its task stops before the system kills the process for its memory."""

    fault = Fault.MEMORY_BUDGET


class MemoryEngine:
    """A sorted dictionary per family. While views are open, a write gives each view the old values of its keys.

    So a walk of any length holds the lock for only a few entries at a time, and the writer need not wait for its end.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._families: dict[str, SortedDict] = {}
        self._sizes: dict[str, int] = {}
        self._checkpoint: Checkpoint | None = None
        self._lock = threading.Condition()
        self._views: set[_MemoryView] = set()
        self._closed = False

    def families(self) -> frozenset[str]:
        """Return the names of the families."""
        return frozenset(self._families)

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of a key, None if the key or its family does not exist."""
        entries = self._families.get(family)
        return None if entries is None else entries.get(key)

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of keys.

        Raises:
            StoreClosed: the engine is closed.

        """
        if self._closed:
            raise StoreClosed("the store is closed")
        return [self.get(family, key) for key in keys]

    @contextmanager
    def view(self, families: Collection[str]) -> Iterator[EngineView]:
        """Open a view of the entries as they are now.

        Raises:
            StoreClosed: the engine is closed.

        """
        with self._lock:
            if self._closed:
                raise StoreClosed("the store is closed")
            view = _MemoryView({name: self._families[name] for name in families if name in self._families}, self._lock)
            self._views.add(view)
        try:
            yield view
        finally:
            with self._lock:
                self._views.discard(view)
                self._lock.notify_all()

    def write(self, writes: Writes, checkpoint: Checkpoint) -> None:
        """Write everything, or nothing if the entries would exceed the budget.

        Raises:
            MemoryBudgetExceeded: the entries would exceed the budget.

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
                views = [view for view in self._views if view.shows(family, into)]
                for key, value in entries:
                    for view in views:
                        view.keep(family, key)
                    if value is None:
                        into.pop(key, None)
                    else:
                        into[key] = value
                self._sizes[family] = self._sizes.get(family, 0) + added[family]
            self._checkpoint = checkpoint

    def _added(self, family: str, entries: Collection[tuple[bytes, bytes | None]]) -> int:
        """Return the number of bytes by which the writes would make a family grow."""
        present = self._families.get(family, {})
        last = dict(entries)
        added = 0
        for key, value in last.items():
            old = present.get(key)
            added -= 0 if old is None else _size(key, old)
            added += 0 if value is None else _size(key, value)
        return added

    def drop(self, family: str) -> None:
        """Remove a family."""
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
        """Return how many views are open."""
        return len(self._views)

    def statistics(self) -> Mapping[str, int]:
        """Return the size and the budget, in bytes."""
        return {"memory_bytes": sum(self._sizes.values()), "memory_budget_bytes": self._budget_bytes}

    def close(self) -> None:
        """Wait until the last view is left, then remove everything."""
        with self._lock:
            self._closed = True
            self._lock.wait_for(lambda: not self._views)
            self._families = {}
            self._sizes = {}


class _MemoryView:
    """Families as they were when the view was opened: the entries of now, except keys that were written since."""

    def __init__(self, families: Mapping[str, SortedDict], lock: threading.Condition) -> None:
        self._families = families
        self._lock = lock
        # Per family the keys written since the view was opened, with their values at that moment; None: no value.
        self._before = {name: SortedDict() for name in families}

    def shows(self, family: str, entries: SortedDict) -> bool:
        """Whether this view shows these entries: a family that was dropped and created again has other entries."""
        return self._families.get(family) is entries

    def keep(self, family: str, key: bytes) -> None:
        """Keep the present value of a key that is about to be written. The caller holds the lock."""
        before = self._before[family]
        if key not in before:
            before[key] = self._families[family].get(key)

    def entries(self, family: str, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a range, as `EngineView.entries` says."""
        if family not in self._families or (stop is not None and start >= stop):
            return
        last: bytes | None = None
        while True:
            taken = self._take(family, start, stop, last, reverse=reverse)
            for key, value in taken:
                if value is not None:
                    yield key, value
            if len(taken) < _ENTRIES_A_TURN:
                return
            last = taken[-1][0]

    def _take(
        self, family: str, start: bytes, stop: bytes | None, last: bytes | None, *, reverse: bool
    ) -> list[tuple[bytes, bytes | None]]:
        """Return the next keys of a range, after `last`, with their values at the view's moment; None: no value."""
        low, high, inclusive = start, stop, (True, False)
        if last is not None:
            low, high, inclusive = (start, last, (True, False)) if reverse else (last, stop, (False, False))
        with self._lock:
            present, before = self._families[family], self._before[family]
            keys = heapq.merge(
                present.irange(low, high, inclusive, reverse),
                before.irange(low, high, inclusive, reverse),
                reverse=reverse,
            )
            return [
                (key, before[key] if key in before else present[key])
                for key, _ in islice(groupby(keys), _ENTRIES_A_TURN)
            ]


def _size(key: bytes, value: bytes) -> int:
    return len(key) + len(value) + _ENTRY_OVERHEAD
