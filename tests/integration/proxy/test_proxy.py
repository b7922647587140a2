"""The real proxy in front of a server in this process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from statehouse.errors import ConfigurationError, LookupFailure, Reason
from statehouse.local.ports import LOOPBACK, free_port
from statehouse.rpc.channels import channel
from statehouse.rpc.failures import from_rpc_error
from statehouse.rpc.link import CallFailed, LinkContext
from statehouse.rpc.proxy import Proxy, ProxyEnded, ProxyLimits, find_program
from statehouse.rpc.server import RpcServer
from statehouse.rpc.status import Context, failing_cleanly
from tests.support.proxy import PROXY

SERVICE = "test.Service"
GET, BATCH_GET = "/statehouse.v1.QueryService/Get", "/statehouse.v1.QueryService/BatchGet"
MAX_BYTES = 1_000_000
BOUNDS = ProxyLimits(MAX_BYTES)
T = TypeVar("T")


@dataclass
class Served:
    """A server behind a proxy, whose Get answers at once and whose BatchGet does so when `may_go_on` is set."""

    proxy: Proxy
    server: RpcServer
    broken: list[Exception]
    asked: list[tuple[bytes, float | None]] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    may_go_on: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def target(self) -> str:
        return f"{LOOPBACK}:{self.server.port}"

    def get(self, request: bytes, context: LinkContext) -> bytes:
        self.asked.append((request, context.time_remaining()))
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
async def _twice(_self: object, request: bytes, context: Context) -> None:
    """Answer two messages, or one and a refusal."""
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
async def served(port: int = 0, bounds: ProxyLimits = BOUNDS) -> AsyncIterator[Served]:
    def register(server: Any) -> None:
        twice = grpc.unary_stream_rpc_method_handler(partial(_twice, None))
        endless = grpc.unary_stream_rpc_method_handler(partial(_endless, left))
        server.add_registered_method_handlers(SERVICE, {"Twice": twice, "Endless": endless})
        refused = grpc.unary_unary_rpc_method_handler(partial(_refused, None))
        server.add_registered_method_handlers("statehouse.v1.QueryService", {"Get": refused})

    def get(request: bytes, context: LinkContext) -> bytes:
        return it.get(request, context)

    def batch_get(request: bytes, context: LinkContext) -> Awaitable[bytes]:
        return it.batch_get(request, context)

    broken: list[Exception] = []
    left = asyncio.Event()
    bind = f"{LOOPBACK}:{port}"
    proxy = Proxy(str(PROXY), bind, broken.append, bounds, share_port=False)
    server = RpcServer(
        bind,
        (SERVICE,),
        register,
        max_message_bytes=MAX_BYTES,
        proxy=proxy,
        proxied={"Get": get, "BatchGet": batch_get},
    )
    it = Served(proxy, server, broken, left=left)
    await server.start()
    try:
        yield it
    finally:
        await server.stop(0.0)


async def call(
    at: grpc.aio.Channel, path: str, *requests: bytes, timeout_s: float = 20.0
) -> list[bytes] | LookupFailure:
    made: Any = at.stream_stream(path)(cast("Any", iter(requests)), timeout=timeout_s)
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


async def test_lookups_are_answered_over_the_link() -> None:
    async with served() as it, channel(it.target, MAX_BYTES) as at:
        assert await call(at, GET, b"abc", timeout_s=5.0) == [b"cba"]
        ((_, remaining_s),) = it.asked
        assert remaining_s is not None
        assert 4.0 < remaining_s <= 5.0
        it.may_go_on.set()
        assert await asyncio.gather(*(call(at, BATCH_GET, b"%03d" % each) for each in range(300))) == [
            [(b"%03d" % each)[::-1]] for each in range(300)
        ]
        refusal = await call(at, GET, b"no")
        assert isinstance(refusal, LookupFailure)
        assert (refusal.reason, refusal.message, refusal.metadata) == (
            Reason.UNKNOWN_STORE,
            "no such store",
            {"store": "s"},
        )


async def test_a_call_without_a_deadline_has_none() -> None:
    async with served() as it, channel(it.target, MAX_BYTES) as at:
        await at.unary_unary(GET)(b"x")
        assert it.asked == [(b"x", None)]


async def test_all_else_is_passed_on() -> None:
    async with served() as it, channel(it.target, MAX_BYTES) as at:
        assert await call(at, f"/{SERVICE}/Twice", b"abc") == [b"abc", b"abc"]
        refusal = await call(at, f"/{SERVICE}/Twice", b"no")
        assert isinstance(refusal, LookupFailure)
        assert (refusal.reason, refusal.message, refusal.metadata) == (
            Reason.NOT_ACTIVE,
            "not here",
            {"partition": "3"},
        )
        for path in (GET, f"/{SERVICE}/Twice"):
            assert await reason(at, path) is Reason.INVALID_REQUEST, "without a request"

        it.server.set_serving(serving=True)
        health = health_pb2_grpc.HealthStub(at)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        listed = [each async for each in reflection_pb2_grpc.ServerReflectionStub(at).ServerReflectionInfo(asked)]
        assert SERVICE in {each.name for each in listed[0].list_services_response.service}


async def test_who_leaves_is_not_worked_for() -> None:
    async with served() as it, channel(it.target, MAX_BYTES) as at:
        waiting = asyncio.ensure_future(at.unary_unary(BATCH_GET)(b"x"))
        await set_within(it.arrived)
        waiting.cancel()
        await set_within(it.left)


@pytest.mark.parametrize("path", [BATCH_GET, f"/{SERVICE}/Endless"])
async def test_a_deadline_that_passes_is_told_as_such(path: str) -> None:
    async with served() as it, channel(it.target, MAX_BYTES) as at:
        reasons = [await reason(at, path, b"x", timeout_s=timeout_s) for timeout_s in (0.1, 0.123456, 0.2) * 3]
        assert set(reasons) == {Reason.ATTEMPT_TIMED_OUT}
        await set_within(it.left)


@pytest.mark.parametrize("path", [GET, f"/{SERVICE}/Twice"])
async def test_messages_have_a_largest_size(path: str) -> None:
    async with served() as it, channel(it.target, 4 * MAX_BYTES) as at:
        assert await reason(at, path, b"x" * (MAX_BYTES + 1)) is Reason.MESSAGE_TOO_LARGE
        answers = await call(at, path, b"x" * MAX_BYTES)
        assert isinstance(answers, list)
        assert {len(each) for each in answers} == {MAX_BYTES}


@pytest.mark.parametrize("bounds", [ProxyLimits(MAX_BYTES, 2), ProxyLimits(MAX_BYTES, 9, 2)])
async def test_connections_beyond_the_bounds_are_closed_and_cost_the_others_nothing(bounds: ProxyLimits) -> None:
    async with served(bounds=bounds) as it, AsyncExitStack() as stack:
        at = await stack.enter_async_context(channel(it.target, MAX_BYTES))
        assert await call(at, GET, b"abc") == [b"cba"]
        host, port = it.target.split(":")
        kept_reader, kept = await asyncio.open_connection(host, int(port))
        stack.callback(kept.close)
        for _ in range(20):
            reader, writer = await asyncio.open_connection(host, int(port))
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 10) == b"", "closed without a word"
            writer.close()
        assert await call(at, GET, b"abc") == [b"cba"]
        kept.close()
        assert await asyncio.wait_for(kept_reader.read(), 10) is not None
        other = await stack.enter_async_context(channel(it.target, MAX_BYTES))
        await until(lambda: call(other, GET, b"abc"), lambda outcome: outcome == [b"cba"])


async def test_headers_have_a_largest_size() -> None:
    async with served() as it, channel(it.target, MAX_BYTES) as at:
        made = at.stream_stream(GET)(cast("Any", iter([b"abc"])), timeout=20, metadata=(("x-long", "x" * 100_000),))
        with pytest.raises(grpc.aio.AioRpcError):
            assert [data async for data in made]
        assert await call(at, GET, b"abc") == [b"cba"]


async def test_the_proxy_has_none_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEHOUSE_SECRET", "hush")
    async with served() as it:
        environment = Path(f"/proc/{it.proxy.pid}/environ")
        assert await asyncio.to_thread(environment.read_bytes) == b""


async def test_what_is_under_way_at_the_end_is_answered() -> None:
    async with served() as it, channel(it.target, MAX_BYTES) as at:
        under_way = asyncio.ensure_future(call(at, BATCH_GET, b"ab"))
        await set_within(it.arrived)
        stopped = asyncio.ensure_future(it.server.stop(10.0))
        await until(lambda: call(at, GET, b"x"), lambda outcome: outcome != [b"x"])
        assert await reason(at, GET, b"x") is Reason.UNREACHABLE
        it.may_go_on.set()
        assert await under_way == [b"ba"]
        await stopped
        assert not it.broken


async def test_without_its_proxy_a_server_is_told() -> None:
    async with served() as it:
        told = asyncio.Event()
        it.proxy._on_broken = lambda error: (it.broken.append(error), told.set())
        os.kill(it.proxy.pid, signal.SIGKILL)
        await set_within(told)
        assert [type(error) for error in it.broken] == [ProxyEnded]


async def test_a_taken_port_is_an_error() -> None:
    async with served() as it:
        with pytest.raises(ConfigurationError, match="another process on that port"):
            async with served(it.server.port):
                pass


@pytest.mark.parametrize(
    ("program", "message"), [("/bin/true", "does not say where it listens"), ("/", "can't be run")]
)
async def test_another_program_is_an_error(program: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Proxy(program, f"{LOOPBACK}:0", pytest.fail, BOUNDS, share_port=False)


def test_the_setting_says_which_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(PROXY.parent))
    assert find_program("auto") == find_program(str(PROXY)) == str(PROXY)
    assert find_program("none") is None
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_program("auto") is None
    with pytest.raises(ConfigurationError, match="there is no program /nowhere/it: set --proxy"):
        find_program("/nowhere/it")


async def test_calls_go_to_other_servers() -> None:
    async with served() as it, served() as other:
        link = it.proxy.link
        assert await link.call(other.target, GET, b"abc", 5.0) == b"cba"
        with pytest.raises(CallFailed) as failed:
            await link.call(other.target, GET, b"no", 5.0)
        failure = from_rpc_error(failed.value)
        assert (failure.reason, failure.metadata) == (Reason.UNKNOWN_STORE, {"store": "s"})
        with pytest.raises(CallFailed) as failed:
            await link.call(other.target, BATCH_GET, b"late", 0.2)
        assert from_rpc_error(failed.value).reason is Reason.ATTEMPT_TIMED_OUT
        await set_within(other.left)

        other.left.clear()
        waiting = asyncio.ensure_future(link.call(other.target, BATCH_GET, b"x", 20.0))
        other.arrived.clear()
        await set_within(other.arrived)
        waiting.cancel()
        await set_within(other.left)


async def test_a_server_that_comes_back_is_found_again() -> None:
    async with served() as it:
        link, port = it.proxy.link, free_port()

        async def asked() -> bytes | Reason:
            try:
                return await link.call(f"{LOOPBACK}:{port}", GET, b"ab", 5.0)
            except CallFailed as error:
                return from_rpc_error(error).reason

        for _ in range(2):
            assert await asked() is Reason.UNREACHABLE
            async with served(port):
                await until(asked, lambda outcome: outcome == b"ba")


async def test_a_connection_that_is_dropped_ends_after_its_grace() -> None:
    async with served() as it, served() as other:
        link = it.proxy.link
        under_way = asyncio.ensure_future(link.call(other.target, BATCH_GET, b"x", 20.0))
        await set_within(other.arrived)
        link.drop(other.target, 0.2)
        assert await link.call(other.target, GET, b"ab", 5.0) == b"ba"
        with pytest.raises(CallFailed):
            await under_way
        with suppress(CallFailed):  # a connection that isn't there can be dropped
            link.drop("127.0.0.1:1", 0.0)
        assert await link.call(other.target, GET, b"ab", 5.0) == b"ba"
