"""Health: the latest word counts, however long an earlier one takes to be told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from statehouse.rpc.server import RpcServer
from statehouse.rpc.serving import ServingStatus
from tests.support.polling import poll_until_async

SERVICE = "statehouse.v1.QueryService"
_SERVING, _NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


class Listener:
    """Takes its time with every word, until the test lets it go on."""

    def __init__(self) -> None:
        self.begun: list[bool] = []
        self.told: list[bool] = []
        self.turn = asyncio.Semaphore(0)

    async def __call__(self, serving: bool) -> None:
        assert len(self.begun) == len(self.told), "one word at a time"
        self.begun.append(serving)
        await self.turn.acquire()
        self.told.append(serving)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([True], [True]),
        ([True, False], [True, False]),
        ([True, False, True], [True]),
        ([True, False, True, False], [True, False]),
        ([True, True], [True]),
    ],
)
async def test_what_comes_while_a_word_is_told_is_told_after_it_if_it_differs(
    words: list[bool], told: list[bool]
) -> None:
    listener = Listener()
    status = ServingStatus(listener)
    status.set(serving=words[0])
    await poll_until_async(lambda: listener.begun, 5, "the first word")
    for word in words[1:]:
        status.set(serving=word)
    for _ in words:
        listener.turn.release()
    await poll_until_async(lambda: listener.told == told, 5, "the words")
    await status.close()
    assert listener.begun == told


async def test_words_are_told_one_by_one_to_who_is_quick() -> None:
    listener = Listener()
    status = ServingStatus(listener)
    for word in (True, False, True):
        before = len(listener.told)
        status.set(serving=word)
        listener.turn.release()
        await poll_until_async(lambda before=before: len(listener.told) > before, 5, "the word")
    assert listener.told == [True, False, True]


async def test_a_word_that_comes_as_the_last_one_has_just_been_told_is_told() -> None:
    told: list[bool] = []

    async def tell(serving: bool) -> None:
        told.append(serving)
        if len(told) == 1:  # between the end of the telling and the loop's noticing it
            asyncio.get_running_loop().call_soon(lambda: status.set(serving=False))

    status = ServingStatus(tell)
    status.set(serving=True)
    await poll_until_async(lambda: told == [True, False], 5, "both words")
    await status.close()


@pytest.fixture
async def server() -> AsyncIterator[RpcServer]:
    built = RpcServer(
        "127.0.0.1:0", (SERVICE,), lambda _server: None, max_message_bytes=1_000_000, proxy=None, proxied={}
    )
    await built.start()
    yield built
    await built.stop(0.0)


async def test_a_server_whose_first_word_is_slow_ends_with_the_latest(
    server: RpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_status, first_is_held = server._health.set, asyncio.Event()
    words: list[tuple[str, int]] = []

    async def set_slowly(service: str, status: int) -> None:
        words.append((service, status))
        if len(words) == 1:
            await first_is_held.wait()
        await set_status(service, status)

    monkeypatch.setattr(server._health, "set", set_slowly)
    server.set_serving(serving=True)
    await poll_until_async(lambda: words, 5, "the first word")
    server.set_serving(serving=False)
    await asyncio.sleep(0)
    first_is_held.set()
    await poll_until_async(lambda: len(words) == 4, 5, "both words for both names")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
            assert answer.status == _NOT_SERVING, service


async def test_a_server_tells_of_itself_what_it_was_told_last(server: RpcServer) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        assert (await stub.Check(request, timeout=5)).status == _NOT_SERVING
        for serving in (True, False, True):
            server.set_serving(serving=not serving)
            server.set_serving(serving=serving)
            wanted = _SERVING if serving else _NOT_SERVING
            assert (await stub.Check(request, timeout=5)).status == wanted
