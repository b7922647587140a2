"""What a failed call means that has none of our details."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from statehouse.errors import Reason
from statehouse.rpc.failures import from_rpc_error


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.UNAVAILABLE, Reason.UNREACHABLE),
        (grpc.StatusCode.CANCELLED, Reason.UNREACHABLE),
        (grpc.StatusCode.DEADLINE_EXCEEDED, Reason.ATTEMPT_TIMED_OUT),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Reason.OVERLOADED),
        (grpc.StatusCode.UNKNOWN, Reason.INTERNAL),
    ],
)
def test_a_status_without_details_has_the_reason_that_its_code_stands_for(
    code: grpc.StatusCode, reason: Reason
) -> None:
    error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata())
    failure = from_rpc_error(error)
    assert (failure.reason, failure.message, failure.metadata) == (reason, code.name, {"grpc_status": code.name})
