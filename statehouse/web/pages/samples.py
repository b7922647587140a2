"""The recent past of each partition, in columns, for the heat map, and the last hour of the fleet. Pure, and bounded.

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

from statehouse.web.pages.figures import larger

COLUMN_S: Final = 2.0
COLUMNS_MAX: Final = 120
CELLS_MAX: Final = 3_000_000
"""Of all columns: a fleet of more partitions is remembered for a shorter time."""
SPAN_MS: Final = 30_000
SPANS_MAX: Final = 120
"""An hour."""
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

    `lookups`: a second, of all partitions; `lag`: the largest of an active; `failed`: lookups a second, of all routers.
    Each is None if nothing is known.
    """

    at_ms: int
    stores: Mapping[str, StoreColumn]
    lookups: float | None
    lag: float | None
    failed: float | None = None

    @classmethod
    def of(cls, at_ms: int, stores: Mapping[str, StoreColumn], failed: float | None = None) -> SampleColumn:
        """Make a column, with its sum and its maximum."""
        lookups = [number for store in stores.values() for number in store.lookups if not math.isnan(number)]
        lags = [number for store in stores.values() for number in store.lags if not math.isnan(number)]
        return cls(at_ms, stores, round(math.fsum(lookups), 1) if lookups else None, max(lags, default=None), failed)

    @property
    def cells(self) -> int:
        """How many partitions it has."""
        return sum(len(store.states) for store in self.stores.values())


@dataclass(frozen=True, slots=True)
class Span:
    """Some columns of the same half minute: their mean of lookups, and the largest lag and failures among them.

    `at_ms`: of the first one; `counted`: how many of them know their lookups.
    """

    at_ms: int
    lookups: float | None
    lag: float | None
    failed: float | None
    counted: int

    @classmethod
    def of(cls, column: SampleColumn) -> Span:
        """Return a span of one column."""
        return cls(column.at_ms, column.lookups, column.lag, column.failed, int(column.lookups is not None))

    def with_column(self, column: SampleColumn) -> Span:
        """Return the span with one more column. Failures are not averaged, so that a short burst stays visible."""
        lookups, counted = self.lookups, self.counted
        if column.lookups is not None:
            lookups, counted = ((lookups or 0.0) * counted + column.lookups) / (counted + 1), counted + 1
        return Span(self.at_ms, lookups, larger(self.lag, column.lag), larger(self.failed, column.failed), counted)


class Samples:
    """The last columns, and the last hour in spans."""

    def __init__(self) -> None:
        """Start without any."""
        self._spans: deque[Span] = deque(maxlen=SPANS_MAX)
        self._columns: deque[SampleColumn] = deque(maxlen=COLUMNS_MAX)

    def add(self, column: SampleColumn) -> None:
        """Take a column; the oldest leave."""
        self._columns.append(column)
        # A clock that was set back adds to the last span until it has caught up.
        if self._spans and column.at_ms // SPAN_MS <= self._spans[-1].at_ms // SPAN_MS:
            self._spans.append(self._spans.pop().with_column(column))
        else:
            self._spans.append(Span.of(column))
        while len(self._columns) > 1 and sum(each.cells for each in self._columns) > CELLS_MAX:
            self._columns.popleft()

    @property
    def columns(self) -> tuple[SampleColumn, ...]:
        """The columns, the oldest first."""
        return tuple(self._columns)

    @property
    def spans(self) -> tuple[Span, ...]:
        """The last hour, the oldest first."""
        return tuple(self._spans)

    def of(self, store: str) -> Iterator[tuple[int, StoreColumn]]:
        """Return a store's columns with their times, the oldest first."""
        for column in self._columns:
            if store in column.stores:
                yield column.at_ms, column.stores[store]
