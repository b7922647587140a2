"""The executors' part of the sink: each task writes one changelog partition's share of a batch, in one transaction.

Spark's rows come as Arrow batches; they are produced as they come, and kept until the commit.
What goes back to the driver is counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Producer

from processor.rows import DETAIL, KEY, OFFSET, PARTITION, REASON, TOPIC, VALUE
from processor.sink.protocol import WRITERS, SinkTarget, produce_record
from statehouse.errors import ContractError
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

_NO_TIMESTAMP: Final = 0  # librdkafka's "now"


def changelog_partitions(keys: pa.Array, partition_count: int) -> pa.Array:
    """Return the changelog partition of each key, null for a null key."""
    found = [None if key is None else partition_for(key, partition_count) for key in keys.to_pylist()]
    return pa.array(found, pa.int32())


@dataclass(frozen=True)
class SinkTask:
    """Writes the rows of one sink partition of one batch; called by Spark with the partition's Arrow batches.

    Spark may call it with nothing: the partition has no part in this batch then, neither now nor in a replay.
    A transaction that has to be begun again needs its rows again, so they are kept until it is committed.
    """

    target: SinkTarget
    batch_id: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write, and yield counts."""
        rows = _Rows(batches)
        partition = rows.partition
        if partition is None:
            return
        counts: Counter[str] = Counter()

        def produce(producer: Producer) -> None:
            counts.clear()
            for row in rows:
                counts[self._produce(producer, partition, row)] += 1

        written = WRITERS.writer(self.target, partition).write(self.batch_id, produce)
        if not written:
            counts = Counter({SKIPPED: 1})
        columns = [[partition] * len(counts), list(counts), list(counts.values())]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _COUNTS_TYPE, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_COUNTS_TYPE)

    def _produce(self, producer: Producer, partition: int, row: dict[str, Any]) -> str:
        if row[SINK_PARTITION] != partition:
            raise ContractError(f"a task got rows of sink partitions {partition} and {row[SINK_PARTITION]}")
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
        headers = {
            "reason": row[REASON],
            "detail": row[DETAIL] or "",
            "source_topic": row[TOPIC],
            "source_partition": str(row[PARTITION]),
            "source_offset": str(row[OFFSET]),
        }
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


class _Rows:
    """A partition's rows; can be gone through again, reading from Spark what wasn't read before."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._incoming = iter(batches)
        self._read: list[pa.RecordBatch] = []

    @property
    def partition(self) -> int | None:
        """The sink partition of the first row, None without rows."""
        for row in self:
            return int(row[SINK_PARTITION])
        return None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        at = 0
        while True:
            if at == len(self._read):
                batch = next(self._incoming, None)
                if batch is None:
                    return
                self._read.append(batch)
            yield from self._read[at].to_pylist()
            at += 1
