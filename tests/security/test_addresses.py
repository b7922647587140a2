"""Callers that may not see the fleet learn no node's address: by each call about stores, through proxy and grpcio."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from prometheus_client import CollectorRegistry

from statehouse.errors import LookupFailure, Reason
from statehouse.link.link import CALLS, LinkContext
from statehouse.link.proxy import proxy_for
from statehouse.local.ports import LOOPBACK
from statehouse.observability.denials import SecurityMetrics, counted_gate
from statehouse.rpc.failures import from_rpc_error
from statehouse.rpc.server import RpcServer
from statehouse.rpc.status import Context, failing_cleanly
from statehouse.security.rights import RIGHTS, STORE_RIGHTS
from statehouse.settings import RouterSettings
from statehouse.v1 import errors_pb2, fleet_service_pb2, query_service_pb2
from tests.support.addresses import HOST, SECRETS, TEXT, filled
from tests.support.certificates import Authority, Issued
from tests.support.proxy import PROXY

NAMES: Final = ("localhost", LOOPBACK)
ROLES: Final = {
    "reader": 'roles = ["reader"]',
    "follower": 'roles = ["reader"]\nalso = ["fleet"]',
    "router": 'roles = ["router"]',
}
KINDS: Final = {
    f"/{service.full_name}/{method.name}": method
    for file in (query_service_pb2, fleet_service_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    if RIGHTS[f"/{service.full_name}/{method.name}"] in STORE_RIGHTS
}
NO: Final = b"\x0a\x02no"
"""A request about the store of this name: it fails."""
LATER: Final = b"\x0a\x05later"
"""One about this store is answered later."""


def failure() -> LookupFailure:
    candidate = errors_pb2.Candidate(host=HOST, detail=TEXT, eligible=False)
    route = errors_pb2.Route(active=HOST)
    return LookupFailure(Reason.NO_REPLICA_AVAILABLE, TEXT, {"why": TEXT}, route=route, candidates=[candidate])


def answer(path: str) -> Message:
    found: Message = filled(KINDS[path].output_type)
    return found


@failing_cleanly
async def _one(path: str, request: bytes, _context: Context) -> bytes:
    if request == NO:
        raise failure()
    return answer(path).SerializeToString()


@failing_cleanly
async def _message(path: str, request: bytes, _context: Context) -> Message:
    if request == NO:
        raise failure()
    return answer(path)


@failing_cleanly
async def _stream(path: str, request: bytes, context: Context) -> None:
    if request == NO:
        raise failure()
    await context.write(answer(path).SerializeToString())


def _over_the_link(path: str, request: bytes, _context: LinkContext) -> bytes | Awaitable[bytes]:
    async def later() -> bytes:
        return answer(path).SerializeToString()

    if request == NO:
        raise failure()
    return later() if request == LATER else answer(path).SerializeToString()


def _register(server: Any) -> None:
    for path, method in KINDS.items():
        service, _, name = path[1:].partition("/")
        handler: Any
        if method.server_streaming:
            handler = grpc.unary_stream_rpc_method_handler(partial(_stream, path))
        elif service.endswith("FleetService"):  # whose answers are messages
            write = GetMessageClass(method.output_type).SerializeToString
            handler = grpc.unary_unary_rpc_method_handler(partial(_message, path), response_serializer=write)
        else:
            handler = grpc.unary_unary_rpc_method_handler(partial(_one, path))
        server.add_registered_method_handlers(service, {name: handler})


@contextlib.asynccontextmanager
async def served(folder: Path, proxy: str) -> AsyncIterator[tuple[RpcServer, Authority, dict[str, Issued]]]:
    authority = Authority(folder, "house")
    rules = folder / "rules.toml"
    rules.write_text(
        "".join(f'[[identity]]\nname = "{name}"\ncertificates = ["x:{name}"]\n{role}\n' for name, role in ROLES.items())
    )
    own = authority.issue(NAMES)
    settings = RouterSettings(
        application_id="tests",
        proxy=proxy,
        tls_certificate=own.certificate_path,
        tls_key=own.key_path,
        tls_ca=authority.path,
        security_rules=rules,
    )
    bind = f"{LOOPBACK}:0"
    server = RpcServer(
        bind,
        (),
        _register,
        settings=settings,
        proxy=proxy_for(settings, bind, lambda error: pytest.fail(str(error))),
        proxied={name: partial(_over_the_link, f"/statehouse.v1.QueryService/{name}") for name in CALLS.values()},
        max_batch_entries=1_000,
        lasting_calls=0,
        gate=counted_gate(settings, SecurityMetrics(CollectorRegistry(), "t")),
    )
    await server.start()
    try:
        yield server, authority, {name: authority.issue(NAMES, (f"x:{name}",)) for name in ROLES}
    finally:
        await server.stop(0.0)


async def told(channel: grpc.aio.Channel, path: str, request: bytes) -> str:
    """Return all that a caller hears, as text."""
    call: Any = channel.stream_stream(path)(iter([request]), timeout=10.0)
    try:
        return str(GetMessageClass(KINDS[path].output_type).FromString(await call.read()))
    except grpc.aio.AioRpcError as error:
        return f"{from_rpc_error(error).to_proto()} {error.details()} {error.trailing_metadata()}"


@pytest.mark.parametrize("proxy", [str(PROXY), "none"], ids=["proxy", "grpcio"])
async def test_only_who_may_see_the_fleet_is_told_where_nodes_are(tmp_path: Path, proxy: str) -> None:
    wrong = []
    async with served(tmp_path, proxy) as (server, authority, issued):
        for name, shown in issued.items():
            pair = shown.key_path.read_bytes(), shown.certificate_path.read_bytes()
            credentials = grpc.ssl_channel_credentials(authority.path.read_bytes(), *pair)
            options = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.secure_channel(f"{LOOPBACK}:{server.port}", credentials, options) as channel:
                for path in KINDS:
                    for request in (b"", LATER, NO):
                        text = await told(channel, path, request)
                        has_address = any(secret in text for secret in SECRETS)
                        may_have = name != "reader" and any(secret in f"{answer(path)}" for secret in SECRETS)
                        if has_address != (may_have or (request == NO and name != "reader")):
                            wrong.append((name, path, request, text))
    assert not wrong, wrong[0]
