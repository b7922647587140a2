"""Calls whose request can't be read, or never comes: refused immediately, like any other wrong request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, cast

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.failures import from_rpc_error
from statehouse.rpc.requests import TolerantServer
from statehouse.rpc.server import RpcServer
from statehouse.rpc.status import Context, failing_cleanly
from statehouse.serdes.wire import LOOKUP_BYTES_MAX
from statehouse.settings import RouterSettings
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
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 4 * LOOKUP_BYTES_MAX)])
    parse, serialize = types_pb2.Key.FromString, types_pb2.Key.SerializeToString
    handlers: dict[str, Any] = {
        "One": grpc.unary_unary_rpc_method_handler(partial(_one, None), parse, serialize),
        "SameBytes": grpc.unary_unary_rpc_method_handler(partial(_same_bytes, None)),
        "SerializedAlready": grpc.unary_unary_rpc_method_handler(partial(_same_bytes, None), None, serialize),
        "Twice": grpc.unary_stream_rpc_method_handler(partial(_twice, None), parse, serialize),
        "BatchGet": grpc.unary_unary_rpc_method_handler(partial(_same_bytes, None)),
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


@pytest.mark.parametrize("method", ["One", "SameBytes", "Twice"])
async def test_what_is_larger_than_any_lookup_is_refused_unread(channel: grpc.aio.Channel, method: str) -> None:
    """Many requests are kept for as long as their callers wait."""
    head = len(types_pb2.Key(raw=bytes(LOOKUP_BYTES_MAX // 2)).SerializeToString()) - LOOKUP_BYTES_MAX // 2
    largest = types_pb2.Key(raw=bytes(LOOKUP_BYTES_MAX - head)).SerializeToString()
    assert len(largest) == LOOKUP_BYTES_MAX
    assert await _call(channel, method, largest) in ([largest], [largest] * 2)
    refusal = await _call(channel, method, largest + b"\xff")
    assert isinstance(refusal, LookupFailure)
    assert refusal.reason is Reason.INVALID_REQUEST
    assert "a request of 1,048,577 bytes: at most 1,048,576 are taken" in refusal.message


async def test_batches_may_be_larger(channel: grpc.aio.Channel) -> None:
    data = bytes(2 * LOOKUP_BYTES_MAX)
    assert await _call(channel, "BatchGet", data) == [data]


async def test_health_and_reflection_take_names_only() -> None:
    """A caller that watches a server's health stays for long, and so does what it has sent."""
    server = RpcServer(
        "127.0.0.1:0",
        ("test.Service",),
        lambda _: None,
        settings=RouterSettings(application_id="tests", max_message_bytes=4 * LOOKUP_BYTES_MAX),
        proxy=None,
        proxied={},
        max_batch_entries=1_000,
        lasting_calls=0,
        gate=None,
    )
    await server.start()
    long = "x" * 5_000
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as at:
        health = health_pb2_grpc.HealthStub(at)
        reflection = reflection_pb2_grpc.ServerReflectionStub(at)

        def asked(name: str) -> Any:
            return reflection.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services=name)]))

        assert (await health.Check(health_pb2.HealthCheckRequest(service="test.Service"))).status
        assert (await anext(aiter(health.Watch(health_pb2.HealthCheckRequest(service="test.Service"))))).status
        assert (await anext(aiter(asked("")))).list_services_response.service
        refused: list[Any] = [
            health.Check(health_pb2.HealthCheckRequest(service=long)),
            anext(aiter(health.Watch(health_pb2.HealthCheckRequest(service=long)))),
            anext(aiter(asked(long))),
        ]
        for call in refused:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asyncio.wait_for(call, 10)
            assert from_rpc_error(caught.value).reason is Reason.INVALID_REQUEST
    await server.stop(0.0)
