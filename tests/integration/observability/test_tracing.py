"""Spans of real lookups, from client over router to node, as a collector takes them; and the lines of the log."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider

import statehouse.client.spans
from processor.reports.commits import CommitsPublisher, StoreChangelog
from statehouse.client import AsyncClient
from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess, is_answered_by_active
from tests.support.polling import poll_until, poll_until_async
from tests.support.shared import shared_fleet
from tests.support.spans import CALLER, TRACE, TRACEPARENT, SpanCollector, TakenSpan, collecting

BATCH = f"00-{'ab' * 16}-{'cd' * 8}-01"


@pytest.fixture(scope="module")
def collector() -> Iterator[tuple[SpanCollector, str]]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def fleet(
    kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory, collector: tuple[SpanCollector, str]
) -> Iterator[Fleet]:
    with (
        pytest.MonkeyPatch.context() as patched,
        shared_fleet(kafka.bootstrap, tmp_path_factory, "traced", partitions=1) as fleet,
    ):
        patched.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")  # so that spans come soon
        patched.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector[1])
        fleet.put({"a": "1"})
        fleet.node("n1", lookup_log_sample=1)
        fleet.router()
        fleet.assign(TaskAssignment("n1"))
        router = fleet.processes[1]
        poll_until(lambda: is_answered_by_active(router, "a"), 60, "the router")
        changelogs = [StoreChangelog(STORE, fleet.changelog, 1)]
        publisher = CommitsPublisher(kafka.bootstrap, fleet.application_id, STORE, changelogs)
        publisher.start()
        publisher.publish("query", 7, {}, traceparent=BATCH)
        poll_until(lambda: router.get("a").replica.HasField("processor_age_ms"), 30, "the node to hear of the batch")
        yield fleet


@pytest.fixture
def router(fleet: Fleet) -> ServerProcess:
    return fleet.processes[1]


def taken(collector: tuple[SpanCollector, str], trace_id: str, count: int) -> list[TakenSpan]:
    spans = collector[0]
    poll_until(lambda: len(spans.of(trace_id)) >= count, 20, f"{count} spans")
    return spans.of(trace_id)


@pytest.mark.feature("traces-client-over")
def test_a_call_with_a_traceparent_is_traced_to_the_node(
    router: ServerProcess, collector: tuple[SpanCollector, str]
) -> None:
    """Also through the proxies: the call leaves the express way, and has its metadata."""
    request = query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text="a"))
    router.query.Get(request, timeout=10, metadata=(("traceparent", TRACEPARENT),))
    by_name = {(span.service, span.name): span for span in taken(collector, TRACE, 3)}
    own = by_name["statehouse-router", "statehouse.v1.QueryService/Get"]
    attempt = by_name["statehouse-router", "attempt"]
    node = by_name["statehouse-node", "statehouse.v1.QueryService/Get"]
    assert (own.above, attempt.above, node.above) == (CALLER, own.span_id, attempt.span_id)
    assert node.attributes["statehouse.node"] == own.attributes["statehouse.node"] == "n1"
    assert node.attributes["statehouse.lag"] == 0
    assert node.links == (("ab" * 16, "cd" * 8),), "the batch that the answer includes"


@pytest.mark.parametrize("direct", [False, True])
async def test_lookups_of_a_client_have_a_trace_each(
    router: ServerProcess, collector: tuple[SpanCollector, str], monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    """Also those that share a call."""
    provider = TracerProvider(shutdown_on_exit=False)
    monkeypatch.setattr(statehouse.client.spans.trace, "get_tracer", provider.get_tracer)
    tracer = provider.get_tracer("test")

    async def read(client: AsyncClient) -> str:
        with tracer.start_as_current_span("program") as span:
            assert (await client.get(STORE, "a")).value == "1"
            return f"{span.get_span_context().trace_id:032x}"

    async with AsyncClient(router.target, direct=direct, tracing=True) as client:
        await client.get(STORE, "a")
        traces = await asyncio.gather(*(read(client) for _ in range(20)))
    assert len(set(traces)) == 20
    spans, _ = collector
    for trace_id in traces:
        # Each process sends its spans when it likes, so the router's may come before the node's.
        await poll_until_async(
            lambda trace_id=trace_id: "statehouse-node" in {span.service for span in spans.of(trace_id)},
            20,
            "the node's span",
        )


def test_a_lookup_without_a_trace_has_no_span(router: ServerProcess, collector: tuple[SpanCollector, str]) -> None:
    request = query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text="a"))
    not_kept, kept = "1" * 32, "2" * 32
    router.query.Get(request, timeout=10, metadata=(("traceparent", f"00-{not_kept}-{CALLER}-00"),))
    router.query.Get(request, timeout=10, metadata=(("traceparent", f"00-{kept}-{CALLER}-01"),))
    taken(collector, kept, 3)
    assert collector[0].of(not_kept) == []


def lines(process: ServerProcess, **fields: object) -> list[dict[str, object]]:
    """Return the lines about lookups that have these fields."""
    found = [json.loads(line) for line in process.log.splitlines() if '"lookup"' in line]
    return [line for line in found if line["event"] == "lookup" and fields.items() <= line.items()]


@pytest.mark.feature("line-log-failed")
def test_failed_and_sampled_lookups_have_lines(fleet: Fleet, router: ServerProcess) -> None:
    with pytest.raises(LookupFailure):
        router.get("a", store="none")
    (line,) = poll_until(lambda: lines(router, reason="UNKNOWN_STORE", method="Get"), 10, "the router's line")
    assert (line["outcome"], line["logger"]) == ("FAILED", "lookup")
    answered = poll_until(lambda: lines(fleet.processes[0], outcome="OK", store=STORE), 10, "the node's lines")
    assert {line["node"] for line in answered} == {"n1"}
    assert {"partition", "role", "ms", "lag", "staleness_ms"} <= answered[-1].keys()
    assert "key" not in answered[-1]
