"""Failures as RFC 9457 problems: one table says which status each code of gRPC has. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from google.rpc import code_pb2

from statehouse.errors import REASONS, LookupFailure, Reason, reason_name

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 1
"""When a caller may ask again who was refused because something is temporary: as gRPC's RetryInfo has it."""

_OF_CODE: Final[Mapping[int, int]] = {
    code_pb2.NOT_FOUND: 404,  # without `found`: that a store isn't there is no proof that a key isn't
    code_pb2.INVALID_ARGUMENT: 400,
    code_pb2.OUT_OF_RANGE: 400,
    code_pb2.UNAUTHENTICATED: 401,
    code_pb2.PERMISSION_DENIED: 403,
    code_pb2.DATA_LOSS: 500,
    code_pb2.INTERNAL: 500,
    # The fleet can't answer now, or not within the bounds; it may later.
    code_pb2.FAILED_PRECONDITION: 503,
    code_pb2.RESOURCE_EXHAUSTED: 503,
    code_pb2.UNAVAILABLE: 503,
    code_pb2.DEADLINE_EXCEEDED: 504,
}
STATUS: Final[Mapping[Reason, int]] = MappingProxyType(
    {reason: _OF_CODE[spec.code] for reason, spec in REASONS.items()}
    | {Reason.HOP_LIMIT: 500, Reason.MESSAGE_TOO_LARGE: 500}  # asking again doesn't help
)
"""The status of each reason. An unknown store shares 404 with an absent key's proof: `found` tells them apart."""
# The web process's own identity was refused by a router: not its caller's fault.
_OWN: Final = frozenset({Reason.UNAUTHENTICATED, Reason.PERMISSION_DENIED})

NO_SUCH_KEY: Final = "NO_SUCH_KEY"
"""The reason of the proof, whose status is 404: a replica that has restored the partition does not have the key."""


class HttpRefusal(LookupFailure):
    """A request that HTTP itself has a status for."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(Reason.INVALID_REQUEST, message)
        self.status = status


def status_of(failure: LookupFailure, *, callers: bool = False) -> int:
    """Return the status of a failure. `callers`: the refusal is of the HTTP caller, not of this process."""
    if isinstance(failure, HttpRefusal):
        return failure.status
    return 500 if failure.reason in _OWN and not callers else STATUS[failure.reason]


def problem_of(failure: LookupFailure, *, callers: bool = False) -> dict[str, Any]:
    """Return the body of a failure's problem."""
    remedy = failure.remedy
    if failure.reason in _OWN and not callers:
        remedy = "The HTTP server itself lacks this right at its router: give its identity the role router."
    body = problem(status_of(failure, callers=callers), failure.reason.name, failure.message, remedy)
    if failure.metadata:
        body["metadata"] = failure.metadata
    if failure.candidates:
        body["candidates"] = [
            {
                "instance_id": each.host.instance_id,
                "reason": reason_name(each.reason) if each.reason else None,
                "detail": each.detail,
            }
            for each in failure.candidates
        ]
    return body


def problem(status: int, reason: str, detail: str, remedy: str = "") -> dict[str, Any]:
    """Return the body of a problem. `reason`: for programs, `detail`: for people, `remedy`: what to do."""
    body: dict[str, Any] = {
        "type": f"urn:statehouse:problem:{reason.lower().replace('_', '-')}",
        "title": reason.replace("_", " ").capitalize(),
        "status": status,
        "reason": reason,
        "detail": detail,
    }
    if remedy:
        body["remedy"] = remedy
    return body


def headers_of(status: int) -> dict[str, str]:
    """Return the headers that a problem with this status has."""
    match status:
        case 401:
            return {"WWW-Authenticate": "Bearer"}
        case 503:
            return {"Retry-After": str(RETRY_AFTER_S)}
    return {}
