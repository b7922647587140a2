"""Requests that can't be read, refused like any other wrong one.

gRPC would end such a call with UNKNOWN and write a traceback to the log, as if the server were at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from statehouse.errors import LookupFailure, Reason

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What a handler gets in place of a request whose bytes are no message of its method."""

    error: str


def refuse_unreadable(request: object) -> None:
    """Let a request pass.

    Raises:
        LookupFailure: INVALID_REQUEST, it could not be read.

    """
    if isinstance(request, Unreadable):
        raise LookupFailure(Reason.INVALID_REQUEST, f"not a message of this method: {request.error}")


class TolerantServer:
    """The part of a server that services are added to: their handlers get `Unreadable` instead of not being called."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        """Add the methods of a service."""
        tolerant = {name: _tolerant(handler) for name, handler in handlers.items()}
        self._server.add_registered_method_handlers(service, tolerant)

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Do nothing: generated code adds the same methods in both ways."""


def _tolerant(handler: Handler) -> Handler:
    parse: Callable[[bytes], Any] | None = handler.request_deserializer
    behaviour: Any = handler.unary_stream if handler.response_streaming else handler.unary_unary
    if parse is None:
        return handler

    def parsed(data: bytes) -> Any:  # noqa: ANN401 - any message
        try:
            return parse(data)
        except DecodeError as error:
            return Unreadable(str(error))

    make = grpc.unary_stream_rpc_method_handler if handler.response_streaming else grpc.unary_unary_rpc_method_handler
    return make(behaviour, parsed, handler.response_serializer)
