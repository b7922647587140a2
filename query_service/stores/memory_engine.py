"""The engine in memory, within a budget in bytes. After a restart it is empty and is restored from the log's start."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby, islice

from sortedcontainers import SortedDict

from query_service.states.checkpoint import Checkpoint
from query_service.states.faults import Fault, TaskFault
from query_service.stores.engine import EngineView, StoreClosed, Writes
from query_service.stores.kept_moments import KeptMoments, moment_bytes_in_memory
from statehouse.contract.moments import NONE

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
    Moments are kept alike, but each has only the old values of the keys that were written before the next one.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._families: dict[str, SortedDict] = {}
        self._sizes: dict[str, int] = {}
        self._checkpoint: Checkpoint | None = None
        self._lock = threading.Condition()
        self._views: set[_MemoryView] = set()
        self._closed = False
        self._moments: KeptMoments[_MemoryMoment] = KeptMoments(self._lock, moment_bytes_in_memory(budget_bytes))
        self._chain: list[_MemoryMoment] = []  # those that are kept, and those that are only still read
        self.moment: Callable[[int, int], AbstractContextManager[None]] = self._moments.show
        self.shown_time_ms = self._moments.shown_time_ms
        self.oldest_kept = self._moments.oldest_kept

    def families(self) -> frozenset[str]:
        """Return the names of the families."""
        shown = self._moments.shown
        return frozenset(self._families) if shown is None else shown.families()

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of a key, None if the key or its family does not exist."""
        if (shown := self._moments.shown) is not None:
            return shown.get(family, key)
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
        if (shown := self._moments.shown) is not None:
            yield shown
            return
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
            held_back = 0
            for family, entries in writes.items():
                into = self._families.setdefault(family, SortedDict())
                views = [view for view in self._views if view.shows(family, into)]
                for key, value in entries:
                    for view in views:
                        view.keep(family, key)
                    if self._chain:
                        held_back += self._chain[-1].remember(family, key, into.get(key))
                    if value is None:
                        into.pop(key, None)
                    else:
                        into[key] = value
                self._sizes[family] = self._sizes.get(family, 0) + added[family]
            self._checkpoint = checkpoint
            self._moments.note_write(checkpoint.batch, held_back)

    def keep(self, last: int, lo: int, hi: int) -> None:
        """Keep the entries as they are now, as `KeepsMoments.keep` says."""
        self._moments.keep(last, lo, hi, self._begin_moment)

    def _begin_moment(self) -> _MemoryMoment:
        stream_time_ms = -1 if self._checkpoint is None else self._checkpoint.stream_time_ms
        moment = _MemoryMoment(self._families, self._chain, self._lock, stream_time_ms)
        self._chain.append(moment)
        return moment

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
            dropped = self._families.pop(family, None)
            self._sizes.pop(family, None)
            if self._chain and dropped:
                newest = self._chain[-1]
                held_back = sum(newest.remember(family, key, value) for key, value in dropped.items())
                self._moments.note_write(NONE, held_back)

    def checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint written."""
        return self._checkpoint

    def approximate_count(self, family: str) -> int:
        """Return the number of a family's entries."""
        return len(self._families.get(family, ()))

    def open_views(self) -> int:
        """Return how many views are open."""
        return len(self._views) + self._moments.readers

    def statistics(self) -> Mapping[str, int]:
        """Return the size and the budget, in bytes."""
        return {
            "memory_bytes": sum(self._sizes.values()),
            "memory_budget_bytes": self._budget_bytes,
            **self._moments.statistics(),
        }

    def close(self) -> None:
        """Wait until the last view is left, then remove everything."""
        with self._lock:
            self._closed = True
            self._moments.close()
            self._lock.wait_for(lambda: self.open_views() == 0)
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
        if family not in self._families:
            return
        layers = [self._before[family], self._families[family]]
        yield from _walk(self._lock, lambda: layers, start, stop, reverse=reverse)


class _MemoryMoment:
    """Entries as they were at a moment: those of now, except keys that were written since.

    For a key that was written since, the first moment from this one on that has an old value of it has the right one.
    """

    def __init__(
        self,
        families: Mapping[str, SortedDict],
        chain: list[_MemoryMoment],
        lock: threading.Condition,
        stream_time_ms: int,
    ) -> None:
        """`families`, `chain`: the engine's own. The chain has all moments in the order of time, this one, too."""
        self._present, self._chain, self._lock = families, chain, lock
        self._names = frozenset(families)
        self.before: dict[str, SortedDict] = {}
        self.stream_time_ms = stream_time_ms

    def remember(self, family: str, key: bytes, value: bytes | None) -> int:
        """Keep the value of a key that is about to be written; None: it has none. Return the bytes that this takes."""
        before = self.before.setdefault(family, SortedDict())
        if key in before:
            return 0
        before[key] = value
        return _size(key, value or b"")

    def families(self) -> frozenset[str]:
        """Return the names of the families that there were."""
        return self._names

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value that a key had, None if it had none."""
        with self._lock:
            return next((layer[key] for layer in self._layers(family) if key in layer), None)

    def _layers(self, family: str) -> list[SortedDict]:
        """Return what has a family's entries; of a key the first value counts. The caller holds the lock."""
        since = self._chain[self._chain.index(self) :]
        layers = [moment.before[family] for moment in since if family in moment.before]
        return [*layers, self._present[family]] if family in self._present else layers

    def entries(self, family: str, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a range, as `EngineView.entries` says."""
        return _walk(self._lock, lambda: self._layers(family), start, stop, reverse=reverse)

    def release(self) -> None:
        """Leave the old values to the moment before, which needs those that it lacks."""
        place = self._chain.index(self)
        del self._chain[place]
        if place > 0:
            for family, before in self.before.items():
                for key, value in before.items():
                    self._chain[place - 1].remember(family, key, value)


def _walk(
    lock: threading.Condition,
    layers: Callable[[], Sequence[SortedDict]],
    start: bytes,
    stop: bytes | None,
    *,
    reverse: bool,
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of a range: for each key what the first of the layers has that has it; None: no value."""
    if stop is not None and start >= stop:
        return
    low, high, inclusive = start, stop, (True, False)
    while True:
        with lock:
            present = layers()
            keys = heapq.merge(*(each.irange(low, high, inclusive, reverse) for each in present), reverse=reverse)
            taken = [
                (key, next(each[key] for each in present if key in each))
                for key, _ in islice(groupby(keys), _ENTRIES_A_TURN)
            ]
        for key, value in taken:
            if value is not None:
                yield key, value
        if len(taken) < _ENTRIES_A_TURN:
            return
        last = taken[-1][0]
        low, high, inclusive = (start, last, (True, False)) if reverse else (last, stop, (False, False))


def _size(key: bytes, value: bytes) -> int:
    return len(key) + len(value) + _ENTRY_OVERHEAD
