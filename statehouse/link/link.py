"""The link between a server and its proxy: one socket that carries calls from both ends, many at a time.

The proxy passes on reads for the server to answer, and makes calls to other servers for it.

A frame has the length of the rest (4 bytes), its kind (1 byte), a call's number (8 bytes) and a content; numbers are
big-endian. The other end is `dataplane/link.go`.
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
import structlog
from google.rpc import code_pb2, status_pb2

from statehouse.errors import DETAILS_KEY, LookupFailure
from statehouse.errors.statuses import told
from statehouse.link.handed import HandedCalls, HandedLookup
from statehouse.runtime.background import as_error
from statehouse.security.shown import NOTHING_SHOWN, Shown

log = structlog.get_logger(__name__)

VERSION: Final = bytes((13,))
"""The link's version. Each end gives its own in its first frame; ends of two versions do not talk."""
_HEAD: Final = struct.Struct(">IBQ")
_LENGTH_BYTES: Final = 4
_TIME: Final = struct.Struct(">I")
# What a call has: its timeout, its caller's number, and how many lookups are under way elsewhere.
_LOOKUP: Final = struct.Struct(">IQI")
# What a call that is handed over has: its kind, and how long what is known of it is.
_HANDED: Final = struct.Struct(">BI")
_MOMENT: Final = struct.Struct(">q")
_AUTHORIZATION_LENGTH: Final = struct.Struct(">H")
_NO_DEADLINE: Final = 0xFFFF_FFFF
# A proxy that takes nothing: it has as much for calls that nobody reads (dataplane/link.go).
_UNSENT_MAX: Final = 64 * 1024 * 1024
_SHORT_MAX: Final = 255
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


class FromProxy(IntEnum):
    """Kinds of frames that the proxy sends.

    A read has this content: its timeout in ms (4 bytes); its caller's number (8 bytes); how
    many lookups are under way that the proxy has sent to nodes (4 bytes); the request. Without TLS only a caller's
    address is known.
    """

    LISTENING = 1
    """The number is the port. The content is the version of the link."""
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
    CALLER = 8
    """What a caller of lookups that follow has shown; the number is theirs. Content: address (after its length, 1
    byte), authorization (after its length, 2 bytes), certificate and those shown with it (DER)."""
    CALLER_GONE = 9
    """No more lookups of the caller of that number follow."""
    CANT_ENCRYPT = 10
    """The content says why."""
    PART = 11
    """A part of the request of the lookup of that number, which will begin with the rest of it. If that is refused
    before, the proxy says with LEFT that no further part follows, unless it has sent the rest."""
    HANDED = 12
    """A request that the proxy has sent to nodes. Before it: its kind (1 byte), and a HandedRequest of
    statehouse.control.v1 (after its length, 4 bytes)."""
    EXPRESS_ENDED = 13
    """What came of the call of that number in a HandedRequest: its HandedOutcome (1 byte), and its content."""
    EXPRESS_SUMS = 14
    """Lookups that nodes answered in time: statehouse.control.v1.ExpressSums."""
    SCAN = 15
    SCAN_WINDOWS = 16
    SCAN_SESSIONS = 17
    PROXY_SUMS = 18
    """What the proxy has counted, and how it stands: statehouse.control.v1.ProxySums."""
    ORDER_ENDED = 19
    """What came of the order of that number: statehouse.control.v1.EngineAnswer."""
    STORE_REPORT = 20
    """What has become of a store: statehouse.control.v1.EngineReport."""
    CALLS_ENDED = 21
    """After STOP, all calls. Stores are open until the link is closed."""
    SERVING_SUMS = 22
    """Lookups that the proxy answered from stores: statehouse.control.v1.ServingSums."""
    COUNT = 23
    FETCH_WINDOWS = 24
    FETCH_SESSIONS = 25
    GET_AS_OF = 26
    GET_HISTORY = 27


