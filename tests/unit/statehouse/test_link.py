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
from statehouse.errors.statuses import to_status
from statehouse.link.link import CALLS, CallFailed, FromProxy, Link, LinkContext, LinkHandler, ToProxy
from statehouse.rpc.failures import from_rpc_error, from_status
from statehouse.security.shown import NOTHING_SHOWN, Shown
from tests.support.panic import Panic

_HEAD = struct.Struct(">IBQ")
_NO_DEADLINE = 0xFFFF_FFFF


def from_proxy(kind: FromProxy, number: int, content: bytes = b"") -> bytes:
    return _HEAD.pack(_HEAD.size - 4 + len(content), kind, number) + content


def lookup(
    number: int,
    request: bytes,
    timeout_ms: int = _NO_DEADLINE,
    kind: FromProxy = FromProxy.GET,
    caller: int = 0,
) -> bytes:
    return from_proxy(kind, number, struct.pack(">IQI", timeout_ms, caller, 0) + request)


@dataclass
class OtherEnd:
    """A proxy's end of a link, and what the server's handlers were asked."""

    link: Link
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    asked: list[tuple[str, bytes, float | None]] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    async def frame(self) -> tuple[ToProxy, int, bytes]:
        async with asyncio.timeout(10):
            length, kind, number = _HEAD.unpack(await self.reader.readexactly(_HEAD.size))
            return ToProxy(kind), number, await self.reader.readexactly(length - 9)


