"""What a failed call says about its node."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest

from router.calls.attempts import AttemptLimits, Attempts
from router.calls.health import NodeHealth
from router.choice.answer_times import AnswerTimes
from router.fleet.table import RoutedNode
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.deadline import Deadline
from statehouse.runtime.backoff import BackoffPolicy
from tests.unit.router.making_calls import NODE

_NEVER = BackoffPolicy("probe", 3_600.0, 3_600.0)


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED])
async def test_a_refusal_of_the_caller_shows_that_the_node_is_well(code: grpc.StatusCode) -> None:
    codes = iter([grpc.StatusCode.UNAVAILABLE, code])

    async def ask(_node: RoutedNode, _method: str, _body: bytes, _timeout_s: float) -> bytes:
        raise grpc.aio.AioRpcError(next(codes), grpc.aio.Metadata(), grpc.aio.Metadata())

    async def probe(_node: RoutedNode, _timeout_s: float) -> bool:
        raise AssertionError("it is never asked")

    health = NodeHealth(probe, probe_timeout_s=0.1, probes=_NEVER)
    attempts = Attempts(ask, health, AnswerTimes(quantile=0.95, least_s=0.01, most_s=0.25))
    loop = asyncio.get_running_loop()
    limits = AttemptLimits(Deadline(loop.time() + 5.0), 1.0, lambda: True)
    first = await attempts.make(NODE, "Get", b"", limits, kind=None)
    assert isinstance(first, LookupFailure)
    assert (first.reason, set(health.suspects)) == (Reason.UNREACHABLE, {NODE.instance_id})
    second = await attempts.make(NODE, "Get", b"", limits, kind=None)
    assert isinstance(second, LookupFailure)
    assert (second.reason.name, set(health.suspects)) == (code.name, set())
    await health.close()
