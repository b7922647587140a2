"""A client's spans: below the program's, and told to whom it asks."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import statehouse.client.spans
from statehouse.client.spans import LookupSpans
from statehouse.errors import LookupFailure, Reason
from statehouse.runtime.trace_context import TraceContext
from statehouse.v1 import query_service_pb2
from tests.support.spans import id_of, parent_of


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> TracerProvider:
    made = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(statehouse.client.spans.trace, "get_tracer", made.get_tracer)
    return made


@pytest.fixture
def kept(provider: TracerProvider) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


def test_a_read_is_below_the_programs_span(provider: TracerProvider, kept: InMemorySpanExporter):
    request = query_service_pb2.FetchWindowsRequest(store="s")
    with provider.get_tracer("program").start_as_current_span("work"), LookupSpans().read(request):
        pass
    read, work = kept.get_finished_spans()
    assert (read.name, parent_of(read)) == ("statehouse FetchWindows", id_of(work))
    context = TraceContext.parse(request.forwarding.traceparent)
    assert context is not None
    assert context.span_id == id_of(read)


def test_lookups_of_a_batch_have_one_span(kept: InMemorySpanExporter, provider: TracerProvider):
    requests = [query_service_pb2.GetRequest(store=name) for name in ("b", "a", "b")]
    with LookupSpans().batch(requests):
        pass
    (span,) = kept.get_finished_spans()
    assert (span.attributes["statehouse.store"], span.attributes["statehouse.lookups"]) == ("a,b", 3)
    assert len({request.forwarding.traceparent for request in requests}) == 1


def test_a_failure_fails_the_span(kept: InMemorySpanExporter, provider: TracerProvider):
    request = query_service_pb2.GetRequest(store="s")
    with pytest.raises(LookupFailure), LookupSpans().read(request):
        raise LookupFailure(Reason.NO_REPLICA_AVAILABLE, "no")
    (span,) = kept.get_finished_spans()
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.attributes["statehouse.outcome"] == "NO_REPLICA_AVAILABLE"


def test_a_trace_that_is_not_kept_is_not_told(monkeypatch: pytest.MonkeyPatch):
    off = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    monkeypatch.setattr(statehouse.client.spans.trace, "get_tracer", off.get_tracer)
    request = query_service_pb2.GetRequest(store="s")
    with LookupSpans().read(request):
        pass
    assert not request.HasField("forwarding")