@asynccontextmanager
async def linked() -> AsyncIterator[OtherEnd]:
    """Link to a server: Get answers immediately with the request reversed, BatchGet does so when a test lets it.

    A request b"no" is refused, b"defect" a defect, b"wait" never answered.
    """
    ours, its = socket.socketpair()
    end: OtherEnd

    def get(request: bytes, context: LinkContext) -> bytes:
        end.asked.append(("Get", request, context.time_remaining()))
        end.shown.append(context.shown)
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

    def check_beginning(beginning: bytes) -> None:
        if beginning.startswith(b"too"):
            raise LookupFailure(Reason.INVALID_REQUEST, "too long")

    handlers: dict[str, LinkHandler] = dict.fromkeys(CALLS.values(), get)
    handlers |= {"BatchGet": batch_get, "Scan": batch_get}
    reader, writer = await asyncio.open_unix_connection(sock=its)
    lost = asyncio.Event()
    ours.setblocking(False)
    _, link = await asyncio.get_running_loop().create_unix_connection(
        lambda: Link(handlers, check_beginning, lost.set), sock=ours
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
        for number, kind in enumerate((FromProxy.SCAN, FromProxy.SCAN_WINDOWS, FromProxy.SCAN_SESSIONS), 11):
            end.writer.write(lookup(number, b"hi", kind=kind))
            assert await end.frame() == (ToProxy.ANSWER, number, b"ih")
        assert end.asked[0] == ("Get", b"abc", None)
        (_, request, remaining_s) = end.asked[1]
        assert request == b"de"
        assert remaining_s == pytest.approx(1.5, abs=0.1)


async def test_the_newest_sums_of_the_proxy_are_kept() -> None:
    async with linked() as end:
        assert end.link.proxy_sums == b""
        end.writer.write(from_proxy(FromProxy.PROXY_SUMS, 0, b"old") + from_proxy(FromProxy.PROXY_SUMS, 0, b"new"))
        end.writer.write(lookup(8, b"abc"))
        assert await end.frame() == (ToProxy.ANSWER, 8, b"cba")
        assert end.link.proxy_sums == b"new"


@pytest.mark.parametrize("kind", [FromProxy.GET, FromProxy.BATCH_GET])
async def test_a_refusal_and_a_defect_are_told_as_grpc_tells_them(
    kind: FromProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged = Mock()
    monkeypatch.setattr("statehouse.errors.statuses.log", logged)
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


async def test_a_huge_request_comes_in_parts_with_others_between() -> None:
    async with linked() as end:
        end.writer.write(from_proxy(FromProxy.PART, 1, b"ab") + lookup(2, b"xy") + from_proxy(FromProxy.PART, 1, b"cd"))
        assert await end.frame() == (ToProxy.ANSWER, 2, b"yx")
        end.writer.write(from_proxy(FromProxy.PART, 3, b"given up") + from_proxy(FromProxy.LEFT, 3))
        end.writer.write(lookup(1, b"e"))
        assert await end.frame() == (ToProxy.ANSWER, 1, b"edcba")
        assert not end.link._parts


@pytest.mark.parametrize("end_of_it", [from_proxy(FromProxy.LEFT, 1), lookup(1, b"end", kind=FromProxy.BATCH_GET)])
async def test_a_huge_request_is_refused_by_its_beginning_and_once(end_of_it: bytes) -> None:
    async with linked() as end:
        end.writer.write(from_proxy(FromProxy.PART, 1, b"too much"))
        told, number, content = await end.frame()
        assert (told, number) == (ToProxy.FAILURE, 1)
        assert from_status(grpc.StatusCode.INVALID_ARGUMENT, "", content).reason is Reason.INVALID_REQUEST
        end.writer.write(from_proxy(FromProxy.PART, 1, b"too much, still") + end_of_it + lookup(2, b"xy"))
        assert await end.frame() == (ToProxy.ANSWER, 2, b"yx")
        assert not end.link._parts


def caller(number: int, shown: Shown) -> bytes:
    address, authorization = shown.address.encode(), shown.authorization.encode("latin-1")
    parts = (bytes((len(address),)), address, struct.pack(">H", len(authorization)), authorization, shown.certificate)
    return from_proxy(FromProxy.CALLER, number, b"".join(parts))


async def test_callers_are_known_from_when_they_are_shown_until_they_are_gone() -> None:
    async with linked() as end:
        first, second = Shown(b"der", "Bearer a", "10.0.0.1"), Shown(b"der", "", "10.0.0.1")
        end.writer.write(caller(1, first) + lookup(1, b"a", caller=1) + caller(2, second) + lookup(2, b"b", caller=2))
        end.writer.write(lookup(3, b"c", caller=1) + lookup(4, b"d"))
        for _ in range(4):
            await end.frame()
        assert end.shown == [first, second, first, NOTHING_SHOWN]
        assert end.shown[0] is end.shown[2], "who judges it may keep what they found"
        assert end.shown[3] is NOTHING_SHOWN
        end.writer.write(from_proxy(FromProxy.CALLER_GONE, 1) + lookup(5, b"e", caller=2))
        await end.frame()
        assert end.link.callers == {0: NOTHING_SHOWN, 2: second}


@given(
    st.builds(
        Shown,
        st.binary(max_size=3_000),
        st.text(st.characters(max_codepoint=255), max_size=0xFFFF),
        st.ip_addresses().map(str),
    )
)
def test_what_is_shown_arrives_as_it_is(shown: Shown) -> None:
    async def play() -> Shown:
        async with linked() as end:
            end.link.data_received(caller(9, shown) + lookup(1, b"a", caller=9))
            return end.shown[0]

    assert asyncio.run(play()) == shown


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(_HEAD.pack(9, 77, 1), id="a kind that there is not"),
        pytest.param(from_proxy(FromProxy.LISTENING, 7100), id="one that comes before all others"),
        pytest.param(lookup(1, b"a", caller=5), id="a caller of whom nothing is known"),
    ],
)
async def test_a_proxy_that_sends_what_it_should_not_is_broken_off(data: bytes) -> None:
    async with linked() as end:
        call = asyncio.ensure_future(end.link.call("host:1", "/a.Service/Method", b"", 5.0))
        _, number, _ = await end.frame()
        end.writer.write(data[:5] + struct.pack(">Q", number) + data[13:])
        with pytest.raises(CallFailed) as failed:
            await call
        assert from_rpc_error(failed.value).reason is Reason.UNREACHABLE
        async with asyncio.timeout(10):
            await end.lost.wait()
        assert not end.asked


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
