"""Hears from Spark of each batch of the application's queries: for the metrics, and the log while a backlog lasts."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import structlog
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from processor.metrics import ProcessorMetrics
from processor.progress import Backlog, BacklogReports, BacklogStatus, BatchProgress
from statehouse.control.v1 import commits_pb2

log = structlog.get_logger(__name__)

LOG_INTERVAL_S: Final = 10.0


class ProgressListener:
    """Takes the progress of queries, by their names. Those it isn't told of are somebody else's.

    Spark calls it on a thread of its own, after the batch: nothing waits for it.
    """

    def __init__(self, queries: Collection[str], metrics: ProcessorMetrics, interval_s: float = LOG_INTERVAL_S) -> None:
        """Know the queries; `interval_s`: how often the log is told of a backlog."""
        self._metrics = metrics
        self._backlogs = {query: Backlog() for query in queries}
        self._reports = {query: BacklogReports(interval_s) for query in queries}
        self._latest: dict[str, tuple[BatchProgress, BacklogStatus]] = {}

    def take(self, text: str) -> None:
        """Take a progress, as Spark's JSON."""
        try:
            batch = BatchProgress.parse(text)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("progress of another form than this Spark's", error=repr(error))
            return
        backlog = self._backlogs.get(batch.query)
        if backlog is None:
            return
        status = backlog.take(batch)
        self._latest[batch.query] = batch, status
        self._metrics.progress(batch)
        if self._reports[batch.query].is_due(batch.ended_at_s, batch.left):
            _tell(batch.query, status)

    def figures(self, query: str) -> commits_pb2.QueryFigures | None:
        """Return how a query does, for its commit records; None until a batch is completed."""
        if query not in self._latest:
            return None
        batch, backlog = self._latest[query]
        return commits_pb2.QueryFigures(
            input_rows_per_second=batch.input_rows_per_s,
            backlog=backlog.records_left,
            backlog_eta_ms=None if backlog.eta_s is None else round(backlog.eta_s * 1000),
            watermark_ms=batch.watermark_ms,
            state_rows=batch.state_rows,
            state_bytes=batch.state_bytes,
            dead_letters=self._metrics.dead_letters[query],
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
    """A listener that a session's queries report to, until `close()`.

    `StreamingQueryListener` would do, but its events are made of Python objects field by field, each a call into the
    JVM: half a second a batch here, with one state operator. This takes two calls.
    """

    def __init__(self, session: SparkSession, listener: ProgressListener) -> None:
        """Begin to listen."""
        gateway: Any = SparkContext._gateway  # noqa: SLF001 - the gateway to the JVM has no public name
        ensure_callback_server_started(gateway)
        streaming = gateway.jvm.org.apache.spark.sql.streaming
        self._streams: Any = session._jsparkSession.streams()  # noqa: SLF001 - same
        self._listener: Any = streaming.PythonStreamingQueryListenerWrapper(_JavaListener(listener))
        self._streams.addListener(self._listener)

    def close(self) -> None:
        """Listen no longer."""
        self._streams.removeListener(self._listener)


class _JavaListener:
    """What the JVM calls; the names are Java's."""

    def __init__(self, listener: ProgressListener) -> None:
        self._listener = listener

    def onQueryProgress(self, event: Any) -> None:  # noqa: ANN401, N802 - an object of the JVM
        self._listener.take(str(event.progress().json()))

    def onQueryStarted(self, _event: Any) -> None:  # noqa: ANN401, N802 - as above
        """Nothing to do."""

    def onQueryIdle(self, _event: Any) -> None:  # noqa: ANN401, N802 - as above
        """Nothing to do."""

    def onQueryTerminated(self, _event: Any) -> None:  # noqa: ANN401, N802 - as above
        """Nothing to do."""

    class Java:
        """The interface, for the gateway."""

        implements: Final = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]
