"""Calls whose request can't be read, or never comes: refused at once, like any other wrong request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Any, cast

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.failures import from_rpc_error
from statehouse.rpc.requests import TolerantServer
from statehouse.rpc.status import Context, failing_cleanly
from statehouse.v1 import types_pb2


@failing_cleanly
async def _one(_self: object, key: types_pb2.Key, _: Context) -> types_pb2.Key:
    return key


@failing_cleanly
async def _same_bytes(_self: object, data: bytes, _: Context) -> bytes:
    return data


@failing_cleanly
async def _twice(_self: object, key: types_pb2.Key, context: Context) -> None:
    for _ in range(2):
        await context.write(key)


@pytest_asyncio.fixture
async def channel() -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    parse, serialize = types_pb2.Key.FromString, types_pb2.Key.SerializeToString
    handlers: dict[str, Any] = {
        "One": grpc.unary_unary_rpc_method_handler(partial(_one, None), parse, serialize),
        "SameBytes": grpc.unary_unary_rpc_method_handler(partial(_same_bytes, None)),
        "SerializedAlready": grpc.unary_unary_rpc_method_handler(partial(_same_bytes, None), None, serialize),
        "Twice": grpc.unary_stream_rpc_method_handler(partial(_twice, None), parse, serialize),
    }
    TolerantServer(server).add_registered_method_handlers("test.Service", handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(None)


async def _call(channel: grpc.aio.Channel, method: str, *bodies: bytes) -> list[bytes] | LookupFailure:
    call: Any = channel.stream_stream(f"/test.Service/{method}")(cast("Any", iter(bodies)), timeout=20.0)
    try:
        return [data async for data in call]
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)


@pytest.mark.parametrize(("method", "answers"), [("One", 1), ("SameBytes", 1), ("SerializedAlready", 1), ("Twice", 2)])
async def test_a_request_is_answered_and_none_is_refused(channel: grpc.aio.Channel, method: str, answers: int) -> None:
    body = types_pb2.Key(text="k").SerializeToString()
    assert await _call(channel, method, body) == [body] * answers
    refusal = await _call(channel, method)
    assert isinstance(refusal, LookupFailure)
    assert (refusal.reason, refusal.message) == (
        Reason.INVALID_REQUEST,
        "the call was closed before its request was sent",
    )


@pytest.mark.parametrize("method", ["One", "Twice"])
async def test_what_is_no_message_of_the_method_is_refused(channel: grpc.aio.Channel, method: str) -> None:
    refusal = await _call(channel, method, b"\xff\xff\xff")
    assert isinstance(refusal, LookupFailure)
    assert refusal.reason is Reason.INVALID_REQUEST
    assert "not a message of this method" in refusal.message
