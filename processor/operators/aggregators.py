"""What an aggregate does with a key's rows; pure, so that it is tested and modelled without Spark."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from processor.operators.order import Flags, Numbers, Position

Json = Any
"""What `json.loads` gives: the state is kept as JSON text."""


class Aggregator(Protocol):
    """A fold over a key's rows. The state is JSON, None before the first row and after one that ended it."""

    def add(self, state: Json | None, row: Mapping[str, Any], position: Position) -> Json | None:
        """Return the state with this row, of which null columns are absent; may change the state it was given.

        None forgets the key: its entry gets a tombstone, the next row begins anew.
        """
        ...

    def render(self, state: Json) -> Json | None:
        """Return the store's value for a state, None for a tombstone."""
        ...


class Selective(ABC):
    """An aggregator that can tell rows which change nothing, most of them without looking at them one by one.

    Its `add` returns the very state it was given if the row changes nothing, and never alters it.
    """

    @abstractmethod
    def relevant(self, groups: Numbers, numbers: Callable[[str], NDArray[Any] | None]) -> Flags:
        """Return which of a batch's rows, in order and group by group, must be added for the states after the last.

        `numbers` gives a column by name, None where it is no plain column of numbers.
        """


@dataclass(frozen=True)
class Count:
    """Count a key's rows."""

    def add(self, state: Json | None, row: Mapping[str, Any], position: Position) -> Json:  # noqa: ARG002
        """Return one more."""
        return 1 if state is None else state + 1

    def render(self, state: Json) -> Json:
        """Return the number."""
        return state


@dataclass(frozen=True)
class Reduce:
    """Combine a key's rows with each other; the first is kept as `first` makes it, not combined with anything.

    Kafka Streams' `reduce`. Both functions return JSON; `combine` gets what there is and the next row, and may return
    None, which forgets the key.
    """

    combine: Callable[[Json, Mapping[str, Any]], Json | None]
    first: Callable[[Mapping[str, Any]], Json | None] = dict

    def add(self, state: Json | None, row: Mapping[str, Any], position: Position) -> Json | None:  # noqa: ARG002
        """Return the first row, or what there is combined with this one."""
        return self.first(row) if state is None else self.combine(state, row)

    def render(self, state: Json) -> Json:
        """Return what there is."""
        return state


@dataclass(frozen=True)
class TopN(Selective):
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

    def relevant(self, groups: Numbers, numbers: Callable[[str], NDArray[Any] | None]) -> Flags:
        """Return the `n` best of each group: a row that is none of them can't be among the best of all batches."""
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
