"""What the measured applications do: which events go in, and what of them a changelog record shows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from bench.data import key_of
from examples.leaderboard import sample, topology

SOURCE: Final = "events"
"""Source of `bench.topology` and of Spark's own query."""
SINK: Final = "copies"
"""Target of Spark's own query."""
_KEYS: Final = 10_000
_ROWS: Final = 50

Event = tuple[bytes | None, bytes | None]
"""Key and value of a source record."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Events with growing numbers, each about a subject: a key of the store.

    Attributes:
        events_topic: the topic that events go to.
        tables: records of further source topics, written first.
        changed_topic: where the subjects' new values come out.

    """

    events_topic: str
    changed_topic: str
    tables: Mapping[str, Sequence[Event]] = field(default_factory=lambda: MappingProxyType({}))

    def event(self, number: int) -> Event:
        """Return the source record of an event."""
        return self.subject(number), b"%d" % number

    def subject(self, number: int) -> bytes:
        """Return the subject of an event."""
        return key_of(number % _KEYS).encode()

    def newest(self, value: bytes) -> int:
        """Return the number of the newest event that a changed value shows."""
        return int(value)


class Leaderboard(Workload):
    """Each event is the best score of its product so far, so that it shows."""

    def event(self, number: int) -> Event:
        """See Workload."""
        return sample.score_event(number % _ROWS + 1, number % _ROWS + 1, float(number))

    def subject(self, number: int) -> bytes:
        """See Workload."""
        return b"%d" % (number % _ROWS + 1)

    def newest(self, value: bytes) -> int:
        """See Workload."""
        return max(int(entry["score"]) for entry in json.loads(value))


def _rows(word: str) -> list[Event]:
    return [sample.named_row(number, f"{word} {number}") for number in range(1, _ROWS + 1)]


LATEST: Final = Workload(SOURCE, "bench-latest-changelog")
LEADERBOARD: Final = Leaderboard(
    topology.SCORES,
    f"{topology.application_id}-leader-boards-changelog",
    {topology.PLAYERS: _rows("Player"), topology.PRODUCTS: _rows("Product")},
)
FLOOR: Final = Workload(SOURCE, SINK)
