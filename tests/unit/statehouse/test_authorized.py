"""Calls are admitted before anything is done for them; streams again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import pytest

from statehouse.errors import LookupFailure, Reason
from statehouse.rpc import authorized
from statehouse.rpc.authorized import ADDRESS_KEY, AuthorizedServer, address_of, asked_again
from statehouse.rpc.requests import GrpcHandler
from statehouse.security.shown import NOTHING_SHOWN, Shown
from tests.support.polling import poll_until_async


class Registered:
    """A server that keeps what is added to it."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {}

    def add_registered_method_handlers(self, _service: str, handlers: Mapping[str, GrpcHandler]) -> None:
        self.handlers |= handlers

    def add_generic_rpc_handlers(self, _handlers: object) -> None:
        """Nothing is added in this way."""


async def stream(_request: object, _context: object) -> None:
    await poll_until_async(lambda: len(asked) >= 3, 10.0, "the right to be asked for again")


async def conversation(requests: AsyncIterator[str], _context: object) -> AsyncIterator[str]:
    async for request in requests:
        yield request


async def call(request: str, _context: object) -> str:
    return request


async def late(_request: str, _context: object) -> str:
    await asyncio.sleep(0.01)
    return "late"


class Told:
    """A call's context, which ends with the status that it gets."""

    def __init__(self) -> None:
        self.order: list[str] = []

    async def abort_with_status(self, _status: object) -> None:
        self.order.append("call ended")
        raise grpc.aio.AbortError


async def endless(_request: object, context: Told) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        context.order.append("work ended")


asked: list[bool] = []
refusing: list[LookupFailure] = []


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(authorized, "ASKED_AGAIN_S", 0.001)
    asked.clear()
    server = Registered()

    def admit(_method: str, _request: object, _shown: Shown, *, again: bool = False) -> None:
        asked.append(again)
        if again and refusing:
            raise refusing.pop()

    AuthorizedServer(server, admit, lambda _context: NOTHING_SHOWN).add_registered_method_handlers(
        "tests.Service",
        {
            "Stream": grpc.unary_stream_rpc_method_handler(stream),
            "Talk": grpc.stream_stream_rpc_method_handler(conversation),
            "Endless": grpc.unary_stream_rpc_method_handler(endless),
            "Late": grpc.unary_unary_rpc_method_handler(late),
            "Call": grpc.unary_unary_rpc_method_handler(call),
        },
    )
    return server.handlers


async def test_a_stream_is_admitted_once_and_then_again(handlers: dict[str, Any]) -> None:
    await handlers["Stream"].unary_stream("request", None)
    assert asked[:3] == [False, True, True]


async def test_so_is_a_conversation_with_each_response(handlers: dict[str, Any]) -> None:
    async def requests() -> AsyncIterator[str]:
        yield "a"
        yield "b"

    assert [each async for each in handlers["Talk"].stream_stream(requests(), None)] == ["a", "b"]
    assert asked == [False, True, True]


async def test_a_call_whose_answer_takes_long_is_admitted_again_before_it_is_given(handlers: dict[str, Any]) -> None:
    assert await handlers["Late"].unary_unary("request", None) == "late"
    assert asked == [False, True]

    def refuse() -> None:
        raise LookupFailure(Reason.UNAUTHENTICATED, "lost it meanwhile")

    assert await asked_again(answered(0.0), refuse) == b"answer"
    with pytest.raises(LookupFailure, match="lost it"):
        await asked_again(answered(0.01), refuse)


async def answered(after_s: float) -> bytes:
    await asyncio.sleep(after_s)
    return b"answer"


async def test_work_of_a_stream_has_ended_before_its_refusal_is_told(handlers: dict[str, Any]) -> None:
    told = Told()
    refusing.append(LookupFailure(Reason.UNAUTHENTICATED, "lost it"))
    with pytest.raises(grpc.aio.AbortError):
        await handlers["Endless"].unary_stream("request", told)
    assert told.order == ["work ended", "call ended"]


async def test_a_call_is_admitted_once(handlers: dict[str, Any]) -> None:
    assert await handlers["Call"].unary_unary("request", None) == "request"
    assert asked == [False]


class Called:
    """A call's context: where it comes from, and what its caller says of that."""

    def __init__(self, peer: str, said: str | None = None) -> None:
        self._peer, self._said = peer, said

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return () if self._said is None else ((ADDRESS_KEY, self._said),)


@pytest.mark.parametrize(
    ("peer", "said", "address"),
    [
        ("ipv4:10.0.0.1:40000", None, "10.0.0.1"),
        ("ipv4:10.0.0.1:40000", "10.9.9.9", "10.0.0.1"),
        ("ipv6:%5B2001:db8::1%5D:40000", "10.9.9.9", "2001:db8::1"),
        ("unix:", "10.0.0.1", "10.0.0.1"),
        ("unix:/run/proxy", "2001:db8::1", "2001:db8::1"),
        ("unix:", None, ""),
    ],
)
def test_only_the_proxy_says_where_a_call_comes_from(peer: str, said: str | None, address: str) -> None:
    context: Any = Called(peer, said)
    assert address_of(context) == address
