"""The driver's part of the sink: sends a micro-batch to the tasks, then records it in the commits topic.

No record passes through the driver; the tasks only send counts.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import structlog
from pyspark import SparkContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.checkpoint import Offsets
from processor.rows import DETAIL, KEY, OFFSET, PARTITION, REASON, TIMESTAMP, TOPIC, VALUE
from processor.sink.batch_writer import COUNTS_SCHEMA, BatchWriter, placement_hashes
from processor.sink.counts import CHANGELOG, RETRIED, SKIPPED, TOMBSTONE, Counts
from processor.sink.layouts import TOPIC_OUTPUT, FrameLayout
from processor.sink.protocol import SinkTarget
from processor.sink.record_cache_pool import RecordCachePool
from processor.sink.task_rows import OUTPUT, SINK_PARTITION, TASK_COLUMNS, TIMESTAMP_MS

log = structlog.get_logger(__name__)

OnSinkBatch = Callable[[int, Counts, float], None]
"""Called after each batch: id, counts by output and kind (changelog, tombstone, skipped or a dead-letter reason), s."""

_POOL = "STATEHOUSE_WORKER_POOL"
# The batches of each query come in a separate thread, and all threads wrap Python functions with the same environment.
_PLANNING = threading.Lock()
_SUFFIX: Final = "_suffix"
_HASH: Final = "_hash"
_RECORD: Final = "_record"
_OPTIONAL_TYPES = {TOPIC: "string", PARTITION: "int", OFFSET: "bigint", REASON: "string", DETAIL: "string"}


class QueryCheckpoint(Protocol):
    """What the sink asks about the query that its batches come from: its checkpoint knows."""

    def query_id(self) -> str:
        """Return the id that the batch ids belong to."""
        ...

    def source_ends(self, batch_id: int) -> Offsets:
        """Return the source offsets where a batch ends."""
        ...


class BatchReports(Protocol):
    """Where the sink reports that a batch is done."""

    def publish(self, query_id: str, batch_id: int, source_ends: Offsets) -> None:
        """Report it."""
        ...


class Draining(Exception):
    """A batch came after the request to stop; it will run at the next start."""


@contextmanager
def _own_workers(context: SparkContext) -> Iterator[None]:
    """Give Python functions that are wrapped inside the block their own worker processes.

    Spark hands tasks to idle workers in turn. If the sink shared workers with the state operators, each batch would
    write a partition from another process, and its new producer would fence the old one; to initialise a producer
    takes as long as the rest of a batch's writing. Spark keeps one pool of workers per environment.
    """
    context.environment[_POOL] = "sink"
    try:
        yield
    finally:
        context.environment.pop(_POOL, None)


@dataclass(frozen=True, slots=True)
class OutputRows:
    """How an output selects a query's rows and makes records of them."""

    partition_count: int
    layout: FrameLayout = field(default_factory=FrameLayout)
    where: Column | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)


def sink_rows(frame: DataFrame, outputs: Sequence[OutputRows]) -> DataFrame:
    """Return a query's frame in the form that tasks take: a row per record, with its output and sink partition.

    The key of a record, without window or session, selects the partition; dead letters and records without a key go
    to the number of their source partition, modulo the count. Rows that can't be records become dead letters.
    """
    placed_by = F.arrow_udf(placement_hashes, "int")
    records = _records(frame, outputs).withColumn(_HASH, placed_by(F.when(F.col(REASON).isNull(), F.col(KEY))))
    counts = [output.partition_count for output in outputs]
    of_output = F.array(*map(F.lit, counts))[F.col(OUTPUT)]
    count = F.when(F.col(REASON).isNotNull(), F.lit(max(counts))).otherwise(of_output)
    sink_partition = F.coalesce(F.col(_HASH), F.col(PARTITION), F.lit(0)) % count
    record_key = F.when(F.col(REASON).isNotNull(), F.col(KEY)).otherwise(F.concat(KEY, _SUFFIX))
    return records.withColumns({SINK_PARTITION: sink_partition, KEY: record_key}).select(*TASK_COLUMNS)


def _records(frame: DataFrame, outputs: Sequence[OutputRows]) -> DataFrame:
    """Make all records of a row in one pass, so that the operators of a query don't run once per output."""
    of_outputs = [_record(frame.columns, place, output) for place, output in enumerate(outputs)]
    can_be_refused = REASON in frame.columns
    if len(outputs) == 1 and outputs[0].where is None and not (outputs[0].columns and can_be_refused):
        return frame.select(*of_outputs[0])
    refused = F.col(REASON).isNotNull() if can_be_refused else F.lit(False)
    dead_letter = _record(frame.columns, 0, OutputRows(1, FrameLayout(TOPIC_OUTPUT)))
    made = [F.when(refused, F.struct(*dead_letter))]
    for output, columns in zip(outputs, of_outputs, strict=True):
        wanted = ~refused if output.where is None else ~refused & output.where
        made.append(F.when(wanted, F.struct(*columns)))
    exploded = frame.select(F.explode(F.array_compact(F.array(*made))).alias(_RECORD))
    return exploded.select(f"{_RECORD}.*")


