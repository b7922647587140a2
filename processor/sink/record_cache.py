"""Which rows of a batch the record cache leaves, where it has room for all; pure, on Arrow tables.

The sink's task does it as the rows come, in bounded room (`statehouse.sink.RecordCache`). This is for tests of
topologies; tests hold both to the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from processor.rows import KEY, OFFSET, REASON
from processor.sink.task_rows import NO_TIMESTAMP, OUTPUT, TIMESTAMP_MS

_NTH: Final = "_nth"
_RANK: Final = "_rank"


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
