"""The driver's part of the sink: has tasks write a micro-batch, then reports it in the commits topic.

No record passes through the driver; the tasks only send counts and ends. A report is written while Spark commits the
batch and plans the next one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Final, Protocol

import structlog
from pyspark.sql import DataFrame

from processor.sink.counts import CHANGELOG, CLAIMED, RETRIED, SKIPPED, TOMBSTONE, BatchReport, Counts
from processor.sink.protocol import ForeignClaim, SinkTarget
from processor.sink.record_cache_pool import RecordCachePool
from processor.spark.checkpoint import Offsets
from processor.spark.kafka_options import java_client_options
from processor.spark.task_classes import task_object

log = structlog.get_logger(__name__)

OnSinkBatch = Callable[[int, Counts, float], None]
"""Called after each batch: id, counts by output and kind (changelog, tombstone, skipped or a dead-letter reason), s."""

_RECORD_AT: Final = 1
"""Which column of `sink_frame` has the records."""
_SMALL_EVENTS: Final = 1000
_SMALL_PARTITIONS: Final = 8
_SHORT_S: Final = 1.0
"""After a longer batch the next isn't read by one task: the application's own code may be what takes so long."""


def is_quickly_read(before: Offsets, ends: Offsets) -> bool:
    """Whether one task reads the events between two batches' ends as fast as many: they are few, of few partitions.

    Not if a partition is new: where it begins is unknown.
    """
    if not ends.keys() <= before.keys():
        return False
    new = [end - before[partition] for partition, end in ends.items() if end > before[partition]]
    return len(new) <= _SMALL_PARTITIONS and sum(new) <= _SMALL_EVENTS


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

    @property
    def knows_ends(self) -> bool:
        """Whether it knows all ends behind a batch once it learns the ends of that batch's transactions."""
        ...

    def traceparent(self) -> str:
        """Return the one of the batch that is written now, empty if it has no span."""
        ...

    def publish(
        self,
        query_id: str,
        batch_id: int,
        source_ends: Offsets,
        *,
        changelog_ends: Offsets | None = None,
        traceparent: str = "",
    ) -> None:
        """Report it. `changelog_ends`: behind what its transactions wrote; None if that isn't known of all of them."""
        ...


class Draining(Exception):
    """A batch came after the request to stop; it will run at the next start."""


