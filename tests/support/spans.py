"""Spans as tests look at them: kept in memory, or taken by a collector that speaks OTLP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import router.server
from statehouse.observability.tracing import Tracing

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"


def kept_in_memory() -> tuple[Tracing, InMemorySpanExporter]:
    """Return what makes spans, and where they are as soon as they end."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(provider), exporter


def of_router(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Have the routers of this process make spans; return where they are as soon as they end."""
    tracing, kept = kept_in_memory()
    monkeypatch.setattr(router.server, "tracing_for", lambda _component: tracing)
    return kept


def parent_of(span: ReadableSpan) -> str:
    """Return the id of the span above, empty if there is none."""
    return "" if span.parent is None else f"{span.parent.span_id:016x}"


def id_of(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


@dataclass(frozen=True, slots=True)
class TakenSpan:
    """A span that the collector has taken; ids in hexadecimal digits."""

    service: str
    name: str
    trace_id: str
    span_id: str
    above: str
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    has_failed: bool


class SpanCollector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans."""

    def __init__(self) -> None:
        self._spans: list[TakenSpan] = []
        self._lock = threading.Lock()

    def Export(  # noqa: N802 - as the service has it
        self,
        request: trace_service_pb2.ExportTraceServiceRequest,
        context: grpc.ServicerContext,  # noqa: ARG002 - as above
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        with self._lock:
            for resource in request.resource_spans:
                service = next(
                    each.value.string_value for each in resource.resource.attributes if each.key == "service.name"
                )
                self._spans += [_taken(service, span) for scope in resource.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    def of(self, trace_id: str) -> list[TakenSpan]:
        """Return a trace's spans so far."""
        with self._lock:
            return [span for span in self._spans if span.trace_id == trace_id]


@contextmanager
def collecting() -> Iterator[tuple[SpanCollector, str]]:
    """Run a collector; give it, and its endpoint."""
    collector, server = SpanCollector(), grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector, f"http://127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def _taken(service: str, span: Any) -> TakenSpan:
    values = {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}
    links = tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links)
    has_failed = span.status.code == Status.STATUS_CODE_ERROR
    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
    return TakenSpan(service, span.name, *ids, values, links, has_failed)
