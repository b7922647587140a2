"""Files that are fetched from other nodes: how far they are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Transfer:
    """Files of a store's partition that are fetched.

    Attributes:
        store: the store's name.
        partition: its partition.
        peer: whose files they are, an instance id.
        size: the bytes of all.
        there: those that were there before.
        done: those that are there.

    """

    store: str
    partition: int
    peer: str
    size: int
    there: int
    done: int

    @property
    def missing(self) -> int:
        """The bytes that are still to come."""
        return max(0, self.size - self.done)
