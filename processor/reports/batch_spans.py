"""A span of each micro-batch of a query, for lookups to link to: the record in the commits topic says which it is."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame

from statehouse.observability.tracing import OpenSpan, Tracing

WriteBatch = Callable[[DataFrame, int], None]


class QueryBatchSpans:
    """Makes the spans of one query's batches. Without `tracing` there are none."""

    def __init__(self, tracing: Tracing | None, application_id: str, query: str) -> None:
        self._tracing, self._application_id, self._query = tracing, application_id, query
        self._open: OpenSpan | None = None

    def around(self, write: WriteBatch) -> WriteBatch:
        """Return a function that writes a batch, within a span of its own. Spark calls it with one after the other."""
        tracing = self._tracing
        if tracing is None:
            return write

        def traced(frame: DataFrame, batch_id: int) -> None:
            about: dict[str, str | int | float | bool] = {
                "statehouse.application_id": self._application_id,
                "statehouse.query": self._query,
                "statehouse.batch_id": batch_id,
            }
            span = self._open = tracing.begin("batch", None, attributes=about)
            failure = ""
            try:
                write(frame, batch_id)
            except BaseException as error:
                failure = type(error).__name__
                raise
            finally:
                self._open = None
                span.end(failure)

        return traced

    def traceparent(self) -> str:
        """Return the present batch's, empty if there is none."""
        return "" if self._open is None else str(self._open.context)
