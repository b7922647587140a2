"""The order in which the records of a micro-batch apply; pure.

Records apply by timestamp, and tables come first among equal timestamps, so that an event sees the row written in the
same millisecond; then by source partition and offset. Batches apply in order of arrival; none is reopened.
The rows of a global table apply before all events of their batch, whatever their timestamps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]


class RecordPosition(NamedTuple):
    """The position of a record in the order."""

    timestamp_ms: int
    partition: int
    offset: int


@dataclass(frozen=True)
class RecordPositions:
    """The positions of many records, as columns."""

    timestamps_ms: Numbers
    partitions: Numbers
    offsets: Numbers

    def at(self, rows: Numbers | Flags) -> RecordPositions:
        """Return the positions of these rows."""
        return RecordPositions(self.timestamps_ms[rows], self.partitions[rows], self.offsets[rows])

    def each(self) -> Iterator[RecordPosition]:
        """Yield the positions one by one."""
        columns = (self.timestamps_ms.tolist(), self.partitions.tolist(), self.offsets.tolist())
        return map(RecordPosition, *columns)


Order = Callable[[Numbers, RecordPositions, Flags], Numbers]
"""Sorts rows by group and then order; takes groups, positions and "is an event" flags; returns row numbers."""


def by_time(groups: Numbers, positions: RecordPositions, is_event: Flags) -> Numbers:
    """Order the events of a stream and the rows of a table."""
    return np.lexsort((positions.offsets, positions.partitions, is_event, positions.timestamps_ms, groups))


def tables_first(groups: Numbers, positions: RecordPositions, is_event: Flags) -> Numbers:
    """Order the events of a stream after the rows of a global table.

    The rows are sorted by offset; all rows of a key are in one partition.
    """
    times = np.where(is_event, positions.timestamps_ms, 0)
    return np.lexsort((positions.offsets, positions.partitions, times, is_event, groups))
