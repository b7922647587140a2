"""What a state store must offer. Reads may run beside one writer; `close` waits for reads under way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from query_service.checkpoint import Checkpoint
from statehouse.paging import KeyRange

Records = Sequence[tuple[bytes, bytes | None]]
"""(key, value) in offset order; a None value deletes."""


@dataclass(frozen=True, slots=True)
class Page:
    """Entries of a range, and whether the range holds more after them."""

    entries: list[tuple[bytes, bytes]]
    more: bool


class ReadOnlyKeyValueStore(Protocol):
    """The face that queries get."""

    def get(self, key: bytes) -> bytes | None:
        """Return a key's value, None if the store does not hold it."""

    def scan(self, keys: KeyRange, limit: int, max_bytes: int) -> Page:
        """Return entries of a range, in its order, from one snapshot.

        At most `limit`, and at most `max_bytes` of keys and values unless a single entry is larger.
        """

    def approximate_count(self) -> int:
        """Return the engine's estimate of the number of entries, in constant time."""

    def exact_count(self) -> int:
        """Count the entries of one snapshot by a scan."""


class StateStore(ReadOnlyKeyValueStore, Protocol):
    """The face that replication gets."""

    def checkpoint(self) -> Checkpoint | None:
        """Return the place in the changelog that the content stands for, None for an empty store."""

    def apply(self, records: Records, checkpoint: Checkpoint) -> None:
        """Write records and the place after them, atomically."""

    def close(self) -> None:
        """Release files; waits for reads under way."""
