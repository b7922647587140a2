"""What a proxy says of itself, as metrics."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from statehouse.control.v1 import proxy_sums_pb2
from statehouse.observability.proxy_sums import ProxyCollector
from tests.support.metrics import Scrape, scrape_registry

SUMS = proxy_sums_pb2.ProxySums(
    calls=[
        proxy_sums_pb2.ProxyCalls(way=proxy_sums_pb2.PROXY_WAY_EXPRESS, code=0, count=7),
        proxy_sums_pb2.ProxyCalls(way=proxy_sums_pb2.PROXY_WAY_LINK, code=14, count=2),
        proxy_sums_pb2.ProxyCalls(way=proxy_sums_pb2.PROXY_WAY_REFUSED, code=8, count=1),
    ],
    connections=3,
    connections_refused=4,
    queued_lookups=5,
    queued_others=6,
    calls_at_process=8,
    express_lookups=9,
    express_is_open=True,
    held_bytes=10,
    held_bytes_max=11,
)


def shown(sums: bytes, *, has_express: bool = True) -> Scrape:
    registry = CollectorRegistry()
    registry.register(ProxyCollector("statehouse_router", lambda: sums, has_express=has_express))
    return scrape_registry(registry)


@pytest.mark.feature("proxy-routing-table")
def test_sums_become_metrics():
    value = shown(SUMS.SerializeToString()).value
    assert value("statehouse_router_proxy_calls_total", way="express", code="OK") == 7
    assert value("statehouse_router_proxy_calls_total", way="link", code="UNAVAILABLE") == 2
    assert value("statehouse_router_proxy_calls_total", way="refused", code="RESOURCE_EXHAUSTED") == 1
    assert value("statehouse_router_proxy_connections") == 3
    assert value("statehouse_router_proxy_refused_connections_total") == 4
    assert value("statehouse_router_proxy_queued_calls", kind="lookups") == 5
    assert value("statehouse_router_proxy_queued_calls", kind="others") == 6
    assert value("statehouse_router_proxy_calls_at_process") == 8
    assert value("statehouse_router_proxy_express_lookups") == 9
    assert value("statehouse_router_proxy_express_open") == 1
    assert value("statehouse_router_proxy_held_bytes") == 10
    assert value("statehouse_router_proxy_held_bytes_max") == 11


def test_a_node_has_no_express_way():
    assert [name for name in shown(SUMS.SerializeToString(), has_express=False).families if "express" in name] == []


def test_without_a_proxy_or_with_sums_that_cant_be_read_there_are_no_series():
    for sums in (b"", b"\xff\xff"):
        assert [family.samples for family in shown(sums).families.values() if family.samples] == []