class ToProxy(IntEnum):
    """Kinds of frames that the proxy receives."""

    SERVE = 1
    """The content is the version of the link."""
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
    ROUTES = 8
    """What the proxy may send to nodes on its own: statehouse.control.v1.ExpressSnapshot."""
    ALIVE = 9
    """This process lives; the snapshot of that number holds, if it isn't 0. Once said, it is to be said often: after
    three seconds without a word of it the proxy acts on no snapshot, and without any word it fails all calls."""
    ORDER = 10
    """Carry out what is decided about stores: statehouse.control.v1.EngineOrder."""
    SERVING = 11
    """What the proxy may answer from stores: statehouse.control.v1.ServingSnapshot."""
    HOLDS = 12
    """The snapshot of that number holds. Content: until when, by the monotonic clock, in microseconds (8 bytes)."""
    FACTS = 13
    """What stamps say: statehouse.control.v1.ServingFacts."""
    PERMIT = 14
    """What a caller may read without being judged again: statehouse.control.v1.ServingPermit."""
    WITHDRAW = 15
    """All permits."""


CALLS: Final = {
    FromProxy.GET: "Get",
    FromProxy.BATCH_GET: "BatchGet",
    FromProxy.SCAN: "Scan",
    FromProxy.SCAN_WINDOWS: "ScanWindows",
    FromProxy.SCAN_SESSIONS: "ScanSessions",
    FromProxy.COUNT: "Count",
    FromProxy.FETCH_WINDOWS: "FetchWindows",
    FromProxy.FETCH_SESSIONS: "FetchSessions",
    FromProxy.GET_AS_OF: "GetAsOf",
    FromProxy.GET_HISTORY: "GetHistory",
}


@dataclass(frozen=True, slots=True)
class LinkContext:
    """The context of a call over the link, in place of gRPC's. `until`: the caller's deadline, in the loop's time.

    `shown`: what the caller has shown; the same object for all their calls on one connection. `handed`: calls
    that the proxy has made for it already, of a Get one; None if it comes from the caller straight. `caller`: their
    number on the link. `snapshot`: the number of the ExpressSnapshot by which `handed` were made.
    """

    until: float | None
    shown: Shown = NOTHING_SHOWN
    handed: tuple[HandedLookup, ...] | None = None
    caller: int = 0
    snapshot: int = 0

    def time_remaining(self) -> float | None:
        """Return the seconds left, None if the caller set no deadline."""
        return None if self.until is None else self.until - asyncio.get_running_loop().time()


LinkHandler = Callable[[bytes, LinkContext], bytes | Awaitable[bytes]]
"""Answers a serialized request, immediately or with an awaitable; either may raise what gRPC handlers may raise."""

BeginningCheck = Callable[[bytes], None]
"""Takes the beginning of a batch whose rest is still to come. Raises LookupFailure if it will be refused anyhow."""


