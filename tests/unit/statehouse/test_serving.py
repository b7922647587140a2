"""Health and reflection: what a server tells of itself, and that no caller can keep others from learning it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.failures import from_rpc_error
from statehouse.rpc.server import RpcServer
from statehouse.settings import RouterSettings
from tests.support.polling import poll_until_async
from tests.support.zero_window import call_and_take_nothing

SERVICE = "statehouse.v1.QueryService"
DEADLINE_S = 10.0
_SERVING, _NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@pytest.fixture
async def server() -> AsyncIterator[RpcServer]:
    built = RpcServer(
        "127.0.0.1:0",
        (SERVICE,),
        lambda _server: None,
        settings=RouterSettings(application_id="tests"),
        proxy=None,
        proxied={},
        max_batch_entries=1_000,
        lasting_calls=0,
        gate=None,
    )
    await built.start()
    yield built
    await built.stop(0.0)


def target(server: RpcServer) -> str:
    return f"127.0.0.1:{server.port}"


@pytest.fixture
async def channel(server: RpcServer) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(target(server)) as channel:
        yield channel


def asked(service: str) -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=service)


async def failure_of(call: Any) -> LookupFailure:
    """Return how a call fails, or a stream with its next answer."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (call.read() if isinstance(call, grpc.aio.Call) and hasattr(call, "read") else call)
    return from_rpc_error(caught.value)


