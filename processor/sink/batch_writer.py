"""The executors' part of the sink: tasks write a batch, with one transaction for each sink partition.

They return only counts to the driver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from processor.rows import DETAIL, KEY, OFFSET, PARTITION, REASON, TOPIC, VALUE
from processor.sink.counts import BYTES, CHANGELOG, CLAIMED, EARLY, RETRIED, SAVED, SKIPPED, TOMBSTONE, Counts
from processor.sink.dead_letters import ROWS_MAX, place_of, refused_rows, source_records
from processor.sink.partitions import placed
from processor.sink.protocol import WRITERS, ForeignClaim, SinkTarget, produce_record
from processor.sink.record_cache import RecordCache
from processor.sink.task_rows import NO_TIMESTAMP, OUTPUT, SINK_PARTITION, TIMESTAMP_MS
from processor.sink.value_check import with_unreadable_refused
from processor.spark.worker_memory import keep_modules
from statehouse.contract.dead_letters import SourcePlace, SourceRecord, letter_headers

# Spark's driver would parse a text anew for each batch.
COUNTS_SCHEMA: Final = StructType(
    [
        StructField("sink_partition", IntegerType()),
        StructField("output", StringType()),
        StructField("kind", StringType()),
        StructField("records", LongType()),
    ]
)
_COUNTS_TYPE: Final = pa.schema(
    [
        pa.field("sink_partition", pa.int32()),
        pa.field("output", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("records", pa.int64()),
    ]
)

_THREADS_MAX: Final = 8


@dataclass(frozen=True)
class BatchWriter:
    """Writes a task's part of one batch; Spark calls it with the rows as Arrow batches.

    All rows of a sink partition are in one task. A task may have several partitions and writes each in its own
    transaction. A partition without rows takes no part in the batch, also when the batch runs again.
    """

    target: SinkTarget
    batch_id: int
    record_cache_bytes: int
    """This task's part of the record cache."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write, and yield counts."""
        cache = RecordCache(
            self.record_cache_bytes, [place for place, output in enumerate(self.target.outputs) if output.record_cache]
        )
        counts = [output.partition_count for output in self.target.outputs]
        values = [output.values for output in self.target.outputs]
        is_empty = True
        for batch in batches:
            records = pa.RecordBatch.from_struct_array(batch.column(0))
            readable = with_unreadable_refused(pa.Table.from_batches([records]), values)
            cache.put(placed(readable, counts))
            is_empty = False
        if is_empty:
            return
        # A restarted transaction needs its rows again, so keep them all until the commit.
        rows = cache.flush()
        partitions = sorted(pc.unique(rows[SINK_PARTITION]).to_pylist())
        shares = [rows.filter(pc.equal(rows[SINK_PARTITION], partition)) for partition in partitions]
        refused = [list(refused_rows(share)) for share in shares]
        places = {place for of_partition in refused for place in map(place_of, of_partition) if place is not None}
        sources = source_records(self.target.brokers, places, f"{self.target.application_id}-dead-letters")
        # Threads, because a transaction mostly waits for the broker.
        with ThreadPoolExecutor(min(len(partitions), _THREADS_MAX)) as pool:
            yield from pool.map(partial(self._write, cache, sources), partitions, shares, refused)
        keep_modules()

    def _write(
        self,
        cache: RecordCache,
        sources: Mapping[SourcePlace, SourceRecord],
        partition: int,
        rows: pa.Table,
        refused: Sequence[dict[str, Any]],
    ) -> pa.RecordBatch:
        counts: Counts = Counter()

        def produce(producer: Producer) -> None:
            counts.clear()
            for batch in rows.to_batches(ROWS_MAX):
                self._produce_records(producer, partition, batch, counts)
            for row in refused:
                place = place_of(row)
                self._produce_dead_letter(producer, partition, row, None if place is None else sources.get(place))
                counts["", str(row[REASON])] += 1

        writer = WRITERS.writer(self.target, partition)
        try:
            if writer.write(self.batch_id, produce):
                for place, output in enumerate(self.target.outputs):
                    if output.record_cache:
                        counts[output.name, SAVED] += cache.saved[partition, place]
                        counts[output.name, EARLY] += cache.early[partition, place]
            else:
                counts = Counter({("", SKIPPED): 1})
        except ForeignClaim:
            # Not a failure of the task: Spark would only run it again.
            counts = Counter({("", CLAIMED): 1})
        if writer.retries:
            counts["", RETRIED] = writer.retries
        outputs, kinds = ([name[place] for name in counts] for place in (0, 1))
        columns = [[partition] * len(counts), outputs, kinds, list(counts.values())]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _COUNTS_TYPE, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_COUNTS_TYPE)

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

    def _produce_dead_letter(
        self, producer: Producer, partition: int, row: dict[str, Any], record: SourceRecord | None
    ) -> None:
        origin = row[TOPIC], row[PARTITION], row[OFFSET]
        produce_record(
            producer,
            self.target.dead_letters_topic,
            partition % self.target.dead_letters_partition_count,
            key=row[KEY] if record is None else record.key,
            value=row[VALUE] if record is None else record.value,
            timestamp=_valid(row[TIMESTAMP_MS]),
            headers=letter_headers(self.target.query, row[REASON], row[DETAIL] or "", origin, record),
        )


def _valid(timestamp_ms: int | None) -> int:
    return max(timestamp_ms or NO_TIMESTAMP, NO_TIMESTAMP)
