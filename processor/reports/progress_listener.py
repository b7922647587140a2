"""Receives Spark's progress reports of the application's queries, for metrics, and for the log during a backlog."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

import structlog
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from processor.reports.metrics import ProcessorMetrics
from processor.reports.progress import Backlog, BacklogReports, BacklogStatus, BatchProgress
from processor.reports.reasons import most_frequent
from statehouse.control.v1 import commits_pb2

log = structlog.get_logger(__name__)

LOG_INTERVAL_S: Final = 10.0
OnBatchProgress = Callable[[BatchProgress], None]


class QueryProgressListener:
    """Records the progress of the named queries; ignores all other queries of the session.

    Spark calls it on a separate thread after the batch, and doesn't wait for it.
    """

    def __init__(
        self,
        queries: Collection[str],
        metrics: ProcessorMetrics,
        interval_s: float = LOG_INTERVAL_S,
        on_batch: OnBatchProgress | None = None,
    ) -> None:
        """Listen for these queries; log a backlog at most every `interval_s` seconds; call `on_batch` with each."""
        self._metrics, self._on_batch = metrics, on_batch
        self._backlogs = {query: Backlog() for query in queries}
        self._reports = {query: BacklogReports(interval_s) for query in queries}
        self._latest: dict[str, tuple[BatchProgress, BacklogStatus]] = {}
        self._found_nothing: set[str] = set()

    def take(self, text: str) -> None:
        """Record a progress report, given as Spark's JSON."""
        try:
            batch = BatchProgress.parse(text)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("progress report in an unknown format skipped", error=repr(error))
            return
        backlog = self._backlogs.get(batch.query)
        if backlog is None:
            return
        status = backlog.take(batch)
        self._latest[batch.query] = batch, status
        self._metrics.progress(batch)
        if self._on_batch is not None:
            self._on_batch(batch)
        if self._reports[batch.query].is_due(batch.ended_at_s, batch.left):
            _tell(batch.query, status)

    def take_idle(self, query_id: str) -> None:
        """Take that a query of the session, by Spark's id of it, has asked its sources and found nothing to read."""
        self._found_nothing.add(query_id)

    def has_found_nothing(self, query_id: str) -> bool:
        """Whether a query has ever found nothing to read."""
        return query_id in self._found_nothing

    def figures(self, query: str) -> commits_pb2.QueryFigures | None:
        """Return a query's figures for its commit records; None before its first completed batch."""
        if query not in self._latest:
            return None
        batch, backlog = self._latest[query]
        reasons = self._metrics.dead_letters[query].copy()  # another thread counts
        return commits_pb2.QueryFigures(
            input_rows_per_second=batch.input_rows_per_s,
            backlog=backlog.records_left,
            backlog_eta_ms=None if backlog.eta_s is None else round(backlog.eta_s * 1000),
            watermark_ms=batch.watermark_ms,
            state_rows=batch.state_rows,
            state_bytes=batch.state_bytes,
            dead_letters=reasons.total(),
            batch_ms=round(batch.duration_s * 1000),
            dead_letters_by_reason=most_frequent(reasons),
            late_rows=self._metrics.late_rows[query],
        )


def _tell(query: str, status: BacklogStatus) -> None:
    if status.records_left == 0:
        log.info("backlog worked off", query=query)
        return
    log.info(
        "working off a backlog",
        query=query,
        records_left=status.records_left,
        records_per_s=round(status.records_per_s),
        eta_s=None if status.eta_s is None else round(status.eta_s),
    )


class Subscription:
    """Connects a listener to the queries of a session, until `close()`.

    Spark's `StreamingQueryListener` builds Python objects field by field, with a call into the JVM for each: half a
    second per batch here, with one state operator. This class needs two calls.
    """

    def __init__(self, session: SparkSession, listener: QueryProgressListener) -> None:
        """Start to listen."""
        gateway: Any = SparkContext._gateway  # noqa: SLF001 - the gateway to the JVM has no public name
        ensure_callback_server_started(gateway)
        streaming = gateway.jvm.org.apache.spark.sql.streaming
        self._streams: Any = session._jsparkSession.streams()  # noqa: SLF001 - same
        self._listener: Any = streaming.PythonStreamingQueryListenerWrapper(_JavaListener(listener))
        self._streams.addListener(self._listener)

    def close(self) -> None:
        """Stop listening."""
        self._streams.removeListener(self._listener)


class _JavaListener:
    """The object that the JVM calls; Java defines the names."""

    def __init__(self, listener: QueryProgressListener) -> None:
        self._listener = listener

    def onQueryProgress(self, event: Any) -> None:  # noqa: ANN401, N802 - an object of the JVM
        self._listener.take(str(event.progress().json()))

    def onQueryStarted(self, _event: Any) -> None:  # noqa: ANN401, N802 - as above
        """Nothing to do."""

    def onQueryIdle(self, event: Any) -> None:  # noqa: ANN401, N802 - as above
        self._listener.take_idle(str(event.id()))

    def onQueryTerminated(self, _event: Any) -> None:  # noqa: ANN401, N802 - as above
        """Nothing to do."""

    class Java:
        """Names the Java interface for the gateway."""

        implements: Final = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]
