"""Requests that can't be read, or never come, refused like any other wrong one.

gRPC would end a call with a request that can't be read with UNKNOWN and write a traceback to the log, as if the server
were at fault. If a caller closes a call before they have sent the request, gRPC would not end the call at all: its
asyncio server takes it for cancelled. So our methods are request streams to gRPC, and read one request; on the wire
there is no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from statehouse.errors import LookupFailure, Reason

GrpcHandler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Given to a handler in place of a missing request, or of bytes that are not a message of its method."""

    error: str


def refuse_unreadable(request: object) -> None:
    """Return if the request could be read.

    Raises:
        LookupFailure: INVALID_REQUEST, it could not be read, or never came.

    """
    if isinstance(request, Unreadable):
        raise LookupFailure(Reason.INVALID_REQUEST, request.error)


def parsed(parse: Callable[[bytes], Any], data: bytes) -> Any:  # noqa: ANN401 - any message, or `Unreadable`
    """Return the message in these bytes; `Unreadable` if they are not a message of the method."""
    try:
        return parse(data)
    except DecodeError as error:
        return Unreadable(f"not a message of this method: {error}")


class TolerantServer:
    """The part of a server that services are added to.

    If a request can't be read, the handler gets `Unreadable`. Handlers may return an answer that is already serialized.
    """

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, GrpcHandler]) -> None:
        """Add the methods of a service."""
        tolerant = {name: _tolerant(handler) for name, handler in handlers.items()}
        self._server.add_registered_method_handlers(service, tolerant)

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Do nothing: generated code adds the same methods in both ways."""


def _tolerant(handler: GrpcHandler) -> GrpcHandler:
    parse: Callable[[bytes], Any] | None = handler.request_deserializer
    write: Callable[[Any], bytes] | None = handler.response_serializer
    behaviour: Any = handler.unary_stream if handler.response_streaming else handler.unary_unary

    async def on_first(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> Any:  # noqa: ANN401 - as above
        request = await context.read()
        if request is grpc.aio.EOF:
            request = Unreadable("the call was closed before its request was sent")
        return await behaviour(request, context)

    def written(answer: Any) -> bytes:  # noqa: ANN401 - any message, or bytes
        return cast("bytes", answer if write is None or isinstance(answer, bytes) else write(answer))

    make = grpc.stream_stream_rpc_method_handler if handler.response_streaming else grpc.stream_unary_rpc_method_handler
    return make(on_first, None if parse is None else partial(parsed, parse), written)
