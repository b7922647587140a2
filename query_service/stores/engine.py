"""Engines keep the stores' entries: ordered maps from bytes to bytes, grouped in families.

The kind of a store (key-value, window, session, versioned) and its engine (RocksDB, memory) are independent. A store
turns records into writes to families, and queries into walks over families; an engine carries both out. One thread
writes at a time; reads run meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from query_service.states.checkpoint import Checkpoint
from query_service.states.faults import Fault, TaskFault
from statehouse.contract.paging import KeyRange
from statehouse.errors import StatehouseError

Writes = Mapping[str, Sequence[tuple[bytes, bytes | None]]]
"""Per family, (key, value) in the order of the writes; a None value deletes the key."""


class StoreUnusable(TaskFault):
    """The directory can't be opened or read as a store of ours; it must be wiped, and the store restored."""

    fault = Fault.CORRUPT_STORE


class StoreClosed(StatehouseError):
    """The store was closed during the read: the node gave the task up."""


class MomentGone(StatehouseError):
    """The store is not kept as it was at the end of a batch, or not any more."""


class EngineView(Protocol):
    """The entries of some families as they were at one moment."""

    def entries(self, family: str, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) for start <= key < stop in order of the keys, descending if `reverse`.

        A `stop` of None means no upper end.
        """


def entries_in(view: EngineView, family: str, keys: KeyRange) -> Iterator[tuple[bytes, bytes]]:
    """Yield the entries of a range in its order, without those in its gaps, which are not read."""
    return itertools.chain.from_iterable(
        view.entries(family, part.start, part.stop, reverse=part.reverse) for part in keys.parts()
    )


class Engine(Protocol):
    """Families of ordered entries, and the checkpoint that is written with them."""

    def families(self) -> frozenset[str]:
        """Return the names of the families."""

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of a key, None if the key or its family does not exist."""

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return for each key what `get` would. Call it in a thread: other threads run while it waits for the disk.

        Raises:
            StoreClosed: the engine is closed. A `close` that comes later waits for this read.

        """

    def view(self, families: Collection[str]) -> AbstractContextManager[EngineView]:
        """Open a view of families; missing families are empty. The engine stays open until the view is left.

        Raises:
            StoreClosed: the engine is closed.

        """

    def write(self, writes: Writes, checkpoint: Checkpoint) -> None:
        """Write entries and the checkpoint atomically: after a crash all of it is there, or nothing.

        Missing families are created.

        Raises:
            TaskFault: the engine can't write; see the engines.

        """

    def drop(self, family: str) -> None:
        """Remove a family with all its entries. The cost does not grow with the number of entries."""

    def checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint written, None if nothing was ever written."""

    def approximate_count(self, family: str) -> int:
        """Return an estimate of the number of a family's entries, in constant time."""

    def open_views(self) -> int:
        """Return how many views, and calls of `get_many`, are open now."""

    def statistics(self) -> Mapping[str, int]:
        """Return the entries of `STORE_STATISTICS` that this engine knows. Cheap; safe to call from any thread."""

    def close(self) -> None:
        """Wait until the last view is left, then release files and memory."""


@runtime_checkable
class KeepsMoments(Protocol):
    """An engine that keeps its entries as they were at the ends of batches: see `statehouse.contract.batch_cuts`."""

    def keep(self, last: int, lo: int, hi: int) -> None:
        """Keep the entries as they are. The thread that writes calls this, between two writes.

        Args:
            last: the batch that the newest record names.
            lo: the offset after that record.
            hi: up to this offset no other record is. A later call with the same `lo` may raise it.

        """

    def moment(self, batch_id: int, end: int) -> AbstractContextManager[None]:
        """Have this thread read the entries as they were at the end of a batch, which is at the offset `end`.

        Raises:
            MomentGone: it is not kept. In the data plane a read within the context may raise it, too.
            StoreClosed: the engine is closed.

        """

    def shown_time_ms(self) -> int | None:
        """Return the stream time of the entries that this thread is shown; None if it reads them as they are."""

    def oldest_kept(self) -> int | None:
        """Return the batch whose end the oldest kept entries are of, None if none are kept. Never waits."""
