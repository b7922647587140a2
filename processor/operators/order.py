"""The order in which a micro-batch's records are applied; pure.

By record timestamp, tables first on ties, so that an event sees the row written in the same millisecond; then by
source partition and offset. Across batches it is the order of arrival: a batch is never reopened.
A global table's rows come before all events of their batch, whatever their timestamps.
"""

from __future__ import annotations

from typing import NamedTuple

Order = tuple[int, int, int, int]


class Position(NamedTuple):
    """Where a record stands."""

    timestamp_ms: int
    partition: int
    offset: int


def by_time(position: Position, *, is_table: bool) -> Order:
    """Sort key of a stream beside a table."""
    return (position.timestamp_ms, 0 if is_table else 1, position.partition, position.offset)


def tables_first(position: Position, *, is_table: bool) -> Order:
    """Sort key of a stream beside a global table. Its own rows by offset: a key's rows are in one partition."""
    if is_table:
        return (0, position.partition, position.offset, 0)
    return (1, position.timestamp_ms, position.partition, position.offset)
