"""What a failed call means that has none of our details."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest
from google.protobuf import any_pb2
from google.rpc import status_pb2

from statehouse.errors import Reason
from statehouse.link.link import CallFailed
from statehouse.rpc.failures import from_rpc_error, from_status


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.UNAVAILABLE, Reason.UNREACHABLE),
        (grpc.StatusCode.CANCELLED, Reason.UNREACHABLE),
        (grpc.StatusCode.DEADLINE_EXCEEDED, Reason.ATTEMPT_TIMED_OUT),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Reason.OVERLOADED),
        (grpc.StatusCode.UNAUTHENTICATED, Reason.UNAUTHENTICATED),
        (grpc.StatusCode.PERMISSION_DENIED, Reason.PERMISSION_DENIED),
        (grpc.StatusCode.UNKNOWN, Reason.INTERNAL),
    ],
)
def test_a_status_without_details_has_the_reason_that_its_code_stands_for(
    code: grpc.StatusCode, reason: Reason
) -> None:
    error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata())
    failure = from_rpc_error(error)
    assert (failure.reason, failure.message, failure.metadata) == (reason, code.name, {"grpc_status": code.name})


def of_wrong_content() -> bytes:
    """Return a status whose detail says that it is ours, and isn't."""
    detail = any_pb2.Any(type_url="type.googleapis.com/statehouse.v1.LookupError", value=b"\xff")
    return status_pb2.Status(details=[detail]).SerializeToString()


@pytest.mark.parametrize("status", [b"\xff", of_wrong_content()])
def test_details_that_can_not_be_read_count_as_none(status: bytes) -> None:
    failure = from_status(grpc.StatusCode.UNAVAILABLE, "who knows", status)
    assert (failure.reason, failure.message) == (Reason.UNREACHABLE, "who knows")


def test_a_code_that_nobody_knows_is_unknown() -> None:
    failure = from_rpc_error(CallFailed(status_pb2.Status(code=99, message="who knows")))
    assert (failure.reason, failure.message) == (Reason.INTERNAL, "who knows")
