"""The order in which a micro-batch's records are applied; pure.

By record timestamp, tables first on ties, so that an event sees the row written in the same millisecond; then by
source partition and offset. Across batches it is the order of arrival: a batch is never reopened.
A global table's rows come before all events of their batch, whatever their timestamps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Position(NamedTuple):
    """Where a record stands."""

    timestamp_ms: int
    partition: int
    offset: int


@dataclass(frozen=True)
class Positions:
    """Where many records stand, column by column."""

    timestamps_ms: Numbers
    partitions: Numbers
    offsets: Numbers

    def at(self, rows: Numbers | Flags) -> Positions:
        """Return those of some rows."""
        return Positions(self.timestamps_ms[rows], self.partitions[rows], self.offsets[rows])

    def each(self) -> Iterator[Position]:
        """Give them one by one."""
        columns = (self.timestamps_ms.tolist(), self.partitions.tolist(), self.offsets.tolist())
        return map(Position, *columns)


Order = Callable[[Numbers, Positions, Flags], Numbers]
"""Gives the places of rows in order, group by group, from their groups, positions and whether each is an event."""


def by_time(groups: Numbers, positions: Positions, is_event: Flags) -> Numbers:
    """Order a stream beside a table."""
    return np.lexsort((positions.offsets, positions.partitions, is_event, positions.timestamps_ms, groups))


def tables_first(groups: Numbers, positions: Positions, is_event: Flags) -> Numbers:
    """Order a stream beside a global table. Its own rows by offset: a key's rows are in one partition."""
    times = np.where(is_event, positions.timestamps_ms, 0)
    return np.lexsort((positions.offsets, positions.partitions, times, is_event, groups))
