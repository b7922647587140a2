"""What a failed call says about its node."""

from __future__ import annotations

import asyncio
import time

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


async def probe(_node: RoutedNode, _timeout_s: float) -> bool:
    raise AssertionError("it is never asked")


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED])
async def test_a_refusal_of_the_caller_shows_that_the_node_is_well(code: grpc.StatusCode) -> None:
    codes = iter([grpc.StatusCode.UNAVAILABLE, code])

    async def ask(_node: RoutedNode, _method: str, _body: bytes, _timeout_s: float) -> bytes:
        raise grpc.aio.AioRpcError(next(codes), grpc.aio.Metadata(), grpc.aio.Metadata())

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


@pytest.mark.feature("slow-dead-nodes")
@pytest.mark.parametrize(("is_behind", "answers"), [(True, True), (True, False), (False, True)])
async def test_a_router_that_is_behind_suspects_nobody_who_answers(*, is_behind: bool, answers: bool) -> None:
    may_answer = asyncio.Event()

    async def ask(_node: RoutedNode, method: str, _body: bytes, _timeout_s: float) -> bytes:
        if method == "Get":
            await may_answer.wait()
        return b"answer"

    health = NodeHealth(probe, probe_timeout_s=0.1, probes=_NEVER)
    attempts = Attempts(ask, health, AnswerTimes(quantile=0.95, least_s=0.01, most_s=0.25))
    limits = AttemptLimits(Deadline(asyncio.get_running_loop().time() + 5.0), 0.02, lambda: True)
    making = asyncio.create_task(attempts.make(NODE, "Get", b"", limits, kind=None))
    await asyncio.sleep(0)
    if answers:
        assert await attempts.make(NODE, "Count", b"", limits, kind=None) == b"answer"
    if is_behind:
        time.sleep(0.1)  # noqa: ASYNC251 - nothing else runs meanwhile, as in a router that has too much to do
    if is_behind and answers:
        await asyncio.sleep(0)  # the timer runs, late
        may_answer.set()
        assert await making == b"answer"
        assert not health.suspects
    else:
        failure = await making
        assert isinstance(failure, LookupFailure)
        assert (failure.reason, set(health.suspects)) == (Reason.ATTEMPT_TIMED_OUT, {NODE.instance_id})
    await health.close()