def _record(have: Sequence[str], place: int, output: OutputRows) -> list[Column]:
    """Return the columns of an output's record, without its partition."""
    source = {name: F.col(name) for name in have} | dict(output.columns)
    columns: dict[str, Column] = {
        name: source[name].cast(kind) if name in source else F.lit(None).cast(kind)
        for name, kind in _OPTIONAL_TYPES.items()
    }
    columns |= {OUTPUT: F.lit(place)} | {name: source[name].cast("binary") for name in (KEY, VALUE)}
    stamped = source[TIMESTAMP].cast("timestamp") if TIMESTAMP in source else F.lit(None).cast("timestamp")
    columns[TIMESTAMP_MS] = F.unix_millis(stamped)
    reason, detail = columns[REASON], columns[DETAIL]
    for refusal in output.layout.refusals(source):
        is_first = reason.isNull() & refusal.condition
        detail = F.when(is_first, refusal.detail).otherwise(detail)
        reason = F.when(is_first, refusal.reason.value).otherwise(reason)
    columns |= {REASON: reason, DETAIL: detail}
    suffix = output.layout.suffix(source)
    columns[_SUFFIX] = F.lit(b"") if suffix is None else suffix
    return [column.alias(name) for name, column in columns.items()]


class StoreSink:
    """Writes a query's micro-batches; Spark calls it with each one (`foreachBatch`)."""

    def __init__(
        self,
        target: SinkTarget,
        checkpoint: QueryCheckpoint,
        commits: BatchReports,
        on_batch: OnSinkBatch,
        outputs: Sequence[OutputRows],
        *,
        tasks: int,
        record_cache: RecordCachePool,
    ) -> None:
        self._target, self._checkpoint, self._commits, self._on_batch = target, checkpoint, commits, on_batch
        self._outputs, self._tasks, self._record_cache = outputs, min(target.partition_count, tasks), record_cache
        self._is_cached = any(output.record_cache for output in target.outputs)
        self._busy = threading.Lock()
        self._draining = threading.Event()
        self.failure: BaseException | None = None
        self.committed: int | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no batch is being written."""
        return not self._busy.locked()

    def drain(self, timeout_s: float) -> bool:
        """Start no further batch, and wait for the running one; False if it took longer."""
        self._draining.set()
        if not self._busy.acquire(timeout=timeout_s):
            return False
        self._busy.release()
        return True

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Commit a batch to the changelog, then record it in the commits topic; skips parts committed before."""
        with self._busy:
            if self._draining.is_set():
                raise Draining(f"batch {batch_id} is left for the next start")
            try:
                self._commit(frame, batch_id)
            except BaseException as error:
                # Spark wraps the error in its own text; the runner logs this one.
                self.failure = error
                raise

    def _write(self, frame: DataFrame, task: BatchWriter) -> Counts:
        with _PLANNING:
            rows = sink_rows(frame, self._outputs).repartitionById(self._tasks, SINK_PARTITION)
            with _own_workers(frame.sparkSession.sparkContext):
                written = rows.mapInArrow(task, COUNTS_SCHEMA)
        counts: Counts = Counter()
        for _, output, kind, records in written.collect():
            counts[output, kind] += records
        return counts

    def _commit(self, frame: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        if not self._target.query_id:
            self._target = replace(self._target, query_id=self._checkpoint.query_id())
        with self._record_cache.lent() if self._is_cached else nullcontext(0) as cache_bytes:
            counts = self._write(frame, BatchWriter(self._target, batch_id, cache_bytes // self._tasks))
        source_ends = self._checkpoint.source_ends(batch_id)
        self._commits.publish(self._target.query_id, batch_id, source_ends)
        self.committed = batch_id
        took_s = time.monotonic() - began
        self._on_batch(batch_id, counts, took_s)
        records = sum(number for (_, kind), number in counts.items() if kind in (CHANGELOG, TOMBSTONE))
        of_query = {kind: number for (name, kind), number in counts.items() if not name}
        refused = {kind: number for kind, number in of_query.items() if kind not in (SKIPPED, RETRIED)}
        report = log.warning if refused else log.info
        report(
            "batch committed",
            query=self._target.query,
            batch_id=batch_id,
            records=records,
            dead_letters=refused,
            skipped_partitions=counts["", SKIPPED],
            took_ms=round(took_s * 1000),
        )
