"""The executors' part of the sink: tasks write a batch, with one transaction for each sink partition.

They return only counts to the driver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
OUTPUT: Final = "_output"
"""The output of a row, as an index into the target's outputs."""
TIMESTAMP_MS: Final = "_timestamp_ms"

# The columns that a task needs, in this order.
TASK_COLUMNS: Final = (SINK_PARTITION, OUTPUT, KEY, VALUE, TIMESTAMP_MS, TOPIC, PARTITION, OFFSET, REASON, DETAIL)

COUNTS_SCHEMA: Final = "sink_partition int, output string, kind string, records long"
_COUNTS_TYPE: Final = pa.schema(
    [
        pa.field("sink_partition", pa.int32()),
        pa.field("output", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("records", pa.int64()),
    ]
)

Counts = Counter[tuple[str, str]]
"""Number of records by output and kind, and their bytes. The output is a store or topic, "" for the whole query."""

# Kinds of counts; dead-letter reasons are further kinds.
CHANGELOG: Final = "changelog"
TOMBSTONE: Final = "tombstone"
SKIPPED: Final = "skipped"
RETRIED: Final = "retried"
"""Counts how often the transaction of a partition had to be restarted, not records."""
BYTES: Final = "bytes"
"""Counts the bytes of keys and values in an output's records, not records."""

_THREADS_MAX: Final = 8
_ROWS_MAX: Final = 1000  # converted to Python objects at once
_NO_TIMESTAMP: Final = 0  # librdkafka's "now"


_NTH: Final = "_nth"
_TIME: Final = "_time"
_RANK: Final = "_rank"
_HASHES: Final = 2**31  # a partition count so large that its remainder is the hash itself


def placement_hashes(keys: pa.Array) -> pa.Array:
    """Return a hash of each key, null for a null key; modulo a topic's partition count it is the key's partition."""
    return pa.array([None if key is None else partition_for(key, _HASHES) for key in keys.to_pylist()], pa.int32())


def last_of_each_key(rows: pa.Table, cached_outputs: Sequence[int]) -> pa.Table:
    """Keep only the last row of each key in cached outputs; the remaining rows keep their order.

    A row with a source offset is later than the rows before it. Rows without one are sorted by timestamp, then by
    their order, because the rows of Spark's own joins come unordered.
    """
    numbered = rows.append_column(_NTH, pa.array(range(rows.num_rows), pa.int64()))
    is_cached = pc.and_(pc.is_in(rows[OUTPUT], pa.array(cached_outputs, pa.int32())), pc.is_null(rows[REASON]))
    cached = numbered.filter(is_cached)
    if cached.group_by([OUTPUT, KEY]).aggregate([]).num_rows == cached.num_rows:
        return rows  # as for an aggregate: there is nothing to sort
    time = pc.if_else(pc.is_null(cached[OFFSET]), pc.fill_null(cached[TIMESTAMP_MS], _NO_TIMESTAMP), _NO_TIMESTAMP)
    timed = cached.append_column(_TIME, time)
    ordered = timed.take(pc.sort_indices(timed, [(_TIME, "ascending"), (_NTH, "ascending")]))
    ranked = ordered.append_column(_RANK, pa.array(range(ordered.num_rows), pa.int64()))
    last = ordered[_NTH].take(ranked.group_by([OUTPUT, KEY]).aggregate([(_RANK, "max")])[f"{_RANK}_max"])
    kept = pa.concat_arrays([*last.chunks, *numbered.filter(pc.invert(is_cached))[_NTH].chunks])
    return rows.take(pc.take(kept, pc.sort_indices(kept)))


@dataclass(frozen=True)
class BatchWriter:
    """Writes a task's part of one batch; Spark calls it with the rows as Arrow batches.

    All rows of a sink partition are in one task. A task may have several partitions and writes each in its own
    transaction. A partition without rows takes no part in the batch, also when the batch runs again.
    """

    target: SinkTarget
    batch_id: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write, and yield counts."""
        read = list(batches)
        if not read:
            return
        # A restarted transaction needs its rows again, so keep them all until the commit.
        rows = pa.Table.from_batches(read)
        partitions = sorted(pc.unique(rows[SINK_PARTITION]).to_pylist())
        shares = [rows.filter(pc.equal(rows[SINK_PARTITION], partition)) for partition in partitions]
        # Threads, because a transaction mostly waits for the broker.
        with ThreadPoolExecutor(min(len(partitions), _THREADS_MAX)) as pool:
            yield from pool.map(self._write, partitions, shares)

    def _write(self, partition: int, rows: pa.Table) -> pa.RecordBatch:
        counts: Counts = Counter()

        def produce(producer: Producer) -> None:
            counts.clear()
            for share in self._through_cache(rows):
                for batch in share.to_batches(_ROWS_MAX):
                    self._produce_records(producer, partition, batch, counts)
                for batch in share.filter(pc.is_valid(share[REASON])).to_batches(_ROWS_MAX):
                    for row in batch.to_pylist():
                        self._produce_dead_letter(producer, partition, row)
                        counts["", str(row[REASON])] += 1

        writer = WRITERS.writer(self.target, partition)
        if not writer.write(self.batch_id, produce):
            counts = Counter({("", SKIPPED): 1})
        if writer.retries:
            counts["", RETRIED] = writer.retries
        outputs, kinds = ([name[place] for name in counts] for place in (0, 1))
        columns = [[partition] * len(counts), outputs, kinds, list(counts.values())]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _COUNTS_TYPE, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_COUNTS_TYPE)

    def _through_cache(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Yield the rows to write: the content of the record cache each time it is full."""
        cached = [place for place, output in enumerate(self.target.outputs) if output.record_cache]
        if not cached:
            yield rows
            return
        size = max(1, rows.num_rows * self.target.record_cache_max_bytes // max(1, rows.nbytes))
        for start in range(0, rows.num_rows, size):
            yield last_of_each_key(rows.slice(start, size), cached)

    def _produce_records(self, producer: Producer, partition: int, batch: pa.RecordBatch, counts: Counts) -> None:
        """Produce the rows that aren't dead letters. During a backlog most of a record's cost is here."""
        outputs = self.target.outputs
        tallies = [Counter[str]() for _ in outputs]
        columns = [batch.column(name).to_pylist() for name in (OUTPUT, KEY, VALUE, TIMESTAMP_MS, REASON)]
        for place, key, value, timestamp, reason in zip(*columns, strict=True):
            if reason is not None:
                continue
            produce_record(producer, outputs[place].topic, partition, key=key, value=value, timestamp=_valid(timestamp))
            tally = tallies[place]
            tally[TOMBSTONE if value is None else CHANGELOG] += 1
            tally[BYTES] += len(key or b"") + len(value or b"")
        for output, tally in zip(outputs, tallies, strict=True):
            counts.update({(output.name, kind): count for kind, count in tally.items()})

    def _produce_dead_letter(self, producer: Producer, partition: int, row: dict[str, Any]) -> None:
        origin = {"source_topic": row[TOPIC], "source_partition": row[PARTITION], "source_offset": row[OFFSET]}
        headers = {"reason": row[REASON], "detail": row[DETAIL] or ""}
        # The row of an aggregate has no single source record.
        headers |= {name: str(place) for name, place in origin.items() if place is not None}
        produce_record(
            producer,
            self.target.dead_letters_topic,
            partition % self.target.dead_letters_partition_count,
            key=row[KEY],
            value=row[VALUE],
            timestamp=_valid(row[TIMESTAMP_MS]),
            headers=[(name, text.encode()) for name, text in headers.items()],
        )


def _valid(timestamp_ms: int | None) -> int:
    return max(timestamp_ms or _NO_TIMESTAMP, _NO_TIMESTAMP)
