"""The recent past of each partition, in columns: lookups, lag and state, for the heat map. Pure, and bounded.

A column has one number for each partition of each store, in arrays: ten thousand partitions over some minutes are a
few megabytes.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

COLUMN_S: Final = 2.0
COLUMNS_MAX: Final = 120
CELLS_MAX: Final = 3_000_000
"""Of all columns: a fleet of more partitions is remembered for a shorter time."""
UNKNOWN: Final = math.nan


@dataclass(frozen=True, slots=True)
class StoreColumn:
    """A store's partitions at one moment.

    Attributes:
        lookups: answered per second since the column before, by partition; NaN is unknown.
        lags: of the active, in records, by partition; NaN is unknown.
        states: the number of each partition's `Condition`.
        moved: whether the partition's active was another one in the column before.

    """

    lookups: array[float]
    lags: array[float]
    states: bytes
    moved: bytes


@dataclass(frozen=True, slots=True)
class SampleColumn:
    """All stores at one moment, epoch milliseconds.

    `lookups`: a second, of all partitions; `lag`: the largest of an active. Both are None if nothing is known.
    """

    at_ms: int
    stores: Mapping[str, StoreColumn]
    lookups: float | None
    lag: float | None

    @classmethod
    def of(cls, at_ms: int, stores: Mapping[str, StoreColumn]) -> SampleColumn:
        """Make a column, with its sum and its maximum."""
        lookups = [number for store in stores.values() for number in store.lookups if not math.isnan(number)]
        lags = [number for store in stores.values() for number in store.lags if not math.isnan(number)]
        return cls(at_ms, stores, round(math.fsum(lookups), 1) if lookups else None, max(lags, default=None))

    @property
    def cells(self) -> int:
        """How many partitions it has."""
        return sum(len(store.states) for store in self.stores.values())


class Samples:
    """The last columns."""

    def __init__(self) -> None:
        """Start without any."""
        self._columns: deque[SampleColumn] = deque(maxlen=COLUMNS_MAX)

    def add(self, column: SampleColumn) -> None:
        """Take a column; the oldest leave."""
        self._columns.append(column)
        while len(self._columns) > 1 and sum(each.cells for each in self._columns) > CELLS_MAX:
            self._columns.popleft()

    @property
    def columns(self) -> tuple[SampleColumn, ...]:
        """The columns, the oldest first."""
        return tuple(self._columns)

    def of(self, store: str) -> Iterator[tuple[int, StoreColumn]]:
        """Return a store's columns with their times, the oldest first."""
        for column in self._columns:
            if store in column.stores:
                yield column.at_ms, column.stores[store]
