"""The proxy of a server that falls silent fails calls before their deadlines, until the server is heard again."""

from __future__ import annotations

import asyncio

import grpc.aio
from grpc_health.v1 import health_pb2

from statehouse.errors import LookupFailure, Reason
from statehouse.link.link import ToProxy
from statehouse.rpc.channels import channel
from statehouse.rpc.failures import from_rpc_error
from tests.integration.proxy.served import BATCH_GET, GET, MAX_BYTES, TWICE, call, served, set_within, until

WATCH = "/grpc.health.v1.Health/Watch"


async def outcome(at: grpc.aio.Channel, path: str, request: bytes) -> tuple[list[bytes] | LookupFailure, float]:
    """Return what came of a call, and after how many seconds."""
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    # Not as `call` does it: of a call that fails before its request is written, grpcio says nothing but that.
    made = at.unary_stream(path)(request, timeout=20.0)
    came: list[bytes] | LookupFailure
    try:
        came = [data async for data in made]
    except grpc.aio.AioRpcError as error:
        came = from_rpc_error(error)
    return came, loop.time() - began_at


def is_silence(came: list[bytes] | LookupFailure) -> bool:
    return isinstance(came, LookupFailure) and came.reason is Reason.UNREACHABLE and "doesn't respond" in came.message


async def test_calls_fail_while_a_server_that_said_it_lives_says_nothing() -> None:
    async with (
        served() as it,
        served() as node,
        channel(it.target, MAX_BYTES) as at,
        channel(node.target, MAX_BYTES) as to,
    ):
        it.proxy.link.send(ToProxy.ALIVE)
        lookup = asyncio.ensure_future(outcome(at, BATCH_GET, b"x"))
        of_node = asyncio.ensure_future(call(to, BATCH_GET, b"x"))
        passed_on = asyncio.ensure_future(outcome(at, WATCH, health_pb2.HealthCheckRequest().SerializeToString()))
        for each in (it, node):
            await set_within(each.arrived)
        for came, took_s in (await lookup, await passed_on):
            assert is_silence(came), came
            assert 2.5 < took_s < 10
        await set_within(it.left)
        for path in (GET, TWICE):
            came, took_s = await outcome(at, path, b"abc")
            assert is_silence(came), came
            assert took_s < 2.5, "it is known by now"
        assert it.asked == []
        it.proxy.link.send(ToProxy.ALIVE)
        await until(lambda: call(at, GET, b"abc"), lambda came: came == [b"cba"])
        assert await call(at, TWICE, b"abc") == [b"abc", b"abc"]
        assert not of_node.done(), "a node never says that it lives, and may take its time"
        node.may_go_on.set()
        assert await of_node == [b"x"]


async def test_answers_show_that_a_server_lives() -> None:
    async with served() as it, channel(it.target, MAX_BYTES) as at:
        it.proxy.link.send(ToProxy.ALIVE)
        lookup = asyncio.ensure_future(call(at, BATCH_GET, b"x"))
        ends_at = asyncio.get_running_loop().time() + 4
        await until(lambda: call(at, GET, b"abc"), lambda _: asyncio.get_running_loop().time() > ends_at)
        it.may_go_on.set()
        assert await lookup == [b"x"]
