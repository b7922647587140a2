"""The moments that an engine of this process keeps: which ones, for how long, and which one a thread is shown.

Which ones stay says `statehouse/contract/moment_leases.py`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from query_service.stores.engine import EngineView, MomentGone, StoreClosed
from statehouse.contract.batch_cuts import DENSE, covers, is_state_of
from statehouse.contract.moment_leases import KeptState, staying
from statehouse.contract.moments import NONE, why_none
from statehouse.contract.topology import StoreSpec

DISK_BYTES: Final = 64 * 1024 * 1024
_PART_OF_MEMORY: Final = 8
_MS: Final = 1_000


def keeps_moments(spec: StoreSpec) -> bool:
    """Whether a store shows batches: it is of a built-in kind, and a processor writes it batch by batch."""
    return not why_none(spec)


def moment_bytes(spec: StoreSpec, memory_bytes: int) -> int:
    """Return how many bytes the moments of one partition of a store may hold back; 0: it keeps none.

    `memory_bytes`: what the entries of a store in memory may take.
    """
    if not keeps_moments(spec):
        return 0
    return DISK_BYTES if spec.is_persistent else moment_bytes_in_memory(memory_bytes)


def moment_bytes_in_memory(memory_bytes: int) -> int:
    """Return how many bytes the moments of a store in memory may hold back."""
    return memory_bytes // _PART_OF_MEMORY


class MomentEntries(EngineView, Protocol):
    """All entries as they were at a moment. Several threads may read them at once."""

    stream_time_ms: int

    def families(self) -> frozenset[str]:
        """Return the names of the families that there were."""

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value that a key had, None if it had none."""

    def release(self) -> None:
        """Let go of what is held only for this moment. The caller holds the engine's lock; nobody reads any more."""


E_ = TypeVar("E_", bound=MomentEntries)


@dataclass(slots=True, eq=False)
class _Kept(Generic[E_]):
    """A kept moment.

    Attributes:
        last, lo, hi: as `KeepsMoments.keep` has them.
        upto: the last batch that it is the state of; None as long as no later one has been written.
        entries: what it shows.
        written: how many bytes had been written before it.
        taken_at, read_at: when, on the monotonic clock, in seconds; None: nobody has.
        readers: how many threads it is shown to.

    """

    last: int
    lo: int
    hi: int
    entries: E_
    written: int
    taken_at: float
    upto: int | None = None
    read_at: float | None = None
    readers: int = 0

    def state(self, now: float, written: int, *, is_wanted: bool) -> KeptState:
        """Return what decides whether it stays; `written`: how many bytes have been written by now."""
        idle_ms = -1 if self.read_at is None else int((now - self.read_at) * _MS)
        return KeptState(is_wanted, int((now - self.taken_at) * _MS), idle_ms, written - self.written)


class KeptMoments(Generic[E_]):
    """The moments that an engine keeps, in the order of time.

    `lock` is the engine's; it learns when a reader has left. `max_bytes` bounds what has been written since the oldest
    one.
    """

    def __init__(self, lock: threading.Condition, max_bytes: int) -> None:
        self._lock, self._max_bytes = lock, max_bytes
        self._kept: list[_Kept[E_]] = []
        self._written = 0
        self._is_closed = False
        self._pin = threading.local()
        self.readers = 0
        """How many threads are shown a moment."""
        self._oldest: int | None = None  # its batch; for threads that must not wait for the lock

    @property
    def shown(self) -> E_ | None:
        """What this thread is shown; None if it reads the entries as they are."""
        return getattr(self._pin, "entries", None)

    def shown_time_ms(self) -> int | None:
        """Return the stream time of what this thread is shown; None if it reads the entries as they are."""
        shown = self.shown
        return None if shown is None else shown.stream_time_ms

    def oldest_kept(self) -> int | None:
        """Return the batch of the oldest one, as `KeepsMoments.oldest_kept` says."""
        return self._oldest

    def keep(self, last: int, lo: int, hi: int, take: Callable[[], E_]) -> None:
        """Keep what `take` returns, unless no batch can be shown by it, or no record came since the last one."""
        if last == NONE and lo > 0:
            return
        with self._lock:
            if self._is_closed:
                return
            if self._kept and self._kept[-1].lo == lo:
                self._kept[-1].hi = max(hi, self._kept[-1].hi)
            else:
                self._kept.append(_Kept(last, lo, hi, take(), self._written, time.monotonic()))
                self._oldest = self._kept[0].last

    def note_write(self, newest: int, size: int) -> None:
        """Note a write by a batch, and drop what need not be kept any more."""
        with self._lock:
            self._written += size
            if not self._kept:
                return
            if self._kept[-1].upto is None:
                self._kept[-1].upto = max(self._kept[-1].last, newest - 1)
            now, count = time.monotonic(), len(self._kept)
            states = [
                each.state(now, self._written, is_wanted=newest == NONE or _is_wanted(each, newest, count - place - 1))
                for place, each in enumerate(self._kept)
            ]
            before, self._kept = self._kept, []
            for each, stays in zip(before, staying(states, self._max_bytes), strict=True):
                if stays:
                    self._kept.append(each)
                else:
                    self._release(each)
            self._oldest = self._kept[0].last if self._kept else None

    def clear(self) -> None:
        """Keep none of them any longer. The caller holds the lock."""
        kept, self._kept, self._oldest = self._kept, [], None
        for each in kept:
            self._release(each)

    def close(self) -> None:
        """Keep none any longer, and show none from now on. The caller holds the lock."""
        self._is_closed = True
        self.clear()

    @contextmanager
    def show(self, batch_id: int, end: int) -> Iterator[None]:
        """Show this thread the entries at the end of a batch.

        Raises:
            MomentGone: they are not kept.
            StoreClosed: the engine is closed.

        """
        with self._lock:
            if self._is_closed:
                raise StoreClosed("the store is closed")
            kept = self._find(batch_id, end)
            kept.read_at = time.monotonic()
            kept.readers += 1
            self.readers += 1
        before, self._pin.entries = self.shown, kept.entries
        try:
            yield
        finally:
            self._pin.entries = before
            with self._lock:
                kept.readers -= 1
                self.readers -= 1
                if kept not in self._kept:
                    self._release(kept)
                self._lock.notify_all()

    def _find(self, batch_id: int, end: int) -> _Kept[E_]:
        for kept in reversed(self._kept):
            if is_state_of(kept.last, kept.lo, kept.hi, batch_id, end):
                return kept
        raise MomentGone(f"batch {batch_id}, which ends at {end}, is not kept")

    def _release(self, kept: _Kept[E_]) -> None:
        """Release a moment that is kept no longer, unless somebody reads it: then that one does it."""
        if not kept.readers:
            kept.entries.release()

    def families(self) -> frozenset[str]:
        """Return the names of the families that one of them has. The caller holds the lock."""
        return frozenset().union(*(kept.entries.families() for kept in self._kept))

    def statistics(self) -> Mapping[str, int]:
        """Return how many are kept, and the bytes that were written since the oldest."""
        with self._lock:
            written = self._written - self._kept[0].written if self._kept else 0
            return {"moments_kept": len(self._kept), "moments_written_bytes": written}


def _is_wanted(kept: _Kept[E_], newest: int, newer: int) -> bool:
    """Whether a moment stays by its id. One of a larger id is from before the ids began anew; so many are newer."""
    if kept.last > newest:
        return newer < DENSE
    return covers(kept.last, kept.last if kept.upto is None else kept.upto, newest)
