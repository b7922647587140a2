"""The record cache: one pool for all stores of a processor, where a key's later update replaces the earlier one; pure.

Each batch borrows a part of the pool while it is written, and its tasks have equal parts of that. A task's part is for
all its partitions and stores. When it is full, the updates that were replaced are dropped; if the others fill more than
half of it, those of the keys updated longest ago leave early, until they don't: nothing replaces them any more. All is
written when the batch ends, which is when Kafka Streams flushes its cache: at the commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from processor.rows import KEY, OFFSET, REASON, VALUE
from processor.sink.task_rows import NO_TIMESTAMP, OUTPUT, SINK_PARTITION, TIMESTAMP_MS

ROW_BYTES: Final = 40
"""What a cached row takes beside its key and value, about."""

_NTH: Final = "_nth"
_TIME: Final = "_time"
_RANK: Final = "_rank"

Place = tuple[int, int]
"""A sink partition and an output."""


def pool_share(max_bytes: int, lent: Sequence[int], borrowers: int) -> int:
    """Return what a batch may borrow: all that is free, but half a fair share for each query that has borrowed nothing.

    So no batch waits for another one; each gets half a fair share at least, and much more if it is the only one.
    Never is more lent than `max_bytes`.

    Args:
        max_bytes: the pool.
        lent: what the batches of other queries have borrowed.
        borrowers: the number of queries that use the pool.

    """
    others_idle = max(borrowers - len(lent) - 1, 0)
    return max(max_bytes - sum(lent) - others_idle * (max_bytes // (2 * borrowers)), 0)


class RecordCache:
    """A task's part of the pool.

    Attributes:
        saved: by place, how many rows were replaced by a later one and will not be written.
        early: by place, how many rows left before the end because the cache was full.

    """

    def __init__(self, max_bytes: int, cached_outputs: Sequence[int]) -> None:
        self._max_bytes, self._outputs = max_bytes, cached_outputs
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._left: list[pa.Table] = []
        self._others: list[pa.Table] = []
        self.saved: Counter[Place] = Counter()
        self.early: Counter[Place] = Counter()

    @property
    def held_bytes(self) -> int:
        """What the rows in the cache take."""
        return self._held_bytes

    def put(self, rows: pa.Table) -> None:
        """Take rows, in the order in which they came. Rows that aren't cached pass by."""
        is_cached = _is_cached(rows, self._outputs)
        cached = rows
        if not pc.all(is_cached).as_py():  # mostly all are, and filters cost
            self._others.append(rows.filter(pc.invert(is_cached)))
            cached = rows.filter(is_cached)
        if not self._max_bytes:
            self._left.append(cached)
            return
        self._hold([*self._held, cached], self._held_bytes + int(_sizes(cached).sum()))
        if self._held_bytes > self._max_bytes:
            self._make_room()

    def flush(self) -> pa.Table:
        """Empty the cache; return all rows to write. Those of a key are in order: the last one counts."""
        self._replace()
        cached = [*self._left, *self._held]
        if self._left:
            cached = [in_order(pa.concat_tables(cached))]
        rows = pa.concat_tables([*self._others, *cached])
        self._hold([], 0)
        self._left, self._others = [], []
        return rows

    def _make_room(self) -> None:
        self._replace()
        if self._held_bytes <= self._max_bytes // 2:
            return
        (held,) = self._held
        sizes = _sizes(held)
        # The latest ones stay, as many as half of the cache takes.
        stay = int(np.searchsorted(np.cumsum(sizes[::-1]), self._max_bytes // 2, side="right"))
        leaving = held.slice(0, held.num_rows - stay)
        self.early.update(_places(leaving))
        self._left.append(leaving)
        self._hold([held.slice(held.num_rows - stay)], int(sizes[held.num_rows - stay :].sum()))

    def _replace(self) -> None:
        """Drop the rows of keys that have a later one."""
        if not self._held:
            return
        held = pa.concat_tables(self._held)
        last = last_of_each_key(held, self._outputs)
        if last.num_rows < held.num_rows:
            self.saved.update(_places(held))
            self.saved.subtract(_places(last))
        self._hold([last], int(_sizes(last).sum()))

    def _hold(self, held: list[pa.Table], size: int) -> None:
        self._held, self._held_bytes = held, size


def last_of_each_key(rows: pa.Table, cached_outputs: Sequence[int]) -> pa.Table:
    """Keep only the last row of each key in cached outputs; the remaining rows keep their order.

    A row with a source offset is later than the rows before it. Rows without one are sorted by timestamp, then by
    their order, because the rows of Spark's own joins come unordered.
    """
    numbered = rows.append_column(_NTH, pa.array(range(rows.num_rows), pa.int64()))
    is_cached = _is_cached(rows, cached_outputs)
    cached = numbered.filter(is_cached)
    if cached.group_by([OUTPUT, KEY]).aggregate([]).num_rows == cached.num_rows:
        return rows  # as for an aggregate: there is nothing to sort
    ordered = in_order(cached)
    ranked = ordered.append_column(_RANK, pa.array(range(ordered.num_rows), pa.int64()))
    last = ordered[_NTH].take(ranked.group_by([OUTPUT, KEY]).aggregate([(_RANK, "max")])[f"{_RANK}_max"])
    kept = pa.concat_arrays([*last.chunks, *numbered.filter(pc.invert(is_cached))[_NTH].chunks])
    return rows.take(pc.take(kept, pc.sort_indices(kept)))


def in_order(cached: pa.Table) -> pa.Table:
    """Return cached rows in the order that `last_of_each_key` says."""
    time = pc.if_else(pc.is_null(cached[OFFSET]), pc.fill_null(cached[TIMESTAMP_MS], NO_TIMESTAMP), NO_TIMESTAMP)
    return cached.take(pa.array(np.argsort(time.to_numpy(), kind="stable")))


def _is_cached(rows: pa.Table, cached_outputs: Sequence[int]) -> pa.ChunkedArray:
    return pc.and_(pc.is_in(rows[OUTPUT], pa.array(cached_outputs, pa.int32())), pc.is_null(rows[REASON]))


def _sizes(rows: pa.Table) -> NDArray[np.int64]:
    key, value = (pc.fill_null(pc.binary_length(rows[name]), 0) for name in (KEY, VALUE))
    sizes: NDArray[np.int64] = pc.add(key, value).to_numpy().astype(np.int64) + ROW_BYTES
    return sizes


def _places(rows: pa.Table) -> Counter[Place]:
    counted = rows.group_by([SINK_PARTITION, OUTPUT]).aggregate([([], "count_all")])
    columns = (counted[name].to_pylist() for name in (SINK_PARTITION, OUTPUT, "count_all"))
    return Counter({(partition, output): count for partition, output, count in zip(*columns, strict=True)})
