"""Failures on the wire, the client's side: from a failed call to a `LookupFailure`. Needs grpcio and nothing else."""

from __future__ import annotations

from typing import Any

import grpc
from google.rpc import status_pb2

from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import errors_pb2

# What a transport failure means when the peer attached no reason of ours.
_TRANSPORT = {
    grpc.StatusCode.DEADLINE_EXCEEDED: Reason.ATTEMPT_TIMED_OUT,
    grpc.StatusCode.UNAVAILABLE: Reason.UNREACHABLE,
    # The peer cancelled the call, not we: it ended, or it had too many calls.
    grpc.StatusCode.CANCELLED: Reason.UNREACHABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Reason.OVERLOADED,
    grpc.StatusCode.INVALID_ARGUMENT: Reason.INVALID_REQUEST,
}
DETAILS_KEY = "grpc-status-details-bin"


def from_rpc_error(error: grpc.RpcError) -> LookupFailure:
    """Read a failed call."""
    trailing: Any = error.trailing_metadata() or ()
    status = next((value for key, value in trailing if key == DETAILS_KEY), b"")
    return from_status(error.code(), error.details() or "", status)


def from_status(code: grpc.StatusCode, message: str, status: bytes) -> LookupFailure:
    """Read how a call failed; `status` is the serialized `google.rpc.Status`, empty if the peer sent none.

    Without our details the status code decides the reason.
    """
    for detail in status_pb2.Status.FromString(status).details:
        lookup_error = errors_pb2.LookupError()
        if detail.Unpack(lookup_error):
            return LookupFailure.from_proto(lookup_error)
    reason = _TRANSPORT.get(code, Reason.INTERNAL)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in message:
        reason = Reason.MESSAGE_TOO_LARGE
    return LookupFailure(reason, message or code.name, {"grpc_status": code.name})
