"""What an aggregate does with a key's rows; pure, so that it is tested and modelled without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from processor.operators.order import Position

Json = Any
"""What `json.loads` gives: the state is kept as JSON text."""


class Aggregator(Protocol):
    """A fold over a key's rows. The state is JSON, None before the first row."""

    def add(self, state: Json | None, row: Mapping[str, Any], position: Position) -> Json:
        """Return the state with this row, of which null columns are absent; may change the state it was given."""
        ...

    def render(self, state: Json) -> Json | None:
        """Return the store's value for a state, None for a tombstone."""
        ...


@dataclass(frozen=True)
class TopN:
    """Keep the `n` rows with the largest `by`; ties go to the earlier row (timestamp, partition, offset).

    The value is a list, best first, of objects with the `fields`: name in JSON -> column.
    """

    n: int
    by: str
    fields: Mapping[str, str]

    def add(self, state: Json | None, row: Mapping[str, Any], position: Position) -> Json:
        """Return the entries with this row among them, at most `n`.

        An entry is [rank, object]; the rank (-by, timestamp, partition, offset) is unique, so the result doesn't
        depend on the order in which rows come.
        """
        entries: list[list[Any]] = state or []
        rank = [-row[self.by], *position]
        if len(entries) == self.n and rank > entries[-1][0]:
            return entries
        entry = [rank, {name: row.get(column) for name, column in self.fields.items()}]
        return sorted([*entries, entry], key=lambda item: item[0])[: self.n]

    def render(self, state: Json) -> Json | None:
        """Return the objects, best first."""
        return [item for _, item in state]
