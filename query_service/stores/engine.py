"""Engines: ordered byte maps, grouped in families, under the stores.

What a store is (key-value, window, session, versioned) and where it keeps its entries (RocksDB, memory) are
independent: a store turns records into writes to families and queries into walks over them; an engine does those.
One writer at a time; reads run beside it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from query_service.checkpoint import Checkpoint
from query_service.faults import Fault, TaskFault
from statehouse.errors import StatehouseError

Writes = Mapping[str, Sequence[tuple[bytes, bytes | None]]]
"""Per family, (key, value) in order; a None value deletes."""


class StoreUnusable(TaskFault):
    """What is on disk can't be opened or read as a store of ours; it must be wiped and restored."""

    fault = Fault.CORRUPT_STORE


class StoreClosed(StatehouseError):
    """The store was closed under the reader: the node gave the task up."""


class View(Protocol):
    """The entries of some families at one moment."""

    def entries(self, family: str, start: bytes, stop: bytes | None, *, reverse: bool) -> Iterator[tuple[bytes, bytes]]:
        """Walk the entries with start <= key < stop (None: no upper end), in either direction."""


class Engine(Protocol):
    """Families of ordered entries, with a checkpoint that moves with the writes."""

    def families(self) -> frozenset[str]:
        """Return the families there are."""

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return an entry's value; None if it or its family isn't there."""

    def view(self, families: Collection[str]) -> AbstractContextManager[View]:
        """Lend a view of families; the engine stays open for as long. Missing families are empty."""

    def write(self, writes: Writes, checkpoint: Checkpoint) -> None:
        """Write to families, created as needed, and the checkpoint: all or, after a crash, nothing."""

    def drop(self, family: str) -> None:
        """Remove a family with all its entries, at a cost that doesn't grow with them."""

    def checkpoint(self) -> Checkpoint | None:
        """Return the last checkpoint written."""

    def approximate_count(self, family: str) -> int:
        """Return an estimate of a family's entries, in constant time."""

    def open_views(self) -> int:
        """Return how many views are lent at the moment."""

    def statistics(self) -> Mapping[str, int]:
        """Return what `STORE_STATISTICS` describes, as far as this engine knows it; cheap, and from any thread."""

    def close(self) -> None:
        """Release what the engine holds, once the last view is returned."""
