"""The types of the rows that tasks of the sink get."""

from __future__ import annotations

import pyarrow as pa

from processor.rows import DETAIL, KEY, OFFSET, PARTITION, REASON, TOPIC, VALUE
from processor.sink.task_rows import OUTPUT, RECORD, SINK_PARTITION, SUFFIX, TIMESTAMP_MS

TASK_TYPE = pa.schema(
    [
        (SINK_PARTITION, pa.int32()),
        (OUTPUT, pa.int32()),
        (KEY, pa.binary()),
        (SUFFIX, pa.binary()),
        (VALUE, pa.binary()),
        (TIMESTAMP_MS, pa.int64()),
        (TOPIC, pa.string()),
        (PARTITION, pa.int32()),
        (OFFSET, pa.int64()),
        (REASON, pa.string()),
        (DETAIL, pa.string()),
    ]
)


def as_records(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows as Spark gives them to a task: as one column."""
    return pa.RecordBatch.from_arrays([rows.to_struct_array()], [RECORD])


def type_of(*columns: str) -> pa.Schema:
    """The types of some columns."""
    return pa.schema([TASK_TYPE.field(name) for name in columns])
