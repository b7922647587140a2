"""The server's end of the link to its proxy, against the other end played by hand."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from unittest.mock import Mock

import grpc
import pytest
from google.rpc import code_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from statehouse.errors import EngineError, LookupFailure, Reason
from statehouse.rpc.failures import from_rpc_error, from_status
from statehouse.rpc.link import CallFailed, FromProxy, Link, LinkContext, ToProxy
from statehouse.rpc.status import to_status
from tests.support.panic import Panic

_HEAD = struct.Struct(">IBQ")
_NO_DEADLINE = 0xFFFF_FFFF


def from_proxy(kind: FromProxy, number: int, content: bytes = b"") -> bytes:
    return _HEAD.pack(_HEAD.size - 4 + len(content), kind, number) + content


def lookup(number: int, request: bytes, timeout_ms: int = _NO_DEADLINE, kind: FromProxy = FromProxy.GET) -> bytes:
    return from_proxy(kind, number, struct.pack(">I", timeout_ms) + request)


@dataclass
class OtherEnd:
    """A proxy's end of a link, and what the server's handlers were asked."""

    link: Link
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    asked: list[tuple[str, bytes, float | None]] = field(default_factory=list)
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    async def frame(self) -> tuple[ToProxy, int, bytes]:
        async with asyncio.timeout(10):
            length, kind, number = _HEAD.unpack(await self.reader.readexactly(_HEAD.size))
            return ToProxy(kind), number, await self.reader.readexactly(length - 9)


@asynccontextmanager
async def linked() -> AsyncIterator[OtherEnd]:
    """Link to a server whose Get answers at once with the request reversed, and whose BatchGet does so when it is told.

    A request b"no" is refused, b"defect" a defect, b"wait" never answered.
    """
    ours, its = socket.socketpair()
    end: OtherEnd

    def get(request: bytes, context: LinkContext) -> bytes:
        end.asked.append(("Get", request, context.time_remaining()))
        if request == b"no":
            raise LookupFailure(Reason.UNKNOWN_STORE, "no such store", {"store": "s"})
        if request == b"defect":
            raise ZeroDivisionError
        if request == b"panic":
            raise Panic("index out of bounds")
        return request[::-1]

    def batch_get(request: bytes, context: LinkContext) -> Awaitable[bytes]:
        async def later() -> bytes:
            end.asked.append(("BatchGet", request, context.time_remaining()))
            await (asyncio.Event().wait() if request == b"wait" else asyncio.sleep(0))
            return get(request, context)

        return later()

    reader, writer = await asyncio.open_unix_connection(sock=its)
    lost = asyncio.Event()
    ours.setblocking(False)
    _, link = await asyncio.get_running_loop().create_unix_connection(
        lambda: Link({"Get": get, "BatchGet": batch_get}, lost.set), sock=ours
    )
    end = OtherEnd(link, reader, writer, lost=lost)
    try:
        yield end
    finally:
        link.close()
        writer.close()


async def test_lookups_are_answered_under_their_numbers() -> None:
    async with linked() as end:
        end.writer.write(lookup(7, b"wait", kind=FromProxy.BATCH_GET) + lookup(8, b"abc") + lookup(9, b"de", 1_500))
        assert await end.frame() == (ToProxy.ANSWER, 8, b"cba")
        assert await end.frame() == (ToProxy.ANSWER, 9, b"ed")
        end.writer.write(lookup(10, b"fg", kind=FromProxy.BATCH_GET))
        assert await end.frame() == (ToProxy.ANSWER, 10, b"gf")
        assert end.asked[0] == ("Get", b"abc", None)
        (_, request, remaining_s) = end.asked[1]
        assert request == b"de"
        assert remaining_s == pytest.approx(1.5, abs=0.1)


@pytest.mark.parametrize("kind", [FromProxy.GET, FromProxy.BATCH_GET])
async def test_a_refusal_and_a_defect_are_told_as_grpc_tells_them(
    kind: FromProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = Mock()
    monkeypatch.setattr("statehouse.rpc.status.log", logged)
    async with linked() as end:
        end.writer.write(lookup(1, b"no", kind=kind))
        told, number, content = await end.frame()
        assert (told, number) == (ToProxy.FAILURE, 1)
        failure = from_status(grpc.StatusCode.NOT_FOUND, "", content)
        assert (failure.reason, failure.message) == (Reason.UNKNOWN_STORE, "no such store")
        end.writer.write(lookup(2, b"defect", kind=kind))
        _, _, content = await end.frame()
        assert from_status(grpc.StatusCode.INTERNAL, "", content).reason is Reason.INTERNAL
        end.writer.write(lookup(3, b"panic", kind=kind))
        _, _, content = await end.frame()
        assert from_status(grpc.StatusCode.INTERNAL, "", content).reason is Reason.INTERNAL
        defects = [type(call.kwargs["exc_info"]) for call in logged.error.call_args_list]
        assert defects == [ZeroDivisionError, EngineError]


async def test_nobody_works_on_for_a_caller_who_has_left() -> None:
    async with linked() as end:
        end.writer.write(lookup(1, b"wait", kind=FromProxy.BATCH_GET) + from_proxy(FromProxy.LEFT, 1))
        end.writer.write(from_proxy(FromProxy.LEFT, 5) + lookup(2, b"ab"))
        assert await end.frame() == (ToProxy.ANSWER, 2, b"ba")
        assert not end.link._tasks


@given(st.data())
def test_frames_arrive_however_the_stream_is_cut(data: st.DataObject) -> None:
    requests = data.draw(st.lists(st.binary(max_size=40), max_size=8))
    stream = b"".join(lookup(number, request) for number, request in enumerate(requests))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))

    async def play() -> list[bytes]:
        async with linked() as end:
            for begin, until in zip([0, *cuts], [*cuts, len(stream)], strict=True):
                end.link.data_received(stream[begin:until])
            return [request for _, request, _ in end.asked]

    assert asyncio.run(play()) == requests


async def test_calls_are_made_by_the_proxy() -> None:
    async with linked() as end:
        calls = [
            asyncio.ensure_future(end.link.call("host:1", "/a.Service/Method", request, 1.5))
            for request in (b"x", b"y", b"z")
        ]
        made = [await end.frame() for _ in calls]
        wanted = struct.pack(">I", 1_500) + b"\x06host:1" + b"\x11/a.Service/Method"
        assert [(kind, content) for kind, _, content in made] == [
            (ToProxy.CALL, wanted + each) for each in (b"x", b"y", b"z")
        ]
        (_, first, _), (_, second, _), (_, third, _) = made
        status = to_status(LookupFailure(Reason.PARTITION_RESTORING, "not yet"))
        end.writer.write(from_proxy(FromProxy.CALL_FAILED, second, status.SerializeToString()))
        end.writer.write(from_proxy(FromProxy.CALLED, first, b"answer"))
        assert await calls[0] == b"answer"
        with pytest.raises(CallFailed) as failed:
            await calls[1]
        assert failed.value.code().value[0] == status.code
        assert from_rpc_error(failed.value).reason is Reason.PARTITION_RESTORING

        calls[2].cancel()
        assert await end.frame() == (ToProxy.LEAVE, third, b"")
        end.writer.write(from_proxy(FromProxy.CALLED, third, b"late"))
        end.link.drop("host:1", 0.25)
        assert await end.frame() == (ToProxy.DROP, 0, struct.pack(">I", 250) + b"host:1")


async def test_without_the_proxy_calls_fail_and_the_server_hears_of_it() -> None:
    async with linked() as end:
        call = asyncio.ensure_future(end.link.call("host:1", "/a.Service/Method", b"", 5.0))
        await end.frame()
        end.writer.write(lookup(1, b"wait", kind=FromProxy.BATCH_GET))
        end.writer.close()
        with pytest.raises(CallFailed) as failed:
            await call
        assert from_rpc_error(failed.value).reason is Reason.UNREACHABLE
        async with asyncio.timeout(10):
            await end.lost.wait()
        with pytest.raises(CallFailed):
            await end.link.call("host:1", "/a.Service/Method", b"", 5.0)


def test_a_failed_call_has_what_grpcio_has() -> None:
    failed = CallFailed(status_pb2.Status(code=code_pb2.DEADLINE_EXCEEDED, message="late"))
    assert (failed.code(), failed.details()) == (grpc.StatusCode.DEADLINE_EXCEEDED, "late")
    assert from_rpc_error(failed).reason is Reason.ATTEMPT_TIMED_OUT
