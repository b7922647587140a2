"""Requests that can't be read, or never come, refused like any other wrong one.

gRPC would end a call with a request that can't be read with UNKNOWN and write a traceback to the log, as if the server
were at fault. If a caller closes a call before they have sent the request, gRPC would not end the call at all: its
asyncio server takes it for cancelled. So our methods are request streams to gRPC, and read one request; on the wire
there is no difference.

Only batches of lookups may be as large as a message. Any other request has a few keys at most, and many are kept for as
long as their callers wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from statehouse.errors import LookupFailure, Reason
from statehouse.serdes.wire import LOOKUP_BYTES_MAX

ARRIVES_WITHIN_S: Final = 30.0
"""A call whose request is not there by then is refused: it holds a place. The proxy waits as long."""

# Its handlers see to its lookups: how many there are, and how long each is.
_BATCH: Final = "/BatchGet"

GrpcHandler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Given to a handler in place of a missing request, a too large one, or bytes that are no message of its method."""

    error: str


def refuse_unreadable(request: object) -> None:
    """Return if the request could be read.

    Raises:
        LookupFailure: INVALID_REQUEST, it could not be read, or never came.

    """
    if isinstance(request, Unreadable):
        raise LookupFailure(Reason.INVALID_REQUEST, request.error)


async def readable(requests: AsyncIterable[Any]) -> AsyncIterator[Any]:
    """Yield the requests of a stream.

    Raises:
        LookupFailure: as in `refuse_unreadable`.

    """
    async for request in requests:
        refuse_unreadable(request)
        yield request


def parsed(parse: Callable[[bytes], Any], data: bytes) -> Any:  # noqa: ANN401 - any message, or `Unreadable`
    """Return the message in these bytes; `Unreadable` if they are not a message of the method."""
    try:
        return parse(data)
    except DecodeError as error:
        return Unreadable(f"not a message of this method: {error}")


class ServicesServer(Protocol):
    """The part of a server that services are added to."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, GrpcHandler]) -> None:
        """Add the methods of a service."""


class AdaptingServer:
    """The part of a server that services are added to, in front of another one: it gets each handler `_adapted`."""

    def __init__(self, server: ServicesServer) -> None:
        self._server = server

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, GrpcHandler]) -> None:
        """Add the methods of a service."""
        adapted = {name: self._adapted(f"/{service}/{name}", handler) for name, handler in handlers.items()}
        self._server.add_registered_method_handlers(service, adapted)

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Do nothing: generated code adds the same methods in both ways."""

    def _adapted(self, path: str, handler: GrpcHandler) -> GrpcHandler:
        raise NotImplementedError


class TolerantServer(AdaptingServer):
    """The part of a server that services are added to.

    If a request can't be read, or has more than `max_request_bytes`, the handler gets `Unreadable`; only a BatchGet may
    have more. Handlers may return an answer that is already serialized.
    """

    def __init__(self, server: grpc.aio.Server, max_request_bytes: int = LOOKUP_BYTES_MAX) -> None:
        super().__init__(server)
        self._max_request_bytes = max_request_bytes

    def _adapted(self, path: str, handler: GrpcHandler) -> GrpcHandler:
        return _tolerant(handler, None if path.endswith(_BATCH) else self._max_request_bytes)


def _tolerant(handler: GrpcHandler, max_bytes: int | None) -> GrpcHandler:
    parse: Callable[[bytes], Any] | None = handler.request_deserializer
    write: Callable[[Any], bytes] | None = handler.response_serializer

    async def on_first(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> Any:  # noqa: ANN401 - as above
        try:
            async with asyncio.timeout(ARRIVES_WITHIN_S):
                request = await context.read()
        except TimeoutError:
            request = Unreadable(f"the request did not arrive within {ARRIVES_WITHIN_S:g} s")
        if request is grpc.aio.EOF:
            request = Unreadable("the call was closed before its request was sent")
        return await behaviour(request, context)

    def read(data: bytes) -> Any:  # noqa: ANN401 - as above
        if max_bytes is not None and len(data) > max_bytes:
            return Unreadable(f"a request of {len(data):,} bytes: at most {max_bytes:,} are taken")
        return data if parse is None else parsed(parse, data)

    def written(answer: Any) -> bytes:  # noqa: ANN401 - any message, or bytes
        return cast("bytes", answer if write is None or isinstance(answer, bytes) else write(answer))

    behaviour: Any = handler.unary_unary or handler.unary_stream or handler.stream_stream
    if handler.request_streaming:  # only reflection has such a method
        return grpc.stream_stream_rpc_method_handler(behaviour, read, written)
    make = grpc.stream_stream_rpc_method_handler if handler.response_streaming else grpc.stream_unary_rpc_method_handler
    return make(on_first, read, written)
