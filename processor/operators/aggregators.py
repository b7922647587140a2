"""Aggregators: how a key's rows become one value. Pure, so that tests need no Spark."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from processor.operators.order import Flags, Numbers, RecordPosition

Json = Any
"""A value as `json.loads` returns it; the state is kept as JSON text."""


class Aggregator(Protocol):
    """A fold over a key's rows. The state is JSON; it is None before the first row, and after `add` returned None."""

    def add(self, state: Json | None, row: Mapping[str, Any], position: RecordPosition) -> Json | None:
        """Return the state with this row added; may change the given state. The row lacks its null columns.

        None forgets the key: its entry gets a tombstone, and its next row starts from None.
        """
        ...

    def render(self, state: Json) -> Json | None:
        """Return the value that the store gets for this state, None for a tombstone."""
        ...


class TableAggregator(Aggregator, Protocol):
    """A fold over the rows that a group has now; Kafka Streams' adder and subtractor (KGroupedTable)."""

    def subtract(self, state: Json | None, row: Mapping[str, Any], position: RecordPosition) -> Json | None:
        """Return the state without this row, which was added before; may change the given state.

        `position`: where the change is that replaced or deleted the row. None forgets the group, as in `add`.
        """
        ...


class Selective(ABC):
    """An aggregator that finds most rows without effect by whole columns, not row by row.

    Its `add` never changes the given state, and returns that same object if the row changes nothing.
    """

    @abstractmethod
    def relevant(self, groups: Numbers, numbers: Callable[[str], NDArray[Any] | None]) -> Flags:
        """Return a flag per row: whether the final states of the batch need it. Rows are sorted by group, then order.

        `numbers` returns a column by name, None if it isn't a plain column of numbers.
        """


class Count:
    """Count a key's rows, or the rows that a table's group has now."""

    def add(self, state: Json | None, row: Mapping[str, Any], position: RecordPosition) -> Json:  # noqa: ARG002
        """Return the count plus one."""
        return 1 if state is None else state + 1

    def subtract(self, state: Json | None, row: Mapping[str, Any], position: RecordPosition) -> Json | None:  # noqa: ARG002
        """Return the count minus one; None if no row is left."""
        return (state or 0) - 1 or None

    def render(self, state: Json) -> Json:
        """Return the count."""
        return state


@dataclass(frozen=True)
class Reduce:
    """Combine a key's rows, as `reduce` does in Kafka Streams; `first` makes the state from the first row.

    Both functions return JSON. `combine` gets the state and the next row; if it returns None, the key is forgotten.
    """

    combine: Callable[[Json, Mapping[str, Any]], Json | None]
    first: Callable[[Mapping[str, Any]], Json | None] = dict

    def add(self, state: Json | None, row: Mapping[str, Any], position: RecordPosition) -> Json | None:  # noqa: ARG002
        """Return the state made from the first row, or the state combined with this row."""
        return self.first(row) if state is None else self.combine(state, row)

    def render(self, state: Json) -> Json:
        """Return the state."""
        return state


@dataclass(frozen=True)
class TopN(Selective):
    """Keep the `n` rows with the largest `by`; of equal rows the earlier wins (timestamp, partition, offset).

    Rows whose `by` is null, or no number, have no place in the order: they are left out, as aggregates of SQL do with
    nulls. The value is a list of objects, best first. `fields` maps their names in JSON to columns.
    """

    n: int
    by: str
    fields: Mapping[str, str]

    def add(self, state: Json | None, row: Mapping[str, Any], position: RecordPosition) -> Json | None:
        """Return the best `n` entries, with this row considered.

        An entry is [rank, object]. The rank (-by, timestamp, partition, offset) is unique, so the result doesn't
        depend on the order of rows.
        """
        entries: list[list[Any]] = state or []
        by = row.get(self.by)
        if not isinstance(by, int | float) or math.isnan(by):
            return state
        rank = [-by, *position]
        if len(entries) == self.n and rank > entries[-1][0]:
            return entries
        entry = [rank, {name: row.get(column) for name, column in self.fields.items()}]
        return sorted([*entries, entry], key=lambda item: item[0])[: self.n]

    def relevant(self, groups: Numbers, numbers: Callable[[str], NDArray[Any] | None]) -> Flags:
        """Flag the `n` best rows of each group; no other row can be among the best of all batches."""
        scores = numbers(self.by)
        if scores is None or np.isnan(scores).any():
            return np.ones(len(groups), dtype=np.bool_)
        worse = ~scores if np.issubdtype(scores.dtype, np.integer) else -scores  # the least integer has no negative
        best_first = np.lexsort((worse, groups))  # ties stay in order
        place = np.arange(len(groups))
        begins = np.maximum.accumulate(np.where(np.diff(groups, prepend=groups[:1] - 1) != 0, place, 0))
        among_best = np.empty(len(groups), dtype=np.bool_)
        among_best[best_first] = place - begins < self.n
        return among_best

    def render(self, state: Json) -> Json | None:
        """Return the objects, best first."""
        return [item for _, item in state]
