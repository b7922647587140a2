"""Spans of lookups, sent as OpenTelemetry's protocol has them.

A lookup has spans if its caller's trace is sampled: the program that begins a trace decides (`traceparent`).
Without an endpoint, none of OpenTelemetry's packages is imported.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import structlog

from statehouse.runtime.trace_context import TraceContext

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, SpanContext, Tracer

log = structlog.get_logger(__name__)

Attributes = Mapping[str, str | int | float | bool]
_CLOSE_MAX_S: Final = 3.0
"""A collector that is away would hold up a process' end for half a minute."""
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class OpenSpan:
    """A span that has begun. It is to be ended once."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    @property
    def context(self) -> TraceContext:
        """What spans below this one begin with."""
        own = self._span.get_span_context()
        return TraceContext(f"{own.trace_id:032x}", f"{own.span_id:016x}", own.trace_flags.sampled)

    def set(self, attributes: Attributes) -> None:
        """Set attributes."""
        self._span.set_attributes(dict(attributes))

    def link(self, to: TraceContext, attributes: Attributes) -> None:
        """Link it to a span of another trace."""
        self._span.add_link(_context_of(to), dict(attributes))

    def end(self, failure: str = "", ended_ns: int | None = None) -> None:
        """End it. `failure`: why it went wrong; empty if it went well. `ended_ns`: when, epoch nanoseconds."""
        if failure:
            from opentelemetry.trace import StatusCode  # noqa: PLC0415 - only who makes spans needs it

            self._span.set_status(StatusCode.ERROR, failure)
        self._span.end(ended_ns)


class Tracing:
    """Makes spans of one process, and sends them in the background. Safe from any thread."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer: Tracer = provider.get_tracer("statehouse")

    def begin(
        self,
        name: str,
        above: TraceContext | None,
        *,
        kind: str = "",
        attributes: Attributes | None = None,
        started_ns: int | None = None,
    ) -> OpenSpan:
        """Begin a span below another one, or a trace of its own. `kind`: server, client or, if empty, internal."""
        from opentelemetry import trace  # noqa: PLC0415 - as above

        parent = None if above is None else trace.set_span_in_context(trace.NonRecordingSpan(_context_of(above)))
        span = self._tracer.start_span(
            name,
            context=parent,
            kind=trace.SpanKind[kind.upper() or "INTERNAL"],
            attributes=dict(attributes or {}),
            start_time=started_ns,
        )
        return OpenSpan(span)

    def close(self) -> None:
        """Send what is left, within a few seconds, and make no more spans."""
        # It has no bound of its own that we can set: each batch waits for the collector.
        ending = threading.Thread(target=self._provider.shutdown, name="tracing-end", daemon=True)
        ending.start()
        ending.join(_CLOSE_MAX_S)


def _context_of(context: TraceContext) -> SpanContext:
    from opentelemetry import trace  # noqa: PLC0415 - as above

    flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if context.is_sampled else trace.TraceFlags.DEFAULT)
    return trace.SpanContext(int(context.trace_id, 16), int(context.span_id, 16), is_remote=True, trace_flags=flags)


def tracing_for(component: str, **about: str) -> Tracing | None:
    """Return what makes spans for a process, if OpenTelemetry's own variables name a collector; else None.

    `component`: "router", "node" or "processor". `about`: further attributes of the process.
    """
    is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if is_disabled or not any(os.environ.get(name) for name in _ENDPOINTS):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - as above
    except ImportError:
        log.warning(
            "OTEL_… variables ask for spans, and OpenTelemetry isn't installed: pip install 'statehouse[tracing]'"
        )
        return None
    log.info("spans are sent, as the OTEL_… variables say")
    return Tracing(provider_of(OTLPSpanExporter(), component, about))


def provider_of(exporter: SpanExporter, component: str, about: Mapping[str, str]) -> TracerProvider:
    """Return a provider whose spans go to an exporter, in the background and from a queue with a bound."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415 - as above
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {SERVICE_NAME: f"statehouse-{component}"}
    provider = TracerProvider(resource=Resource.create({**named, **about}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