class _Reporter:
    """Writes reports on a thread of its own, in order; one at most is under way."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "batch-report")
        self._last: Future[None] | None = None

    def begin(self, report: Callable[[], None]) -> None:
        """Write a report once the one before is written; its failure is raised here."""
        self.settle()
        self._last = self._pool.submit(report)

    def settle(self, timeout_s: float | None = None) -> None:
        """Wait for the last report, and raise its failure, TimeoutError if it takes longer."""
        last = self._last
        if last is not None:
            last.result(timeout_s)
            self._last = None

    @property
    def is_idle(self) -> bool:
        """Whether none is under way."""
        return self._last is None or self._last.done()


class StoreSink:
    """Writes a query's micro-batches; Spark calls it with each one (`foreachBatch`), as `sink_frame` makes them."""

    def __init__(
        self,
        target: SinkTarget,
        checkpoint: QueryCheckpoint,
        commits: BatchReports,
        on_batch: OnSinkBatch,
        *,
        tasks: int,
        record_cache: RecordCachePool,
        is_row_by_row: bool = False,
    ) -> None:
        """Prepare. `is_row_by_row`: each row of the batches comes from one record of Kafka, without a shuffle."""
        self._target, self._checkpoint, self._commits, self._on_batch = target, checkpoint, commits, on_batch
        self._described = ""
        self._task: Any = None
        self._tasks, self._record_cache = min(target.partition_count, tasks), record_cache
        self._is_cached = any(output.record_cache for output in target.outputs)
        self._is_row_by_row = is_row_by_row
        self._ends: Offsets = {}
        self._took_s = 0.0
        self._has_reported = False
        """Whether the batch before was written and reported: nothing else has written into the changelogs since."""
        self._reporter = _Reporter()
        self._busy = threading.Lock()
        self._draining = threading.Event()
        self.failure: BaseException | None = None
        self.committed: int | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no batch is being written, and none reported."""
        return not self._busy.locked() and self._reporter.is_idle

    def drain(self, timeout_s: float) -> bool:
        """Start no further batch, and wait for the running one and its report; False if that took longer."""
        self._draining.set()
        until = time.monotonic() + timeout_s
        if not self._busy.acquire(timeout=timeout_s):
            return False
        self._busy.release()
        try:
            self._reporter.settle(max(0.0, until - time.monotonic()))
        except TimeoutError:
            return False
        except Exception as error:  # noqa: BLE001 - `failure` has it, and who drains the sink ends it
            log.info("report of the last batch not written", query=self._target.query, reason=str(error))
        return True

    def settle(self) -> None:
        """Wait for the report of the last batch.

        Raises:
            StatehouseError, KafkaException: as `publish` of the reports.

        """
        self._reporter.settle()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Commit a batch to the changelog, and begin its report; skips parts committed before.

        Raises:
            ForeignClaim: somebody else has claimed partitions; the batch isn't reported. Later ones may come.
            Draining: the sink takes no more batches.
            StatehouseError, KafkaException: the batch before couldn't be reported.

        """
        with self._busy:
            if self._draining.is_set():
                raise Draining(f"batch {batch_id} is left for the next start")
            try:
                self._commit(frame, batch_id)
            except ForeignClaim:
                raise
            except BaseException as error:
                # Spark wraps the error in its own text; the runner logs this one.
                self.failure = error
                raise

    def _write(self, frame: DataFrame, batch_id: int, cache_bytes: int, *, reads_too: bool) -> BatchReport:
        if self._task is None:
            self._task = task_object(frame.sparkSession, "statehouse.sink.Sink")
        reports: str = self._task.write(
            frame._jdf,  # noqa: SLF001 - the frame in the JVM has no public name
            _RECORD_AT,
            self._described,
            batch_id,
            self._tasks,
            reads_too,
            cache_bytes // self._tasks,
        )
        return BatchReport.of(reports)

    def _report(self, batch_id: int, source_ends: Offsets, written: BatchReport, *, is_next: bool) -> None:
        """Begin a batch's report. `is_next`: the one before was reported."""
        query_id, traceparent = self._target.query_id, self._commits.traceparent()
        # Only the topic knows the end of what an earlier attempt has written.
        ends = written.ends if is_next and not written.counts["", SKIPPED] else None
        # Ends that are asked for must not be those of the next batch.
        is_asked = ends is None or not self._commits.knows_ends

        def report() -> None:
            try:
                self._commits.publish(query_id, batch_id, source_ends, changelog_ends=ends, traceparent=traceparent)
            except BaseException as error:
                self.failure = error  # there may be no next batch that would meet it
                raise

        self._reporter.begin(report)
        if is_asked:
            # At a start, a batch that Spark has committed and no report tells of means that the changelog is lost, if
            # there is no report at all; else the last report may be one behind.
            self._reporter.settle()

    def _commit(self, frame: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        if not self._target.query_id:
            self._target = replace(self._target, query_id=self._checkpoint.query_id())
        self._described = self._described or described(self._target)
        source_ends = self._checkpoint.source_ends(batch_id)
        reads_too = self._is_row_by_row and self._took_s <= _SHORT_S and is_quickly_read(self._ends, source_ends)
        self._ends = source_ends
        has_reported, self._has_reported = self._has_reported, False
        with self._record_cache.lent() if self._is_cached else nullcontext(0) as cache_bytes:
            written = self._write(frame, batch_id, cache_bytes, reads_too=reads_too)
        counts = written.counts
        if claimed := counts["", CLAIMED]:
            raise ForeignClaim(f"{claimed} partitions of query {self._target.query} are claimed by somebody else")
        self._report(batch_id, source_ends, written, is_next=has_reported)
        self._has_reported = True
        self.committed = batch_id
        took_s = self._took_s = time.monotonic() - began
        self._on_batch(batch_id, counts, took_s)
        if written.unread:
            log.warning("dead letters without the bytes of their source records", dead_letters=written.unread)
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


def described(target: SinkTarget) -> str:
    """Return a target as the sink's task reads it.

    Raises:
        ConfigurationError: the file of credentials can't be read, or has characters that the client can't take.

    """
    return target.described(java_client_options(target.brokers))