@pytest.mark.feature("getnode-drain-grpc")
async def test_a_server_tells_of_itself_what_it_was_told_last(server: RpcServer, channel: grpc.aio.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", SERVICE):
        assert (await stub.Check(asked(service), timeout=DEADLINE_S)).status == _NOT_SERVING
    for serving in (True, False, True):
        server.health.set(serving=not serving, ready=not serving)
        server.health.set(serving=serving, ready=serving)
        wanted = _SERVING if serving else _NOT_SERVING
        for service in ("", SERVICE):
            assert (await stub.Check(asked(service), timeout=DEADLINE_S)).status == wanted
        listed = await stub.List(health_pb2.HealthListRequest(), timeout=DEADLINE_S)
        assert {name: each.status for name, each in listed.statuses.items()} == {
            "": wanted,
            SERVICE: wanted,
            "readiness": wanted,
            "liveness": _SERVING,
        }


@pytest.mark.feature("startup-readiness-liveness")
async def test_startup_readiness_and_liveness_are_told_apart(server: RpcServer, channel: grpc.aio.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)

    async def told() -> list[bool]:
        answers = [await stub.Check(asked(name), timeout=DEADLINE_S) for name in ("liveness", "", "readiness")]
        return [answer.status == _SERVING for answer in answers]

    assert await told() == [True, False, False]
    server.health.set(serving=True, ready=False)
    assert await told() == [True, True, False], "a node that restores serves, and is alive"
    server.health.set(serving=True, ready=True)
    assert await told() == [True, True, True]


async def test_who_is_about_to_leave_says_so_and_answers_all_the_same(
    server: RpcServer, channel: grpc.aio.Channel
) -> None:
    server.health.set(serving=True, ready=True)
    stub = health_pb2_grpc.HealthStub(channel)
    watch = stub.Watch(asked("readiness"), timeout=DEADLINE_S)
    assert (await watch.read()).status == _SERVING
    server.health.end()
    assert (await watch.read()).status == _NOT_SERVING
    server.health.set(serving=True, ready=True)  # a word that comes too late
    for service, status in (("", _NOT_SERVING), ("readiness", _NOT_SERVING), ("liveness", _SERVING)):
        assert (await stub.Check(asked(service), timeout=DEADLINE_S)).status == status
    watch.cancel()


async def test_a_service_that_is_not_there_is_not_found(channel: grpc.aio.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    assert (await failure_of(stub.Check(asked("nobody's"), timeout=DEADLINE_S))).metadata["grpc_status"] == "NOT_FOUND"
    watch = stub.Watch(asked("nobody's"), timeout=DEADLINE_S)
    assert (await watch.read()).status == _UNKNOWN


async def test_who_watches_learns_of_each_change_and_of_the_end(server: RpcServer, channel: grpc.aio.Channel) -> None:
    watches = [health_pb2_grpc.HealthStub(channel).Watch(asked(name), timeout=DEADLINE_S) for name in ("", SERVICE)]

    async def told() -> list[int]:
        return [(await watch.read()).status for watch in watches]

    assert await told() == [_NOT_SERVING] * 2
    for serving in (True, False, True):
        server.health.set(serving=serving, ready=serving)
        assert await told() == [_SERVING if serving else _NOT_SERVING] * 2
    stopping = asyncio.create_task(server.stop(DEADLINE_S))
    assert await told() == [_NOT_SERVING] * 2
    server.health.set(serving=True, ready=True)  # a word that comes too late
    for watch in watches:
        watch.cancel()
    await stopping


async def test_a_watcher_who_takes_nothing_holds_nobody_up(server: RpcServer, channel: grpc.aio.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    with call_and_take_nothing(target(server), "/grpc.health.v1.Health/Watch", b""):
        await poll_until_async(lambda: server.health.watches.open == 1, DEADLINE_S, "the watch")
        server.health.set(serving=True, ready=True)
        assert (await stub.Check(asked(""), timeout=DEADLINE_S)).status == _SERVING
        watch = stub.Watch(asked(""), timeout=DEADLINE_S)
        assert (await watch.read()).status == _SERVING
        watch.cancel()
        async with asyncio.timeout(DEADLINE_S):
            await server.stop(0.1)


async def test_watches_of_the_health_are_bounded(server: RpcServer, channel: grpc.aio.Channel) -> None:
    server.health.watches.limit = 2
    stub = health_pb2_grpc.HealthStub(channel)
    open_watches = [stub.Watch(asked(""), timeout=DEADLINE_S) for _ in range(2)]
    for watch in open_watches:
        await watch.read()
    assert (await failure_of(stub.Watch(asked(""), timeout=DEADLINE_S))).reason is Reason.OVERLOADED
    assert (await stub.Check(asked(""), timeout=DEADLINE_S)).status == _NOT_SERVING
    open_watches[0].cancel()
    await poll_until_async(lambda: server.health.watches.open == 1, DEADLINE_S, "the place to be free")
    assert (await stub.Watch(asked(""), timeout=DEADLINE_S).read()).status == _NOT_SERVING


async def test_a_long_name_is_not_kept(channel: grpc.aio.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    long = asked("x" * 100_000)
    for call in (stub.Watch(long, timeout=DEADLINE_S), stub.Check(long, timeout=DEADLINE_S)):
        assert (await failure_of(call)).reason is Reason.INVALID_REQUEST


def listing() -> reflection_pb2.ServerReflectionRequest:
    return reflection_pb2.ServerReflectionRequest(list_services="")


@asynccontextmanager
async def talking(channel: grpc.aio.Channel) -> AsyncIterator[Any]:
    talk = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(timeout=DEADLINE_S)
    try:
        yield talk
    finally:
        talk.cancel()


async def test_streams_of_reflection_are_bounded(server: RpcServer, channel: grpc.aio.Channel) -> None:
    server.reflection.streams.limit = 1

    async def listed(talk: Any) -> list[str]:
        await talk.write(listing())
        return [each.name for each in (await talk.read()).list_services_response.service]

    async with talking(channel) as first:
        assert SERVICE in await listed(first)
        async with talking(channel) as second:
            assert (await failure_of(second)).reason is Reason.OVERLOADED
        assert SERVICE in await listed(first)
    await poll_until_async(lambda: server.reflection.streams.open == 0, DEADLINE_S, "the place to be free")
    async with talking(channel) as third:
        assert SERVICE in await listed(third)


async def test_a_long_question_to_reflection_is_refused(channel: grpc.aio.Channel) -> None:
    async with talking(channel) as talk:
        await talk.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol="x" * 100_000))
        assert (await failure_of(talk)).reason is Reason.INVALID_REQUEST
