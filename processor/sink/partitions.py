"""Places records: gives rows their sink partition, and joins the parts of their keys; pure, on Arrow tables.

A task of the sink does it as the rows come, because a stage of its own would cost more than all of the rest. Where
Spark itself has to bring the rows of a partition together, it uses the same hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from processor.rows import KEY, PARTITION, REASON
from processor.sink.task_rows import OUTPUT, SINK_PARTITION, SUFFIX
from statehouse.contract.partitioning import partition_for

_HASHES: Final = 2**31  # a partition count so large that its remainder is the hash itself


def placement_hashes(keys: pa.Array) -> pa.Array:
    """Return a hash of each key, null for a null key; modulo a topic's partition count it is the key's partition."""
    return pa.array([None if key is None else partition_for(key, _HASHES) for key in keys.to_pylist()], pa.int32())


def placed(rows: pa.Table, partition_counts: Sequence[int]) -> pa.Table:
    """Add SINK_PARTITION, unless Spark has placed the rows already, and join KEY with SUFFIX.

    The key of a record, without window or session, selects the partition; dead letters and records without a key go
    to the number of their source partition, modulo the count.

    Args:
        rows: as `task_rows` says.
        partition_counts: for each output.

    """
    is_record = pc.is_null(rows[REASON])
    if SINK_PARTITION not in rows.column_names:
        hashed = placement_hashes(
            pc.if_else(is_record, rows[KEY], pa.scalar(None, rows.schema.field(KEY).type)).combine_chunks()
        )
        place = pc.fill_null(pc.coalesce(hashed, rows[PARTITION].combine_chunks()), 0).to_numpy(zero_copy_only=False)
        counts = np.array([*partition_counts, max(partition_counts)])
        of_row = np.where(is_record.to_numpy(), rows[OUTPUT].to_numpy(), len(partition_counts))
        rows = rows.append_column(SINK_PARTITION, pa.array(place % counts[of_row], pa.int32()))
    joined = pc.binary_join_element_wise(rows[KEY], rows[SUFFIX], pa.scalar(b"", rows.schema.field(KEY).type))
    key = pc.if_else(is_record, joined, rows[KEY])
    return rows.set_column(rows.column_names.index(KEY), KEY, key).drop_columns([SUFFIX])
