"""The executors' part of the sink: tasks write the sink partitions' shares of a batch, a transaction each.

What goes back to the driver is counts.
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
"""Which of the target's outputs a row is for, by its place among them."""
TIMESTAMP_MS: Final = "_timestamp_ms"

# What a task needs of a row, in this order.
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
"""Records by output and kind, and their bytes. The output is a store's or topic's name, "" where it is the query."""

# Kinds of counts besides the dead letters' reasons.
CHANGELOG: Final = "changelog"
TOMBSTONE: Final = "tombstone"
SKIPPED: Final = "skipped"
BYTES: Final = "bytes"
"""Not records, but what the keys and values of an output's records come to."""

_THREADS_MAX: Final = 8
_ROWS_MAX: Final = 1000  # turned into Python objects at a time
_NO_TIMESTAMP: Final = 0  # librdkafka's "now"


_NTH: Final = "_nth"
_TIME: Final = "_time"
_RANK: Final = "_rank"
_HASHES: Final = 2**31  # a partition count so large that its remainder is the hash itself


def placement_hashes(keys: pa.Array) -> pa.Array:
    """Return the number of each key that, modulo a topic's partition count, is its partition; null for a null key."""
    return pa.array([None if key is None else partition_for(key, _HASHES) for key in keys.to_pylist()], pa.int32())


def last_of_each_key(rows: pa.Table, cached_outputs: Sequence[int]) -> pa.Table:
    """Leave out the rows of cached outputs that a later one of the same key follows; the others keep their order.

    A row that says its source offset is later than those before it. Others are later by their timestamps, then by their
    order: what Spark's own joins find in a batch comes in none.
    """
    numbered = rows.append_column(_NTH, pa.array(range(rows.num_rows), pa.int64()))
    is_cached = pc.and_(pc.is_in(rows[OUTPUT], pa.array(cached_outputs, pa.int32())), pc.is_null(rows[REASON]))
    cached = numbered.filter(is_cached)
    if cached.group_by([OUTPUT, KEY]).aggregate([]).num_rows == cached.num_rows:
        return rows  # as an aggregate's, which has nothing to sort
    time = pc.if_else(pc.is_null(cached[OFFSET]), pc.fill_null(cached[TIMESTAMP_MS], _NO_TIMESTAMP), _NO_TIMESTAMP)
    timed = cached.append_column(_TIME, time)
    ordered = timed.take(pc.sort_indices(timed, [(_TIME, "ascending"), (_NTH, "ascending")]))
    ranked = ordered.append_column(_RANK, pa.array(range(ordered.num_rows), pa.int64()))
    last = ordered[_NTH].take(ranked.group_by([OUTPUT, KEY]).aggregate([(_RANK, "max")])[f"{_RANK}_max"])
    kept = pa.concat_arrays([*last.chunks, *numbered.filter(pc.invert(is_cached))[_NTH].chunks])
    return rows.take(pc.take(kept, pc.sort_indices(kept)))


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

        if not WRITERS.writer(self.target, partition).write(self.batch_id, produce):
            counts = Counter({("", SKIPPED): 1})
        outputs, kinds = ([name[place] for name in counts] for place in (0, 1))
        columns = [[partition] * len(counts), outputs, kinds, list(counts.values())]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _COUNTS_TYPE, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_COUNTS_TYPE)

    def _through_cache(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Yield what is written of the rows: of each full cache what it holds when it is full."""
        cached = [place for place, output in enumerate(self.target.outputs) if output.record_cache]
        if not cached:
            yield rows
            return
        size = max(1, rows.num_rows * self.target.record_cache_max_bytes // max(1, rows.nbytes))
        for start in range(0, rows.num_rows, size):
            yield last_of_each_key(rows.slice(start, size), cached)

    def _produce_records(self, producer: Producer, partition: int, batch: pa.RecordBatch, counts: Counts) -> None:
        """Produce the rows that aren't dead letters. What a row costs here is most of what a backlog's record does."""
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
        # An aggregate's row comes from no single record.
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
