"""When spans are made, and that nothing of OpenTelemetry is imported when they aren't."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from statehouse.observability import tracing as tracing_module
from statehouse.observability.tracing import Tracing, provider_of, tracing_for
from statehouse.rpc.traced import caller_of
from statehouse.runtime.trace_context import TraceContext
from tests.support.spans import CALLER, TRACE, TRACEPARENT, id_of, kept_in_memory, parent_of


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    return None


def test_by_default_no_spans_are_made():
    assert tracing_for("router") is None


def test_variables_of_opentelemetry_ask_for_spans(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
    made = tracing_for("router")
    assert made is not None
    made.close()
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert tracing_for("router") is None


def test_a_missing_package_ends_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
    assert tracing_for("router") is None, "variables may be set for all programs of a machine"


@pytest.mark.feature("traces-client-over")
def test_without_spans_nothing_of_opentelemetry_is_imported():
    """Not by routers, nodes, processors or clients: it takes a tenth of a second, and memory."""
    program = (
        "import sys, router.server, query_service.node, processor.ownership.process, statehouse.client;"
        "from statehouse.observability.tracing import tracing_for;"
        "assert tracing_for('router') is None;"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_spans_are_below_their_callers_and_linked():
    tracing, kept = kept_in_memory()
    above = TraceContext.parse(TRACEPARENT)
    span = tracing.begin("outer", above, kind="server", attributes={"a": 1})
    inner = tracing.begin("inner", span.context, kind="client")
    inner.end("NO_REPLICA_AVAILABLE")
    span.link(TraceContext("1" * 32, "2" * 16, is_sampled=True), {"batch": 7})
    span.end()
    inner_kept, outer_kept = kept.get_finished_spans()
    assert parent_of(outer_kept) == CALLER
    assert parent_of(inner_kept) == id_of(outer_kept) == span.context.span_id
    assert span.context.trace_id == TRACE
    assert inner_kept.status.description == "NO_REPLICA_AVAILABLE"
    (link,) = outer_kept.links
    assert f"{link.context.span_id:016x}" == "2" * 16


def test_a_collector_that_is_away_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tracing_module, "_CLOSE_MAX_S", 0.2)
    answers = threading.Event()

    class Away(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            del spans
            answers.wait()
            return SpanExportResult.FAILURE

    tracing = Tracing(provider_of(Away(), "router", {}))
    tracing.begin("lookup", None).end()
    started = time.monotonic()
    tracing.close()
    took_s = time.monotonic() - started
    answers.set()
    assert took_s < 5


class Context:
    """What grpcio gives of a call."""

    def __init__(self, *metadata: tuple[str, str | bytes]) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._metadata


def test_a_requests_own_span_counts_before_that_of_its_call():
    metadata = Context(("authorization", "Bearer x"), ("traceparent", f"00-{'3' * 32}-{'4' * 16}-01"))
    assert caller_of("", metadata) == TraceContext("3" * 32, "4" * 16, is_sampled=True)
    assert caller_of(TRACEPARENT, metadata) == TraceContext(TRACE, CALLER, is_sampled=True)
    assert caller_of(TRACEPARENT.removesuffix("1") + "0", metadata) is None, "its caller doesn't keep it"
    assert caller_of("", Context()) is None
    assert caller_of("nonsense", Context()) is None
