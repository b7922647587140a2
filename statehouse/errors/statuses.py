"""A failed lookup as `google.rpc.Status`, which a server sends with a failed call."""

from __future__ import annotations

import structlog
from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from statehouse.errors.failures import LookupFailure, internal_error
from statehouse.errors.reasons import DOMAIN, Reason, wire_name

log = structlog.get_logger(__name__)

# Long enough for a full router to work its queue off, short enough for a person who waits.
_RETRY_DELAY = Duration(seconds=1)


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


def told(name: str, error: Exception) -> status_pb2.Status:
    """Return the status to send for a handler's exception; a defect is logged."""
    if not isinstance(error, LookupFailure):
        log.error("defect in a handler", method=name, exc_info=error)
        error = internal_error()
    return to_status(error)
