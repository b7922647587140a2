"""The driver's part of the sink: sends a micro-batch to the tasks, then says in the commits topic that it is done.

No record passes through the driver; tasks send counts.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import structlog
from pyspark import SparkContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.checkpoint import CheckpointReader
from processor.commits import CommitsPublisher
from processor.rows import DETAIL, KEY, OFFSET, PARTITION, REASON, TIMESTAMP, TOPIC, VALUE, DeadLetterReason
from processor.sink.layouts import Layout, Refusal
from processor.sink.protocol import SinkTarget
from processor.sink.tasks import (
    CHANGELOG,
    COUNTS_SCHEMA,
    SINK_PARTITION,
    SKIPPED,
    TASK_COLUMNS,
    TIMESTAMP_MS,
    TOMBSTONE,
    SinkTask,
    changelog_partitions,
)

log = structlog.get_logger(__name__)

OnBatch = Callable[[int, Counter[str], float], None]
"""Told of each batch: id, counts by kind (changelog, tombstone, skipped, or a dead letter's reason), seconds."""

_POOL = "STATEHOUSE_WORKER_POOL"
# Each store's batches come in a thread of its own, and all wrap Python functions with the one environment.
_PLANNING = threading.Lock()
_PLAIN: Final = Layout()
_SUFFIX: Final = "_suffix"
_OPTIONAL_TYPES = {TOPIC: "string", PARTITION: "int", OFFSET: "bigint", REASON: "string", DETAIL: "string"}


class Draining(Exception):
    """A batch came after the stop was asked for; it will run at the next start."""


@contextmanager
def _own_workers(context: SparkContext) -> Iterator[None]:
    """Give the Python functions wrapped meanwhile worker processes of their own.

    Spark hands tasks to idle workers in turn. Among the state operators' workers a partition's producer would be in
    another process each time, fenced by its successor, and initialising one takes as long as the rest of a batch's
    writing. Workers are pooled by their environment.
    """
    context.environment[_POOL] = "sink"
    try:
        yield
    finally:
        context.environment.pop(_POOL, None)


def sink_rows(frame: DataFrame, partition_count: int, layout: Layout = _PLAIN) -> DataFrame:
    """Return a store's frame as the tasks take it: record keys, and each row with its sink partition.

    A record belongs to the changelog partition of its key without window or session; a dead letter to its source
    partition's number, modulo. Rows that can't be records become dead letters.
    """
    have = frame.columns
    columns: dict[str, Column] = {
        name: F.col(name).cast(kind) if name in have else F.lit(None).cast(kind)
        for name, kind in _OPTIONAL_TYPES.items()
    }
    columns |= {name: F.col(name).cast("binary") for name in (KEY, VALUE)}
    stamped = F.unix_millis(F.col(TIMESTAMP).cast("timestamp")) if TIMESTAMP in have else F.lit(None).cast("bigint")
    columns[TIMESTAMP_MS] = stamped
    null_key = Refusal(F.col(KEY).isNull(), DeadLetterReason.NULL_KEY, "a store's row without a key")
    reason, detail = columns[REASON], columns[DETAIL]
    for refusal in (null_key, *layout.refusals(have)):
        is_first = reason.isNull() & refusal.condition
        detail = F.when(is_first, refusal.detail).otherwise(detail)
        reason = F.when(is_first, refusal.reason.value).otherwise(reason)
    columns |= {REASON: reason, DETAIL: detail}
    suffix = layout.suffix(have)
    columns[_SUFFIX] = F.lit(b"") if suffix is None else suffix
    rows = frame.select(*(column.alias(name) for name, column in columns.items()))
    place = F.arrow_udf(lambda keys: changelog_partitions(keys, partition_count), "int")
    refused = F.col(REASON).isNotNull()
    placed = rows.withColumn(SINK_PARTITION, place(F.when(~refused, F.col(KEY))))
    of_dead_letter = F.coalesce(F.col(PARTITION), F.lit(0)) % partition_count
    sink_partition = F.when(refused, of_dead_letter).otherwise(F.col(SINK_PARTITION))
    record_key = F.when(refused, F.col(KEY)).otherwise(F.concat(KEY, _SUFFIX))
    return placed.withColumns({SINK_PARTITION: sink_partition, KEY: record_key}).select(*TASK_COLUMNS)


class StoreSink:
    """What Spark calls with each micro-batch of a store's query (`foreachBatch`)."""

    def __init__(
        self,
        target: SinkTarget,
        checkpoint: CheckpointReader,
        commits: CommitsPublisher,
        on_batch: OnBatch,
        *,
        layout: Layout = _PLAIN,
        tasks: int,
    ) -> None:
        self._target, self._checkpoint, self._commits, self._on_batch = target, checkpoint, commits, on_batch
        self._layout, self._tasks = layout, tasks
        self._busy = threading.Lock()
        self._draining = threading.Event()
        self.failure: BaseException | None = None
        self.committed: int | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no batch is being written."""
        return not self._busy.locked()

    def drain(self, timeout_s: float) -> bool:
        """Let no further batch begin, and wait for the one under way; False if it took longer."""
        self._draining.set()
        if not self._busy.acquire(timeout=timeout_s):
            return False
        self._busy.release()
        return True

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Commit a batch in the changelog, then in the commits topic; skips what was committed before."""
        with self._busy:
            if self._draining.is_set():
                raise Draining(f"batch {batch_id} is left for the next start")
            try:
                self._commit(frame, batch_id)
            except BaseException as error:
                # Spark wraps it in a text of its own; the runner tells people this one.
                self.failure = error
                raise

    def _commit(self, frame: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        if not self._target.query_id:
            self._target = replace(self._target, query_id=self._checkpoint.query_id())
        count = self._target.partition_count
        task = SinkTask(self._target, batch_id)
        with _PLANNING:
            rows = sink_rows(frame, count, self._layout).repartitionById(min(count, self._tasks), SINK_PARTITION)
            with _own_workers(frame.sparkSession.sparkContext):
                written = rows.mapInArrow(task, COUNTS_SCHEMA)
        counts: Counter[str] = Counter()
        for _, kind, records in written.collect():
            counts[kind] += records
        source_ends = self._checkpoint.source_ends(batch_id)
        self._commits.publish(self._target.query_id, batch_id, source_ends)
        self.committed = batch_id
        took_s = time.monotonic() - began
        self._on_batch(batch_id, counts, took_s)
        records = counts[CHANGELOG] + counts[TOMBSTONE]
        refused = {kind: number for kind, number in counts.items() if kind not in (CHANGELOG, TOMBSTONE, SKIPPED)}
        report = log.warning if refused else log.info
        report(
            "batch committed",
            store=self._target.store,
            batch_id=batch_id,
            records=records,
            dead_letters=refused,
            skipped_partitions=counts[SKIPPED],
            took_ms=round(took_s * 1000),
        )
