"""A real router and its proxy: traces go through both, and the proxy's sums become the router's metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.metrics import scrape_registry
from tests.support.polling import poll_until_async
from tests.support.proxy import PROXY
from tests.support.spans import CALLER, TRACEPARENT, id_of, of_router, parent_of
from tests.unit.router.fake_nodes import Fleet, start_fleet
from tests.unit.router.fleets import STORE

REQUEST = query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text="k"))


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    return of_router(monkeypatch)


@pytest.fixture
async def fleet(spans: InMemorySpanExporter) -> AsyncIterator[Fleet]:
    started = await start_fleet(("a", "b"), proxy=str(PROXY), express=True)
    started.router.collect()
    yield started
    await started.stop()


async def test_a_traced_call_goes_to_the_router_with_its_trace(fleet: Fleet, spans: InMemorySpanExporter) -> None:
    await fleet.query.Get(REQUEST, metadata=(("traceparent", TRACEPARENT),))
    batch = query_service_pb2.BatchGetRequest(requests=[REQUEST])
    await fleet.query.BatchGet(batch, metadata=(("traceparent", TRACEPARENT),))
    attempt, own = spans.get_finished_spans()
    assert (parent_of(own), parent_of(attempt)) == (CALLER, id_of(own))
    assert fleet.nodes["a"].gets[0].forwarding.traceparent.split("-")[2] == id_of(attempt)


async def test_a_request_that_has_its_trace_goes_to_the_router_too(fleet: Fleet, spans: InMemorySpanExporter) -> None:
    await fleet.get(forwarding=types_pb2.Forwarding(traceparent=TRACEPARENT))
    assert parent_of(spans.get_finished_spans()[-1]) == CALLER


async def test_what_the_proxy_counts_becomes_the_routers_metrics(fleet: Fleet) -> None:
    def calls(way: str) -> float:
        scraped = scrape_registry(fleet.router.metrics.registry)
        return scraped.value("statehouse_router_proxy_calls_total", way=way, code="OK")

    for _ in range(20):
        await fleet.get()
    await fleet.query.Get(REQUEST, metadata=(("traceparent", TRACEPARENT),))
    await poll_until_async(lambda: calls("forwarded") == 1, 10, "the proxy's sums")
    scraped = scrape_registry(fleet.router.metrics.registry)
    assert calls("express") + calls("link") == 20
    assert scraped.value("statehouse_router_proxy_connections") == 1
    assert scraped.value("statehouse_router_proxy_express_open") == 1
    assert scraped.value("statehouse_router_proxy_held_bytes_max") > 10**8
