"""Which nodes answer this process, and how many lookups they had between two of their answers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from statehouse.client.node_readings import NodeReading
from statehouse.observability.counter_rates import grown

StorePlace = tuple[str, int]
"""A store and one of its partitions."""

QUIET_S: Final = 5.0
"""So long after its last answer a node's figures say nothing of now."""


class Contact(StrEnum):
    """Whether a node can be reached by this process."""

    UNASKED = "not asked yet"
    ANSWERS = "answers"
    REFUSES = "refuses"
    """It lives, and its rules don't let this process ask it."""
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class NodeContact:
    """How the last question to a node went. `since_s`: when that began to be so. `why` is for people."""

    contact: Contact
    since_s: float
    why: str = ""


def answered_between(before: NodeReading | None, after: NodeReading) -> dict[StorePlace, int]:
    """Return how many lookups each partition had at a node between two of its answers.

    A node that nothing was known of has none: what it counted before is not of this time. A replica that counts less
    than before, or that was not there, has been opened since.
    """
    if before is None:
        return {}
    known = before.lookups() if before.incarnation == after.incarnation else {}
    answered: dict[StorePlace, int] = {}
    for (_, store, partition), count in grown(known, after.lookups()).items():
        answered[store, partition] = answered.get((store, partition), 0) + count
    return answered
