"""Failures on the wire, the server's side: turns a `LookupFailure` into gRPC's rich status."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio
import structlog
from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from statehouse.background import as_error
from statehouse.errors import DOMAIN, LookupFailure, Reason, internal_error, wire_name
from statehouse.rpc.requests import refuse_unreadable
from statehouse.rpc.streams import TAKEN_WITHIN_S, CallerLeftError

log = structlog.get_logger(__name__)

# Long enough for a full router to work its queue off, short enough for a person who waits.
_RETRY_DELAY = Duration(seconds=1)

# The end of a stream waits behind what its caller has not taken.
_TOLD_WITHIN_S = 5.0

Request = TypeVar("Request")
Response = TypeVar("Response")
Context = grpc.aio.ServicerContext[Any, Any]


def to_status(failure: LookupFailure) -> status_pb2.Status:
    """Return the status with `ErrorInfo` (for any client) and `LookupError` (for ours) as details.

    A caller that the server refuses as overloaded learns from `RetryInfo` when to ask again.
    """
    info = error_details_pb2.ErrorInfo(reason=wire_name(failure.reason), domain=DOMAIN, metadata=failure.metadata)
    status = status_pb2.Status(code=failure.code, message=failure.message)
    details: list[Message] = [info, failure.to_proto()]
    if failure.reason is Reason.OVERLOADED:
        details.append(error_details_pb2.RetryInfo(retry_delay=_RETRY_DELAY))
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def failing_cleanly(
    handler: Callable[[Any, Request, Context], Awaitable[Response]],
) -> Any:  # noqa: ANN401 - the generated base classes type the context for sync and aio at once
    """Make a servicer method of `handler(self, request, context)`.

    A `LookupFailure` becomes its status, a defect INTERNAL. A handler that answers with a stream writes to the context
    and returns None. It is a coroutine and not a generator: so when the caller leaves, it is cancelled, and it has
    cleaned up once the cancellation is done.
    """

    async def method(self: Any, request: Request, context: Context) -> Response:  # noqa: ANN401
        try:
            refuse_unreadable(request)
            return await handler(self, request, context)
        except CallerLeftError:
            await _end_unsent(context)
        except BaseException as caught:  # noqa: BLE001 - the caller learns of it, and the log has it
            await end_with(context, handler.__name__, as_error(caught))
        raise AssertionError("abort returns never")

    method.__doc__ = handler.__doc__
    method.__name__ = handler.__name__
    return method


def send_to(context: Context) -> Callable[[Any], Awaitable[None]]:
    """Return a function that sends one response of a stream.

    It raises `CallerLeftError` if the caller has left: grpcio may fail the write before it cancels the handler. It
    raises `LookupFailure` (OVERLOADED) if the caller takes nothing for so long that others should have the place.
    """

    async def send(response: Any) -> None:  # noqa: ANN401 - a message, or one that is serialized already
        try:
            async with asyncio.timeout(TAKEN_WITHIN_S):
                await context.write(response)
        except grpc.aio.InternalError as error:
            raise CallerLeftError from error
        except TimeoutError:
            message = f"the caller has taken nothing for {TAKEN_WITHIN_S:g} s: resume, and read faster"
            raise LookupFailure(Reason.OVERLOADED, message) from None

    return send


def told(name: str, error: Exception) -> status_pb2.Status:
    """Return the status to send for a handler's exception; a defect is logged."""
    if not isinstance(error, LookupFailure):
        log.error("defect in a handler", method=name, exc_info=error)
        error = internal_error()
    return to_status(error)


async def end_with(context: Context, name: str, error: Exception) -> None:
    """End a call of the method `name` with an error."""
    status = rpc_status.to_status(told(name, error))
    try:
        async with asyncio.timeout(_TOLD_WITHIN_S):
            await context.abort_with_status(status)
    except TimeoutError:
        raise asyncio.CancelledError from None  # the caller takes nothing, not even that: this ends a handler


async def _end_unsent(context: Context) -> None:
    """End a call whose response could not be sent. If the caller has not left, they learn that the call has ended."""
    try:
        await context.abort(grpc.StatusCode.CANCELLED, "a response could not be sent")
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None  # the call is gone: this is how grpcio ends a handler then
