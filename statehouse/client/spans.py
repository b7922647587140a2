"""Spans of a program's lookups, by the program's own OpenTelemetry. Imported only by clients that make some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry import trace

from statehouse.client.answers import Answer
from statehouse.errors import LookupFailure
from statehouse.runtime.trace_context import TraceContext
from statehouse.v1 import query_service_pb2

_SCOPE: Final = "statehouse"


class LookupSpans:
    """Makes a span of each read of single keys, below the program's current one, and tells nodes and routers of it."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer(_SCOPE)

    @contextmanager
    def read(self, request: Any) -> Iterator[trace.Span]:  # noqa: ANN401 - any that is about one key
        """Make the span of a request about one key, which gets its traceparent."""
        method = type(request).__name__.removesuffix("Request")
        with self._open(method, request.store, 1) as (span, traceparent):
            if traceparent:
                request.forwarding.traceparent = traceparent
            yield span

    @contextmanager
    def batch(self, requests: Sequence[query_service_pb2.GetRequest]) -> Iterator[trace.Span]:
        """Make one span of several lookups, which get its traceparent."""
        stores = ",".join(sorted({request.store for request in requests}))
        with self._open("BatchGet", stores, len(requests)) as (span, traceparent):
            for request in requests if traceparent else ():
                request.forwarding.traceparent = traceparent
            yield span

    @contextmanager
    def _open(self, method: str, store: str, lookups: int) -> Iterator[tuple[trace.Span, str]]:
        about: dict[str, str | int] = {"statehouse.store": store, "statehouse.lookups": lookups}
        with self._tracer.start_as_current_span(
            f"statehouse {method}", kind=trace.SpanKind.CLIENT, attributes=about, record_exception=False
        ) as span:
            own = span.get_span_context()
            context = TraceContext(f"{own.trace_id:032x}", f"{own.span_id:016x}", own.trace_flags.sampled)
            try:
                yield span, str(context) if own.is_valid and context.is_sampled else ""
            except LookupFailure as failure:
                span.set_attribute("statehouse.outcome", failure.reason.name)
                raise

    @staticmethod
    def note(span: trace.Span, answer: Answer) -> None:
        """Note who answered."""
        span.set_attribute("statehouse.outcome", "OK")
        span.set_attribute("statehouse.node", answer.host.instance_id)
        span.set_attribute("statehouse.role", answer.role)
