"""What listeners hear of: a store's partition, and why the node stopped updating a standby. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class StorePartition:
    """A partition of a store, and the changelog partition that it is read from.

    Attributes:
        store: name of the store.
        topic: the changelog topic.
        partition: number of the partition, in the store and in the topic.

    """

    store: str
    topic: str
    partition: int


class SuspendReason(StrEnum):
    """Why the node stopped updating a standby (KIP-988)."""

    MIGRATED = "migrated"
    """The node no longer has the task, or the task failed."""
    PROMOTED = "promoted"
    """The standby became the active."""
