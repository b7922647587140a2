"""Failures on the wire, the server's side: `LookupFailure` to gRPC's rich status."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio
import structlog
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from statehouse.errors import DOMAIN, LookupFailure, Reason, wire_name

log = structlog.get_logger(__name__)

Request = TypeVar("Request")
Response = TypeVar("Response")


def to_status(failure: LookupFailure) -> status_pb2.Status:
    """Return the status with `ErrorInfo` (for any client) and `LookupError` (for ours) as details."""
    info = error_details_pb2.ErrorInfo(reason=wire_name(failure.reason), domain=DOMAIN, metadata=failure.metadata)
    status = status_pb2.Status(code=failure.code, message=failure.message)
    for detail in (info, failure.to_proto()):
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


def failing_cleanly(
    handler: Callable[[Any, Request], Awaitable[Response]],
) -> Any:  # noqa: ANN401 - the generated base classes type the context for sync and aio at once
    """Make a servicer method of `handler(self, request)`: a `LookupFailure` becomes its status, a defect INTERNAL."""

    async def method(self: Any, request: Request, context: grpc.aio.ServicerContext[Any, Any]) -> Response:  # noqa: ANN401
        try:
            return await handler(self, request)
        except LookupFailure as failure:
            await context.abort_with_status(rpc_status.to_status(to_status(failure)))
        except Exception:
            log.exception("defect in a handler", method=handler.__name__)
            defect = LookupFailure(Reason.INTERNAL, "internal error; the server's log has it")
            await context.abort_with_status(rpc_status.to_status(to_status(defect)))
        raise AssertionError("abort returns never")

    method.__doc__ = handler.__doc__
    method.__name__ = handler.__name__
    return method
