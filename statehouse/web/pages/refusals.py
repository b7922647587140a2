"""Which queries have refused records, or dropped rows as late, lately: their counts have grown while we looked. Pure.

A processor counts from its start, and the counts of the first look may be old. So pages name only growth since then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from statehouse.client.answers import ProcessorQuery

LATELY_S: Final = 600.0
"""Who looks at a page a while after has still to see it."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A count, how much it has grown since it began to, and when it last did: seconds of one clock."""

    count: int
    grown: int = 0
    at_s: float = float("-inf")

    def after(self, count: int, now_s: float) -> Growth:
        """Return the growth with a newer count. A smaller one is of a processor that has begun anew."""
        new = count if count < self.count else count - self.count
        if new == 0:
            return Growth(count, self.grown, self.at_s)
        return Growth(count, new + (self.grown if self.is_recent(now_s) else 0), now_s)

    def is_recent(self, now_s: float) -> bool:
        """Whether it has grown lately."""
        return now_s - self.at_s < LATELY_S


class Refusals:
    """What queries have refused and dropped, by query."""

    def __init__(self) -> None:
        """Start without any."""
        self._dead_letters: Mapping[str, Growth] = {}
        self._late_rows: Mapping[str, Growth] = {}

    def take(self, queries: Iterable[ProcessorQuery], now_s: float) -> None:
        """Take the queries' newest counts."""
        counted = {query.name: query.status for query in queries if query.status is not None}
        refused = {name: status.dead_letters for name, status in counted.items()}
        late = {name: status.late_rows for name, status in counted.items() if status.late_rows is not None}
        self._dead_letters = _grown(self._dead_letters, refused, now_s)
        self._late_rows = _grown(self._late_rows, late, now_s)

    def recent_dead_letters(self, now_s: float) -> dict[str, int]:
        """Return how many records each query has refused lately; only queries that have."""
        return {name: each.grown for name, each in self._dead_letters.items() if each.is_recent(now_s)}

    def recent_late_rows(self, now_s: float) -> dict[str, int]:
        """Return the same of rows that were dropped as late."""
        return {name: each.grown for name, each in self._late_rows.items() if each.is_recent(now_s)}


def _grown(before: Mapping[str, Growth], counts: Mapping[str, int], now_s: float) -> dict[str, Growth]:
    return {
        name: before[name].after(count, now_s) if name in before else Growth(count) for name, count in counts.items()
    }
