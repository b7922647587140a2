"""What a server bounds that no proxy stands in front of."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import grpc
import grpc.aio
import pytest

from statehouse.errors import LookupFailure, Reason
from statehouse.local.ports import LOOPBACK
from statehouse.rpc import server as rpc_server
from statehouse.rpc.failures import from_rpc_error
from statehouse.rpc.server import RpcServer
from statehouse.rpc.status import Context, failing_cleanly
from statehouse.settings import RouterSettings
from tests.support.polling import poll_until_async

SERVICE = "tests.Service"
DEADLINE_S = 10.0


@failing_cleanly
async def _echo(_self: object, request: bytes, _context: Context) -> bytes:
    return request


class Served:
    """A server of two methods: Echo, and Wait, which answers when it may go on."""

    def __init__(self, lasting_calls: int, **settings: Any) -> None:
        self.waiting, self.may_go_on = 0, asyncio.Event()
        self.server = RpcServer(
            f"{LOOPBACK}:0",
            (SERVICE,),
            self._register,
            settings=RouterSettings(application_id="tests", **settings),
            proxy=None,
            proxied={},
            max_batch_entries=1_000,
            lasting_calls=lasting_calls,
            gate=None,
        )
        self.target = f"{LOOPBACK}:{self.server.port}"

    def _register(self, server: Any) -> None:
        echo = grpc.unary_unary_rpc_method_handler(partial(_echo, None))
        wait = grpc.unary_unary_rpc_method_handler(partial(failing_cleanly(Served._wait), self))
        server.add_registered_method_handlers(SERVICE, {"Echo": echo, "Wait": wait})

    async def _wait(self, request: bytes, _context: Context) -> bytes:
        self.waiting += 1
        try:
            await self.may_go_on.wait()
        finally:
            self.waiting -= 1
        return request

    def channel(self) -> grpc.aio.Channel:
        """Return a connection of its own."""
        return grpc.aio.insecure_channel(self.target, [("grpc.use_local_subchannel_pool", 1)])


@asynccontextmanager
async def served(lasting_calls: int = 0, **settings: Any) -> AsyncIterator[Served]:
    it = Served(lasting_calls, **settings)
    await it.server.start()
    try:
        yield it
    finally:
        await it.server.stop(0.0)


async def outcome(channel: grpc.aio.Channel, method: str, **options: Any) -> bytes | LookupFailure:
    call: Any = channel.unary_unary(f"/{SERVICE}/{method}")
    try:
        return bytes(await call(b"hello", timeout=DEADLINE_S, **options))
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)


def is_open(connection: socket.socket) -> bool:
    """Whether a server has not closed a connection; reads what it has sent."""
    connection.setblocking(False)
    try:
        while connection.recv(1_000):
            pass
    except BlockingIOError:
        return True
    except ConnectionError:
        return False
    return False


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    return lambda name, value: monkeypatch.setattr(rpc_server, name, value)


async def test_a_connection_that_does_not_begin_is_closed(bound: Callable[[str, int], None]) -> None:
    bound("_BEGINS_WITHIN_MS", 200)
    async with served() as it:
        with socket.create_connection((LOOPBACK, it.server.port)) as silent:
            await poll_until_async(lambda: not is_open(silent), DEADLINE_S, "the silent connection to be closed")


async def test_an_idle_connection_is_closed_and_made_again(bound: Callable[[str, int], None]) -> None:
    bound("_IDLE_MAX_MS", 300)
    async with served() as it, it.channel() as channel:
        assert await outcome(channel, "Echo") == b"hello"
        ready = grpc.ChannelConnectivity.READY
        await poll_until_async(lambda: channel.get_state() is not ready, DEADLINE_S, "the idle connection to be closed")
        assert await outcome(channel, "Echo") == b"hello"


async def test_headers_are_bounded_and_those_within_are_not_refused_by_chance() -> None:
    async with served() as it, it.channel() as channel:
        for size in (9_000, 12_000, 15_000):
            for _ in range(20):
                assert await outcome(channel, "Echo", metadata=(("k", "v" * size),)) == b"hello"
        refused = await outcome(channel, "Echo", metadata=(("k", "v" * 17_000),))
        assert isinstance(refused, LookupFailure)
        assert refused.metadata["grpc_status"] == "RESOURCE_EXHAUSTED"


async def test_connections_are_bounded() -> None:
    async with served(max_connections=3) as it, AsyncExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection((LOOPBACK, it.server.port))) for _ in range(5)]
        await poll_until_async(lambda: sum(map(is_open, connections)) == 3, DEADLINE_S, "two to be closed")
        for each in connections:
            each.close()

        async def is_served() -> bool:
            async with it.channel() as channel:
                return await outcome(channel, "Echo") == b"hello"

        async with asyncio.timeout(DEADLINE_S):
            while not await is_served():
                pass


async def test_calls_of_one_connection_are_bounded(bound: Callable[[str, int], None]) -> None:
    bound("_CALLS_OF_CONNECTION_MAX", 3)
    async with served() as it, it.channel() as one, it.channel() as other:
        calls = [asyncio.create_task(outcome(one, "Wait")) for _ in range(4)]
        await poll_until_async(lambda: it.waiting == 3, DEADLINE_S, "as many as may")
        calls.append(asyncio.create_task(outcome(other, "Wait")))
        await poll_until_async(lambda: it.waiting == 4, DEADLINE_S, "another connection's")
        it.may_go_on.set()
        assert await asyncio.gather(*calls) == [b"hello"] * 5, "the fourth waited at the client"


async def test_calls_of_all_are_bounded_beside_those_that_may_last(bound: Callable[[str, int], None]) -> None:
    bound("_CALLS_MAX", 2)
    async with served(lasting_calls=3) as it, it.channel() as one, it.channel() as other:
        calls = [asyncio.create_task(outcome(one, "Wait")) for _ in range(5)]
        await poll_until_async(lambda: it.waiting == 5, DEADLINE_S, "as many as may")
        refused = await outcome(other, "Echo")
        assert isinstance(refused, LookupFailure)
        assert refused.reason is Reason.OVERLOADED
        it.may_go_on.set()
        assert await asyncio.gather(*calls) == [b"hello"] * 5

        async def is_served() -> bool:
            return await outcome(other, "Echo") == b"hello"

        async with asyncio.timeout(DEADLINE_S):
            while not await is_served():
                pass
