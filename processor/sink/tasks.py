"""The executors' part of the sink: tasks write the changelog partitions' shares of a batch, a transaction each.

What goes back to the driver is counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer

from processor.rows import DETAIL, KEY, OFFSET, PARTITION, REASON, TOPIC, VALUE
from processor.sink.protocol import WRITERS, SinkTarget, produce_record
from statehouse.partitioning import partition_for

SINK_PARTITION: Final = "_sink_partition"
TIMESTAMP_MS: Final = "_timestamp_ms"

# What a task needs of a row, in this order.
TASK_COLUMNS: Final = (SINK_PARTITION, KEY, VALUE, TIMESTAMP_MS, TOPIC, PARTITION, OFFSET, REASON, DETAIL)

COUNTS_SCHEMA: Final = "sink_partition int, kind string, records long"
_COUNTS_TYPE: Final = pa.schema(
    [pa.field("sink_partition", pa.int32()), pa.field("kind", pa.string()), pa.field("records", pa.int64())]
)

# Kinds of counts besides the dead letters' reasons.
CHANGELOG: Final = "changelog"
TOMBSTONE: Final = "tombstone"
SKIPPED: Final = "skipped"

_THREADS_MAX: Final = 8
_ROWS_MAX: Final = 1000  # turned into Python objects at a time
_NO_TIMESTAMP: Final = 0  # librdkafka's "now"


def changelog_partitions(keys: pa.Array, partition_count: int) -> pa.Array:
    """Return the changelog partition of each key, null for a null key."""
    found = [None if key is None else partition_for(key, partition_count) for key in keys.to_pylist()]
    return pa.array(found, pa.int32())


@dataclass(frozen=True)
class SinkTask:
    """Writes a task's share of one batch; called by Spark with its rows as Arrow batches.

    A sink partition's rows are all in one task, which may have several partitions, each with a transaction of its own.
    A partition without rows has no part in the batch, neither now nor when it is run again.
    """

    target: SinkTarget
    batch_id: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write, and yield counts."""
        read = list(batches)
        if not read:
            return
        # A transaction that has to be begun again needs its rows again, so they are all here until the commit.
        rows = pa.Table.from_batches(read)
        partitions = sorted(pc.unique(rows[SINK_PARTITION]).to_pylist())
        shares = [rows.filter(pc.equal(rows[SINK_PARTITION], partition)) for partition in partitions]
        # Threads, because a transaction is mostly waiting for the broker.
        with ThreadPoolExecutor(min(len(partitions), _THREADS_MAX)) as pool:
            yield from pool.map(self._write, partitions, shares)

    def _write(self, partition: int, rows: pa.Table) -> pa.RecordBatch:
        counts: Counter[str] = Counter()

        def produce(producer: Producer) -> None:
            counts.clear()
            for batch in rows.to_batches(_ROWS_MAX):
                for row in batch.to_pylist():
                    counts[self._produce(producer, partition, row)] += 1

        if not WRITERS.writer(self.target, partition).write(self.batch_id, produce):
            counts = Counter({SKIPPED: 1})
        columns = [[partition] * len(counts), list(counts), list(counts.values())]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _COUNTS_TYPE, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_COUNTS_TYPE)

    def _produce(self, producer: Producer, partition: int, row: dict[str, Any]) -> str:
        timestamp = max(row[TIMESTAMP_MS] or _NO_TIMESTAMP, _NO_TIMESTAMP)
        if row[REASON] is None:
            produce_record(
                producer,
                self.target.changelog_topic,
                partition,
                key=row[KEY],
                value=row[VALUE],
                timestamp=timestamp,
            )
            return TOMBSTONE if row[VALUE] is None else CHANGELOG
        origin = {"source_topic": row[TOPIC], "source_partition": row[PARTITION], "source_offset": row[OFFSET]}
        headers = {"reason": row[REASON], "detail": row[DETAIL] or ""}
        # An aggregate's row comes from no single record.
        headers |= {name: str(place) for name, place in origin.items() if place is not None}
        produce_record(
            producer,
            self.target.dead_letters_topic,
            partition % self.target.dead_letters_partition_count,
            key=row[KEY],
            value=row[VALUE],
            timestamp=timestamp,
            headers=[(name, text.encode()) for name, text in headers.items()],
        )
        return str(row[REASON])