class CallFailed(grpc.RpcError):
    """A call to another server failed. Has the methods of grpcio's errors."""

    def __init__(self, status: status_pb2.Status) -> None:
        super().__init__(status.message)
        self._status = status

    def code(self) -> grpc.StatusCode:
        """Return the status code; UNKNOWN for a number that none has: a server may send any."""
        return _CODES.get(self._status.code, grpc.StatusCode.UNKNOWN)

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
        ValueError: there is no such kind.

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

    `handlers`: by the names in `CALLS`. `check_beginning`: of requests that come in parts, which only batches do.
    `callers`: what they have shown, by their numbers.
    """

    def __init__(
        self, handlers: Mapping[str, LinkHandler], check_beginning: BeginningCheck, on_lost: Callable[[], None]
    ) -> None:
        self._handlers = {int(kind): (name, handlers[name]) for kind, name in CALLS.items()}
        self._check_beginning, self._on_lost = check_beginning, on_lost
        self._loop = asyncio.get_running_loop()
        # The beginning of a frame whose end has not come yet, and how many bytes are needed to go on.
        self._received, self._frame_bytes = bytearray(), 0
        self._out: list[bytes] = []
        self._tasks: dict[int, asyncio.Future[bytes]] = {}
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        # For huge requests. The proxy sends one after the other, so they are as many bytes as a message may have.
        # None: the beginning was refused, and the rest doesn't matter.
        self._parts: dict[int, list[bytes] | None] = {}
        self._numbers = itertools.count(1)
        self._handed = HandedCalls(self._loop, lambda status: CallFailed(status_pb2.Status.FromString(status)))
        self.elsewhere = 0
        """How many lookups are under way that the proxy has sent to nodes, as it said last."""
        self.on_sums: Callable[[bytes], None] = lambda _sums: None
        """Called with serialized ExpressSums."""
        self.on_order_ended: Callable[[int, bytes], None] = lambda _number, _answer: None
        """Called with the number of an order, and what came of it."""
        self.on_report: Callable[[bytes], None] = lambda _report: None
        """Called with serialized EngineReports."""
        self.on_serving_sums: Callable[[bytes], None] = lambda _sums: None
        """Called with serialized ServingSums."""
        self.calls_ended = asyncio.Event()
        self.proxy_sums = b""
        """What the proxy last said of itself: serialized ProxySums, empty before the first."""
        self.callers: dict[int, Shown] = {0: NOTHING_SHOWN}

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
        if received:
            received += data
            if len(received) < self._frame_bytes:
                return
            data = bytes(received)
            received.clear()
        at, end = 0, len(data)
        self._frame_bytes = _HEAD.size
        while end - at >= _HEAD.size:
            length, kind, number = _HEAD.unpack_from(data, at)
            next_at = at + _LENGTH_BYTES + length
            if next_at > end:
                self._frame_bytes = _LENGTH_BYTES + length
                break
            self._take(kind, number, data, at + _HEAD.size, next_at)
            at = next_at
        received += data[at:]

    async def call(self, target: str, path: str, request: bytes, timeout_s: float) -> bytes:
        """Let the proxy call another server's method, by its path; return the serialized answer.

        Raises:
            CallFailed: the call failed.

        """
        if self._transport.is_closing() or self._transport.get_write_buffer_size() > _UNSENT_MAX:
            raise _unavailable()
        if len(target.encode()) > _SHORT_MAX:  # other nodes tell of addresses, too
            message = f"an address of more than {_SHORT_MAX} bytes can't be called"
            raise CallFailed(status_pb2.Status(code=code_pb2.UNAVAILABLE, message=message))
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

    def send_order(self, number: int, order: bytes) -> None:
        """Have an order about stores carried out; `on_order_ended` learns what came of it."""
        self.send(ToProxy.ORDER, number, order)

    def send_serving(self, snapshot: bytes) -> None:
        """Say what may be answered from stores: a serialized ServingSnapshot, which `send_holds` puts into force."""
        self.send(ToProxy.SERVING, 0, snapshot)

    def send_holds(self, number: int, until_us: int) -> None:
        """Say until when the snapshot of a number holds: monotonic clock, in microseconds."""
        self.send(ToProxy.HOLDS, number, _MOMENT.pack(until_us))

    def send_facts(self, facts: bytes) -> None:
        """Say what stamps need: serialized ServingFacts."""
        self.send(ToProxy.FACTS, 0, facts)

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

    def _take(self, kind: int, number: int, data: bytes, start: int, end: int) -> None:  # noqa: C901, PLR0912 - a table of kinds
        """Take a frame, whose content stands in `data`: a request may be large, and is copied once."""
        if kind in self._handlers:
            timeout_ms, caller, self.elsewhere = _LOOKUP.unpack_from(data, start)
            request = data[start + _LOOKUP.size : end]
            if number in self._parts:
                if (parts := self._parts.pop(number)) is None:
                    return
                request = b"".join([*parts, request])
            self._begin(*self._handlers[kind], number, request, timeout_ms, caller)
            return
        content = data[start:end]
        match kind:
            case FromProxy.HANDED:
                self._take_over(number, content)
            case FromProxy.EXPRESS_ENDED:
                self._handed.ended(number, content)
            case FromProxy.EXPRESS_SUMS:
                self.on_sums(content)
            case FromProxy.PART:
                self._take_part(number, content)
            case FromProxy.LEFT:
                self._parts.pop(number, None)
                if (task := self._tasks.get(number)) is not None:
                    task.cancel()
            case FromProxy.CALLED | FromProxy.CALL_FAILED:
                self._end_call(kind, number, content)
            case FromProxy.PROXY_SUMS:
                self.proxy_sums = content
            case FromProxy.ORDER_ENDED:
                self.on_order_ended(number, content)
            case FromProxy.STORE_REPORT:
                self.on_report(content)
            case FromProxy.SERVING_SUMS:
                self.on_serving_sums(content)
            case FromProxy.CALLS_ENDED:
                self.calls_ended.set()
            case FromProxy.CALLER:
                self.callers[number] = _shown(content)
            case FromProxy.CALLER_GONE:
                self.callers.pop(number, None)
            case _:
                self._break_off(f"a frame of kind {kind}")

    def _take_part(self, number: int, content: bytes) -> None:
        """Take a part of a request. One that will be refused is refused at its first: the rest needn't be carried."""
        if number not in self._parts:
            try:
                self._check_beginning(content)
            except LookupFailure as failure:
                self._parts[number] = None
                self._fail(CALLS[FromProxy.BATCH_GET], number, failure)
                return
            self._parts[number] = []
        if (parts := self._parts[number]) is not None:
            parts.append(content)

    def _take_over(self, number: int, content: bytes) -> None:
        """Begin a request that the proxy has sent to nodes."""
        timeout_ms, caller, self.elsewhere = _LOOKUP.unpack_from(content)
        kind, size = _HANDED.unpack_from(content, _LOOKUP.size)
        at = _LOOKUP.size + _HANDED.size
        handed, numbers, snapshot = self._handed.take(content[at : at + size])
        self._begin(*self._handlers[kind], number, content[at + size :], timeout_ms, caller, handed, snapshot)
        if (task := self._tasks.get(number)) is not None:
            task.add_done_callback(lambda _: self._handed.forget(numbers))
        else:
            self._handed.forget(numbers)

    def _end_call(self, kind: int, number: int, content: bytes) -> None:
        """Take what came of a call that the server made."""
        if (call := self._calls.get(number)) is None or call.done():
            return  # nobody waits for it
        if kind == FromProxy.CALLED:
            call.set_result(content)
        else:
            call.set_exception(CallFailed(status_pb2.Status.FromString(content)))

    def _break_off(self, found: str) -> None:
        """Close the link to a proxy that does what it never should."""
        log.error("the proxy sends what it should not; its link is closed", found=found)
        self.close()

    def _begin(
        self,
        name: str,
        handler: LinkHandler,
        number: int,
        request: bytes,
        timeout_ms: int,
        caller: int,
        handed: tuple[HandedLookup, ...] | None = None,
        snapshot: int = 0,
    ) -> None:
        """Answer a call."""
        if (shown := self.callers.get(caller)) is None:
            self._break_off(f"a call of caller {caller}, of whom nothing is known")
            return
        until = None if timeout_ms == _NO_DEADLINE else self._loop.time() + timeout_ms / 1_000
        remaining = LinkContext(until, shown, handed, caller, snapshot)
        try:
            answer = handler(request, remaining)
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


def _shown(content: bytes) -> Shown:
    """Return what a frame says that a caller has shown."""
    at = 1 + content[0]
    address = content[1:at].decode()
    (length,) = _AUTHORIZATION_LENGTH.unpack_from(content, at)
    at += _AUTHORIZATION_LENGTH.size
    # As grpcio has the values of metadata that no client should send.
    authorization = content[at : at + length].decode("latin-1")
    return Shown(content[at + length :], authorization, address)


def _unavailable() -> CallFailed:
    return CallFailed(status_pb2.Status(code=code_pb2.UNAVAILABLE, message="the proxy is gone"))
