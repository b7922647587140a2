"""The link between a server and its proxy: one socket that carries calls from both ends, many at a time.

The proxy passes on lookups for the server to answer, and makes calls to other servers for it.

A frame has the length of the rest (4 bytes), its kind (1 byte), a call's number (8 bytes) and a content; numbers are
big-endian. The other end is `proxy/link.go`.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import grpc
from google.rpc import code_pb2, status_pb2

from statehouse.background import as_error
from statehouse.rpc.failures import DETAILS_KEY
from statehouse.rpc.status import told

_HEAD: Final = struct.Struct(">IBQ")
_LENGTH_BYTES: Final = 4
_TIME: Final = struct.Struct(">I")
_NO_DEADLINE: Final = 0xFFFF_FFFF
# A proxy that takes nothing: it has as much for calls that nobody reads (proxy/link.go).
_UNSENT_MAX: Final = 64 * 1024 * 1024
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class FromProxy(IntEnum):
    """Kinds of frames that the proxy sends. A lookup's content is its timeout in ms (4 bytes) and the request."""

    LISTENING = 1
    """The number is the port."""
    CANT_LISTEN = 2
    """The content says why."""
    GET = 3
    BATCH_GET = 4
    LEFT = 5
    """The caller has left."""
    CALLED = 6
    """The answer to a call that the server made."""
    CALL_FAILED = 7
    """A call that the server made has failed; the content is a serialized google.rpc.Status."""


class ToProxy(IntEnum):
    """Kinds of frames that the proxy receives."""

    SERVE = 1
    STOP = 2
    ANSWER = 3
    FAILURE = 4
    """The content is a serialized google.rpc.Status."""
    CALL = 5
    """Make a call. Content: timeout in ms (4 bytes), address and method (each after its length, 1 byte), request."""
    LEAVE = 6
    """Nobody waits for that call of the server any more."""
    DROP = 7
    """Use a new connection to an address. Content: ms that calls on the old one may go on (4 bytes), address."""


CALLS: Final = {FromProxy.GET: "Get", FromProxy.BATCH_GET: "BatchGet"}


@dataclass(frozen=True, slots=True)
class LinkContext:
    """The context of a call over the link, in place of gRPC's. `until`: the caller's deadline, in the loop's time."""

    until: float | None

    def time_remaining(self) -> float | None:
        """Return the seconds left, None if the caller set no deadline."""
        return None if self.until is None else self.until - asyncio.get_running_loop().time()


LinkHandler = Callable[[bytes, LinkContext], bytes | Awaitable[bytes]]
"""Answers a serialized request, at once or with an awaitable; either may raise what gRPC handlers may raise."""


class CallFailed(grpc.RpcError):
    """A call to another server failed. Has the methods of grpcio's errors."""

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self._status = status

    def code(self) -> grpc.StatusCode:
        """Return the status code."""
        return _CODES[self._status.code]

    def details(self) -> str:
        """Return the message."""
        return str(self._status.message)

    def trailing_metadata(self) -> Any:  # noqa: ANN401 - as grpcio's stubs have it it would be a class of its own
        """Return the rich status."""
        return ((DETAILS_KEY, self._status.SerializeToString()),)


def frame(kind: ToProxy, number: int = 0, content: bytes = b"") -> bytes:
    """Return a frame."""
    return _HEAD.pack(_HEAD.size - _LENGTH_BYTES + len(content), kind, number) + content


