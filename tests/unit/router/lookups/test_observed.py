"""What a router keeps of a lookup: spans of it and of its calls, and a line of the log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.spans import CALLER, TRACE, TRACEPARENT, id_of, of_router, parent_of
from tests.unit.router.fake_nodes import Fleet, start_fleet
from tests.unit.router.fleets import STORE

RESTORING = LookupFailure(Reason.PARTITION_RESTORING, "not yet")
FORWARDING = types_pb2.Forwarding(traceparent=TRACEPARENT)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    return of_router(monkeypatch)


@pytest.fixture
async def fleets() -> AsyncIterator[Any]:
    started: list[Fleet] = []

    async def start(*names: str, **options: Any) -> Fleet:
        started.append(await start_fleet(names, **options))
        return started[-1]

    yield start
    for fleet in started:
        await fleet.stop()


def lines(written: Any) -> list[Any]:
    return [line for line in written if line["event"] == "lookup"]


async def test_a_traced_lookup_has_a_span_and_one_for_each_call(spans: InMemorySpanExporter, fleets: Any):
    fleet = await fleets("a", "b")
    fleet.nodes["a"].failure = RESTORING
    assert await fleet.get(forwarding=FORWARDING) == "b"
    first, second, own = spans.get_finished_spans()
    assert (own.name, parent_of(own)) == ("statehouse.v1.QueryService/Get", CALLER)
    assert {parent_of(first), parent_of(second)} == {id_of(own)}
    assert [span.attributes["statehouse.node"] for span in (first, second)] == ["a", "b"]
    assert [span.attributes["statehouse.outcome"] for span in (first, second)] == ["PARTITION_RESTORING", "OK"]
    assert own.attributes["statehouse.attempts"] == 2
    assert own.attributes["statehouse.partition"] == 0
    assert own.attributes["statehouse.node"] == "b"
    asked = fleet.nodes["b"].gets[-1].forwarding
    assert asked.traceparent == f"00-{TRACE}-{id_of(second)}-01", "the node's span is below that of its call"
    assert asked.hops == 1, "what else the router says is there, too"


async def test_metadata_begin_a_trace_too(spans: InMemorySpanExporter, fleets: Any):
    fleet = await fleets("a")
    request = query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text="k"))
    await fleet.query.Get(request, metadata=(("traceparent", TRACEPARENT),))
    assert parent_of(spans.get_finished_spans()[-1]) == CALLER


async def test_who_keeps_no_trace_has_no_spans(spans: InMemorySpanExporter, fleets: Any):
    fleet = await fleets("a")
    await fleet.get()
    await fleet.get(forwarding=types_pb2.Forwarding(traceparent=TRACEPARENT.removesuffix("1") + "0"))
    await fleet.get(forwarding=types_pb2.Forwarding(traceparent="nonsense"))
    assert spans.get_finished_spans() == ()


@pytest.mark.feature("traces-client-over")
async def test_a_hedge_is_a_span_of_its_own(spans: InMemorySpanExporter, fleets: Any):
    fleet = await fleets("a", "b", hedge_min_ms=20)
    fleet.nodes["a"].freeze()
    assert await fleet.get(forwarding=FORWARDING) == "b"
    found = {span.name: span.attributes["statehouse.outcome"] for span in spans.get_finished_spans()}
    assert found == {"attempt": "OVERTAKEN", "hedge": "OK", "statehouse.v1.QueryService/Get": "OK"}


@pytest.mark.feature("line-log-failed")
async def test_a_failed_lookup_has_a_line_and_its_span_has_failed(spans: InMemorySpanExporter, fleets: Any):
    fleet = await fleets("a")
    fleet.nodes["a"].failure = RESTORING
    with capture_logs() as written, pytest.raises(grpc.aio.AioRpcError):
        await fleet.get("secret", timeout_s=1.0, forwarding=FORWARDING)
    (line,) = lines(written)
    assert (line["store"], line["partition"], line["outcome"]) == (STORE, 0, "FAILED")
    assert line["reason"] == spans.get_finished_spans()[-1].status.description == "NO_REPLICA_AVAILABLE"
    assert line["refusals"] == ["a: PARTITION_RESTORING"]
    assert line["attempts"] >= 2
    assert line["ms"] > 0
    assert line["trace_id"] == TRACE
    assert "secret" not in str(line)


async def test_a_share_of_the_lookups_has_lines(fleets: Any):
    fleet = await fleets("a", lookup_log_sample=1.0, lookup_log_keys=True)
    with capture_logs() as written:
        await fleet.get("k")
    (line,) = lines(written)
    assert (line["outcome"], line["node"], line["role"], line["key"]) == ("OK", "a", "ACTIVE", "k")
    assert (line["attempts"], line["hedged"]) == (1, False)


async def test_by_default_lookups_that_go_well_have_none(fleets: Any):
    fleet = await fleets("a")
    with capture_logs() as written:
        await fleet.get("k")
    assert lines(written) == []


async def test_lookups_of_a_batch_that_fail_have_a_line_for_each_reason(fleets: Any):
    fleet = await fleets("a")
    await fleet.publish(TaskAssignment("a"), epoch=2)
    requests = [
        query_service_pb2.GetRequest(store=name, key=types_pb2.Key(text="k")) for name in (STORE, "none", "none")
    ]
    with capture_logs() as written:
        await fleet.query.BatchGet(query_service_pb2.BatchGetRequest(requests=requests))
    assert [(line["method"], line["reason"]) for line in lines(written)] == [("BatchGet", "UNKNOWN_STORE")] * 2
