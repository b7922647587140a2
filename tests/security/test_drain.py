"""Where nothing says who callers are, Drain is taken from the machine's loopback only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from prometheus_client import CollectorRegistry
from starlette.requests import Request

from query_service.service import SERVICES
from statehouse.errors import LookupFailure, Reason
from statehouse.link.link import CALLS
from statehouse.link.proxy import proxy_for
from statehouse.observability.denials import SecurityMetrics
from statehouse.rpc.authorized import ADDRESS_KEY
from statehouse.rpc.failures import from_rpc_error
from statehouse.rpc.server import RpcServer
from statehouse.security.draining import DRAIN, LocalGate, is_drain_local, is_loopback
from statehouse.security.shown import Shown
from statehouse.settings import NodeSettings, WebSettings
from statehouse.v1 import node_service_pb2, node_service_pb2_grpc
from statehouse.web.gateway import CallerRefused, Gateway
from tests.support.netns import Network

DEADLINE_S = 10.0


class Node(node_service_pb2_grpc.NodeServiceServicer):
    """Counts how often a caller tells it to drain."""

    def __init__(self) -> None:
        self.drains = 0

    async def Drain(self, _request: object, _context: object) -> node_service_pb2.DrainResponse:  # noqa: N802 - gRPC's name
        self.drains += 1
        return node_service_pb2.DrainResponse()

    async def GetNode(self, _request: object, _context: object) -> node_service_pb2.GetNodeResponse:  # noqa: N802 - as above
        return node_service_pb2.GetNodeResponse(epoch=7)


@asynccontextmanager
async def served(node: Node, registry: CollectorRegistry, **settings: Any) -> AsyncIterator[int]:
    """Serve a node on every address of this machine; yields its port."""
    given = NodeSettings(
        application_id="tests", bind_host="0.0.0.0", advertised_host="localhost", node_port=0, **settings
    )
    defects: list[Exception] = []
    server = RpcServer(
        "0.0.0.0:0",
        SERVICES,
        lambda server: node_service_pb2_grpc.add_NodeServiceServicer_to_server(node, server),
        settings=given,
        proxy=proxy_for(given, "0.0.0.0:0", defects.append, is_traced=False),
        proxied=dict.fromkeys(CALLS.values(), lambda _data, _context: b""),
        max_batch_entries=1_000,
        lasting_calls=0,
        gate=None,
        local_gate=LocalGate(SecurityMetrics(registry, "statehouse_node").denied) if is_drain_local(given) else None,
    )
    await server.start()
    try:
        yield server.port
    finally:
        await server.stop(0.0)
    assert not defects


async def told_to_drain(host: str, port: int) -> LookupFailure | None:
    async with grpc.aio.insecure_channel(f"{host}:{port}") as channel:
        stub = node_service_pb2_grpc.NodeServiceStub(channel)
        assert (await stub.GetNode(node_service_pb2.GetNodeRequest(), timeout=DEADLINE_S)).epoch == 7
        try:
            # What says where a call comes from is the proxy's to say.
            pretended = ((ADDRESS_KEY, "127.0.0.1"),)
            await stub.Drain(node_service_pb2.DrainRequest(), timeout=DEADLINE_S, metadata=pretended)
        except grpc.aio.AioRpcError as error:
            return from_rpc_error(error)
    return None


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """Yield an address of this machine that isn't the loopback's."""
    with Network() as network:
        yield network.host


@pytest.mark.parametrize("proxy", ["auto", "none"])
async def test_a_call_from_elsewhere_drains_nothing_unless_a_setting_says_otherwise(elsewhere: str, proxy: str) -> None:
    node, registry = Node(), CollectorRegistry()
    async with served(node, registry, proxy=proxy) as port:
        assert await told_to_drain("127.0.0.1", port) is None
        failure = await told_to_drain(elsewhere, port)
    assert failure is not None
    assert failure.reason is Reason.PERMISSION_DENIED
    assert elsewhere in failure.message
    assert "drain_from_anywhere" in failure.message
    assert node.drains == 1
    assert registry.get_sample_value("statehouse_node_denials_total", {"reason": "PERMISSION_DENIED"}) == 1.0
    async with served(node, registry=CollectorRegistry(), proxy=proxy, drain_from_anywhere=True) as port:
        assert await told_to_drain(elsewhere, port) is None
    assert node.drains == 2


def request_from(address: str) -> Request:
    return Request({"type": "http", "headers": [], "client": (address, 1)})


async def test_a_web_process_passes_no_drain_on_from_elsewhere() -> None:
    gateway = Gateway(WebSettings(router="127.0.0.1:1", http_port=0))
    with pytest.raises(CallerRefused, match="loopback"):
        await gateway.authorise(request_from("10.0.0.1"), "Drain")
    await gateway.authorise(request_from("127.0.0.1"), "Drain")
    await gateway.authorise(request_from("10.0.0.1"), "GetFleet")
    await gateway.close()
    open_to_all = Gateway(WebSettings(router="127.0.0.1:1", http_port=0, drain_from_anywhere=True))
    await open_to_all.authorise(request_from("10.0.0.1"), "Drain")
    await open_to_all.close()


@pytest.mark.parametrize(
    ("address", "is_local"),
    [
        *((each, True) for each in ("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "::1%lo")),
        *(
            (each, False)
            for each in ("", "10.0.0.1", "0.0.0.0", "::", "::2", "::ffff:10.0.0.1", "localhost", "x" * 999)
        ),
        *((each, False) for each in ("169.254.0.1", "fe80::1%lo", "127.0.0.1.example.org", "unix:/tmp/socket")),
    ],
)
def test_only_the_loopback_is_local(address: str, is_local: bool) -> None:
    assert is_loopback(address) == is_local
    door = LocalGate(lambda _reason: None)
    if is_local:
        door.admit(DRAIN, None, Shown(address=address))
    else:
        with pytest.raises(LookupFailure, match="SIGTERM"):
            door.admit(DRAIN, None, Shown(address=address))


def test_who_knows_the_callers_takes_it_from_where_they_are(tmp_path: Path) -> None:
    files = {"tls_certificate": tmp_path / "c", "tls_key": tmp_path / "k"}
    ca, rules = {"tls_ca": tmp_path / "ca"}, {"security_rules": tmp_path / "rules"}
    for given, is_local in (
        ({}, True),
        (files, True),
        (files | ca, False),
        (files | ca | {"tls_callers": "optional"}, True),
        (files | ca | {"tls_callers": "none"}, True),
        (files | rules, False),
        ({"drain_from_anywhere": True}, False),
    ):
        assert is_drain_local(NodeSettings(application_id="a", **given)) == is_local, given