def first_frame(receive: Callable[[int], bytes]) -> tuple[FromProxy, int, bytes]:
    """Return kind, number and content of a proxy's first frame; `receive(n)` returns at most n bytes.

    Raises:
        EOFError: the proxy sent none.

    """

    def exactly(size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = receive(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    length, kind, number = _HEAD.unpack(exactly(_HEAD.size))
    return FromProxy(kind), number, exactly(length - (_HEAD.size - _LENGTH_BYTES))


class Link(asyncio.Protocol):
    """The server's end. Lives on the event loop. `on_lost()` is called when the proxy's end is gone.

    `handlers`: by the names in `CALLS`.
    """

    def __init__(self, handlers: Mapping[str, LinkHandler], on_lost: Callable[[], None]) -> None:
        self._handlers = {int(kind): (name, handlers[name]) for kind, name in CALLS.items()}
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._received = bytearray()
        self._out: list[bytes] = []
        self._tasks: dict[int, asyncio.Future[bytes]] = {}
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._numbers = itertools.count(1)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - made of a stream socket
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - why does not matter
        """See asyncio. The callers have lost their connections, too."""
        for task in self._tasks.values():
            task.cancel()
        for call in self._calls.values():
            if not call.done():
                call.set_exception(_unavailable())
        self._on_lost()

    def pause_writing(self) -> None:
        """See asyncio: the proxy reads too slowly, so no more of its calls are read."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """See asyncio."""
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        received = self._received
        received += data
        at, end = 0, len(received)
        while end - at >= _HEAD.size:
            length, kind, number = _HEAD.unpack_from(received, at)
            next_at = at + _LENGTH_BYTES + length
            if next_at > end:
                break
            self._take(kind, number, bytes(received[at + _HEAD.size : next_at]))
            at = next_at
        del received[:at]

    async def call(self, target: str, path: str, request: bytes, timeout_s: float) -> bytes:
        """Let the proxy call another server's method, by its path; return the serialized answer.

        Raises:
            CallFailed: the call failed.

        """
        if self._transport.is_closing() or self._transport.get_write_buffer_size() > _UNSENT_MAX:
            raise _unavailable()
        number = next(self._numbers)
        timeout_ms = min(math.ceil(timeout_s * 1_000), _NO_DEADLINE)
        where = b"".join((_TIME.pack(timeout_ms), _short(target), _short(path), request))
        done: asyncio.Future[bytes] = self._loop.create_future()
        self._calls[number] = done
        self.send(ToProxy.CALL, number, where)
        try:
            return await done
        except asyncio.CancelledError:
            self.send(ToProxy.LEAVE, number)
            raise
        finally:
            del self._calls[number]

    def drop(self, target: str, grace_s: float) -> None:
        """Use a new connection for further calls to an address; those under way may go on for `grace_s` seconds."""
        self.send(ToProxy.DROP, 0, _TIME.pack(round(grace_s * 1_000)) + target.encode())

    def close(self) -> None:
        """Drop the connection."""
        self._transport.abort()

    def send(self, kind: ToProxy, number: int = 0, content: bytes = b"") -> None:
        """Send a frame, in one write with the others of this turn of the loop."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(frame(kind, number, content))

    def _flush(self) -> None:
        out, self._out = self._out, []
        if not self._transport.is_closing():
            self._transport.write(b"".join(out))

    def _take(self, kind: int, number: int, content: bytes) -> None:
        if kind in self._handlers:
            self._begin(*self._handlers[kind], number, content)
        elif kind == FromProxy.LEFT:
            if (task := self._tasks.get(number)) is not None:
                task.cancel()
        elif (call := self._calls.get(number)) is not None and not call.done():  # else nobody waits for it
            if kind == FromProxy.CALLED:
                call.set_result(content)
            else:
                call.set_exception(CallFailed(status_pb2.Status.FromString(content)))

    def _begin(self, name: str, handler: LinkHandler, number: int, content: bytes) -> None:
        """Answer a call."""
        (timeout_ms,) = _TIME.unpack_from(content)
        remaining = LinkContext(None if timeout_ms == _NO_DEADLINE else self._loop.time() + timeout_ms / 1_000)
        try:
            answer = handler(content[_TIME.size :], remaining)
        except BaseException as caught:  # noqa: BLE001 - the caller learns of it, and the log has it
            self._fail(name, number, as_error(caught))
            return
        if isinstance(answer, bytes):
            self.send(ToProxy.ANSWER, number, answer)
            return
        task = self._tasks[number] = asyncio.ensure_future(answer)
        task.add_done_callback(lambda done: self._done(name, number, done))

    def _done(self, name: str, number: int, task: asyncio.Future[bytes]) -> None:
        del self._tasks[number]
        if task.cancelled():
            return  # nobody waits for it
        if (error := task.exception()) is None:
            self.send(ToProxy.ANSWER, number, task.result())
        else:
            self._fail(name, number, as_error(error))

    def _fail(self, name: str, number: int, error: Exception) -> None:
        self.send(ToProxy.FAILURE, number, told(name, error).SerializeToString())


def _short(text: str) -> bytes:
    """Return a text of at most 255 bytes, preceded by its length."""
    data = text.encode()
    return bytes((len(data),)) + data


def _unavailable() -> CallFailed:
    return CallFailed(status_pb2.Status(code=code_pb2.UNAVAILABLE, message="the proxy is gone"))
