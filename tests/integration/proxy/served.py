"""The real proxy in front of a server in this process, and calls to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

import grpc
import grpc.aio

from statehouse.errors import LookupFailure, Reason
from statehouse.link.link import CALLS, LinkContext
from statehouse.link.proxy import Proxy, ProxyLimits, ProxyTls
from statehouse.local.ports import LOOPBACK
from statehouse.rpc.failures import from_rpc_error
from statehouse.rpc.server import RpcServer
from statehouse.rpc.status import Context, failing_cleanly
from statehouse.security.shown import Shown
from statehouse.settings import RouterSettings
from tests.support.proxy import PROXY

SERVICE = "test.Service"
GET, BATCH_GET = "/statehouse.v1.QueryService/Get", "/statehouse.v1.QueryService/BatchGet"
SCAN = "/statehouse.v1.QueryService/Scan"
MAX_BYTES = 1_000_000
BOUNDS = ProxyLimits(MAX_BYTES, 100, 100, MAX_BYTES)
TWICE = f"/{SERVICE}/Twice"
Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
T = TypeVar("T")


@dataclass
class Served:
    """A server behind a proxy: its Get answers immediately, its BatchGet and Scan when `may_go_on` is set."""

    proxy: Proxy
    server: RpcServer
    broken: list[Exception]
    asked: list[tuple[bytes, float | None]] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    metadata: list[dict[str, str | bytes]] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    may_go_on: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def target(self) -> str:
        return f"{LOOPBACK}:{self.server.port}"

    def get(self, request: bytes, context: LinkContext) -> bytes:
        self.asked.append((request, context.time_remaining()))
        self.shown.append(context.shown)
        if request == b"no":
            raise LookupFailure(Reason.UNKNOWN_STORE, "no such store", {"store": "s"})
        return request[::-1]

    def batch_get(self, request: bytes, context: LinkContext) -> Awaitable[bytes]:
        async def later() -> bytes:
            self.arrived.set()
            try:
                await self.may_go_on.wait()
            except asyncio.CancelledError:
                self.left.set()
                raise
            return self.get(request, context)

        return later()


@failing_cleanly
async def _twice(told: list[dict[str, str | bytes]], request: bytes, context: Context) -> None:
    """Answer two messages, or one and a refusal."""
    told.append(dict(context.invocation_metadata() or ()))
    await context.write(request)
    if request == b"no":
        raise LookupFailure(Reason.NOT_ACTIVE, "not here", {"partition": "3"})
    await context.write(request)


@failing_cleanly
async def _endless(left: asyncio.Event, _request: bytes, _context: Context) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        left.set()


@failing_cleanly
async def _refused(_self: object, _request: bytes, _context: Context) -> bytes:
    raise AssertionError("lookups come over the link, and others not at all")


@asynccontextmanager
async def served(port: int = 0, bounds: ProxyLimits = BOUNDS, tls: ProxyTls | None = None) -> AsyncIterator[Served]:
    def register(server: Any) -> None:
        twice = grpc.unary_stream_rpc_method_handler(partial(_twice, metadata))
        endless = grpc.unary_stream_rpc_method_handler(partial(_endless, left))
        server.add_registered_method_handlers(SERVICE, {"Twice": twice, "Endless": endless})
        refused = grpc.unary_unary_rpc_method_handler(partial(_refused, None))
        server.add_registered_method_handlers("statehouse.v1.QueryService", {"Get": refused, "Scan": refused})

    def get(request: bytes, context: LinkContext) -> bytes:
        return it.get(request, context)

    def batch_get(request: bytes, context: LinkContext) -> Awaitable[bytes]:
        return it.batch_get(request, context)

    broken: list[Exception] = []
    metadata: list[dict[str, str | bytes]] = []
    left = asyncio.Event()
    bind = f"{LOOPBACK}:{port}"
    proxy = Proxy(str(PROXY), bind, broken.append, bounds, share_port=False, tls=tls)
    server = RpcServer(
        bind,
        (SERVICE,),
        register,
        settings=RouterSettings(application_id="tests", max_message_bytes=bounds.max_message_bytes),
        proxy=proxy,
        proxied={**dict.fromkeys(CALLS.values(), get), "BatchGet": batch_get, "Scan": batch_get},
        max_batch_entries=1_000,
        lasting_calls=0,
        gate=None,
    )
    it = Served(proxy, server, broken, metadata=metadata, left=left)
    await server.start()
    try:
        yield it
    finally:
        await server.stop(0.0)


async def call(
    at: grpc.aio.Channel, path: str, *requests: bytes, timeout_s: float = 20.0, metadata: Metadata = ()
) -> list[bytes] | LookupFailure:
    made: Any = at.stream_stream(path)(cast("Any", iter(requests)), timeout=timeout_s, metadata=metadata)
    try:
        return [data async for data in made]
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)


async def reason(at: grpc.aio.Channel, path: str, *requests: bytes, timeout_s: float = 20.0) -> Reason:
    outcome = await call(at, path, *requests, timeout_s=timeout_s)
    assert isinstance(outcome, LookupFailure)
    return outcome.reason


async def until(ask: Callable[[], Awaitable[T]], is_right: Callable[[T], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        outcome = await ask()
        while not is_right(outcome):
            await asyncio.sleep(0.005)
            outcome = await ask()


async def set_within(event: asyncio.Event, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        await event.wait()
