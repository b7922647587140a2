"""Failures on the wire, the server's side: ends gRPC calls with rich statuses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio
from grpc_status import rpc_status

from statehouse.errors import LookupFailure, Reason
from statehouse.errors.statuses import told
from statehouse.rpc.requests import refuse_unreadable
from statehouse.rpc.streams import TAKEN_WITHIN_S, CallerLeftError
from statehouse.runtime.background import as_error

# The end of a stream waits behind what its caller has not taken.
_TOLD_WITHIN_S = 5.0

Request = TypeVar("Request")
Response = TypeVar("Response")
Context = grpc.aio.ServicerContext[Any, Any]


def failing_cleanly(
    handler: Callable[[Any, Request, Context], Awaitable[Response]],
) -> Any:  # noqa: ANN401 - the generated base classes type the context for both sync and aio
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
