"""Failures on the wire, the client's side: from a failed call to a `LookupFailure`. Needs grpcio and nothing else."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import status_pb2

from statehouse.errors import DETAILS_KEY, LookupFailure, Reason
from statehouse.rpc.credentials import ClientTls
from statehouse.v1 import errors_pb2

# What a transport failure means when the peer attached no reason of ours.
_TRANSPORT = {
    grpc.StatusCode.DEADLINE_EXCEEDED: Reason.ATTEMPT_TIMED_OUT,
    grpc.StatusCode.UNAVAILABLE: Reason.UNREACHABLE,
    # The peer cancelled the call, not we: it ended, or it had too many calls.
    grpc.StatusCode.CANCELLED: Reason.UNREACHABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Reason.OVERLOADED,
    grpc.StatusCode.INVALID_ARGUMENT: Reason.INVALID_REQUEST,
    grpc.StatusCode.UNAUTHENTICATED: Reason.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED: Reason.PERMISSION_DENIED,
}
# What a server says, or who stands before it, whose details may be lost on the way. gRPC itself never does.
_REFUSALS = frozenset({Reason.UNAUTHENTICATED, Reason.PERMISSION_DENIED})
# What gRPC says of a handshake, and what to do.
_HANDSHAKES = {
    "WRONG_VERSION_NUMBER": "the server doesn't speak it; call it without",
    "CERTIFICATE_VERIFY_FAILED": "no CA that is trusted has signed the server's certificate, or its time is over",
    "Hostname Verification": "the server's certificate has other names; give one of them as the server name",
    "andshake failed": "the server and this caller don't agree",
}
# What gRPC says of a connection that its peer ends because one of both speaks TLS, or shows too little.
_ENDED_EARLY = ("Socket closed", "Connection reset", "Broken pipe", "HTTP/2", "http1.x")
# What gRPC's implementations say of an answer that isn't gRPC's: another server has the address now, or a record of a
# control topic gives a wrong one. The HTTP status decides the code then, which means nothing.
_NOT_GRPC = ("unexpected HTTP status code received from server", "Received http2 header with status")


def is_servers(failure: LookupFailure) -> bool:
    """Whether the server itself has said this, so that it is there and well."""
    return "grpc_status" not in failure.metadata or failure.reason in _REFUSALS


def tls_hint(message: str, tls: ClientTls | None) -> str:
    """Return what to do if gRPC's message, why a server can't be reached, is about TLS; else nothing.

    `tls`: what the caller calls with.
    """
    for sign, hint in _HANDSHAKES.items():
        if sign in message:
            return f"TLS: {hint}"
    if not any(sign in message for sign in _ENDED_EARLY):
        return ""
    if tls is None:
        return "TLS: if the server speaks nothing else, give the file with its CA's certificates"
    if tls.certificate is None:
        return "TLS: if the server demands certificates of its callers, show one"
    return "TLS: perhaps the server doesn't trust the CA of this caller's certificate, or its time is over"


def from_rpc_error(error: grpc.RpcError) -> LookupFailure:
    """Read a failed call."""
    trailing: Any = error.trailing_metadata() or ()
    status = next((value for key, value in trailing if key == DETAILS_KEY), b"")
    return from_status(error.code(), error.details() or "", status)


def from_status(code: grpc.StatusCode, message: str, status: bytes) -> LookupFailure:
    """Read how a call failed; `status` is the serialized `google.rpc.Status`, empty if the peer sent none.

    Without our details, or with some that can't be read, the status code decides the reason.
    """
    with suppress(DecodeError):
        for detail in status_pb2.Status.FromString(status).details:
            lookup_error = errors_pb2.LookupError()
            if detail.Unpack(lookup_error):
                return LookupFailure.from_proto(lookup_error)
    reason = _TRANSPORT.get(code, Reason.INTERNAL)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in message:
        reason = Reason.MESSAGE_TOO_LARGE
    if message.startswith(_NOT_GRPC):
        reason = Reason.UNREACHABLE
    return LookupFailure(reason, message or code.name, {"grpc_status": code.name})
