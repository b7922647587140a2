"""Each lookup has what it would have had alone, whatever lookups go together, and however their calls end."""

from __future__ import annotations

import asyncio
import math
from unittest.mock import patch

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.calls.attempts import CallOutcome
from router.calls.coalesce import Coalescer
from router.telemetry.metrics import RouterMetrics
from statehouse.errors import LookupFailure, Reason
from tests.unit.router.making_calls import NODE, PendingCall, ScriptedNode, body, response

REFUSED, WAITS, TOO_LARGE = "refused", "waits", "too-large"
KINDS = st.sampled_from(("plain", "plain", "plain", REFUSED, WAITS, TOO_LARGE))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), KINDS),
        st.tuples(st.sampled_from(("answer", "fail", "close", "leave", "go on")), st.integers(0, 20)),
    ),
    max_size=60,
)


def end(call: PendingCall, how: str) -> None:
    """End a call: by the answers to its lookups, or all of it by a failure."""
    if call.reply.done():
        return
    if how == "close":
        call.reply.cancel()
    elif how == "fail":
        call.reply.set_exception(rpc_error(grpc.StatusCode.UNAVAILABLE, "connection refused"))
    elif any(key.endswith(TOO_LARGE) for key in call.keys):
        call.reply.set_exception(rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max"))
    else:
        refusals = {key: LookupFailure(Reason.NOT_ACTIVE, key) for key in call.keys if key.endswith(REFUSED)}
        refusals |= {key: LookupFailure(Reason.WOULD_WAIT, key) for key in call.keys if key.endswith(WAITS)}
        call.answer(refusals)


def rpc_error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Run:
    """Lookups that are asked, left, answered and failed in any order."""

    def __init__(self, max_message_bytes: int) -> None:
        self.node = ScriptedNode()
        self.coalescer = Coalescer(self.node.send, RouterMetrics(), max_message_bytes=max_message_bytes)
        self.lookups: dict[str, asyncio.Task[CallOutcome]] = {}
        self.left: set[str] = set()
        self.broken: set[str] = set()

    def ask(self, kind: str) -> None:
        key = f"{len(self.lookups)}-{kind}"
        self.lookups[key] = asyncio.create_task(self.coalescer.ask(NODE, "Get", body(key), 60.0))

    def leave(self, number: int) -> None:
        if number < len(self.lookups):
            key = list(self.lookups)[number]
            if self.lookups[key].cancel():
                self.left.add(key)

    def end(self, number: int, how: str) -> None:
        under_way = [call for call in self.node.calls if not call.reply.done()]
        if number < len(under_way):
            if how != "answer":
                self.broken |= set(under_way[number].keys)
            end(under_way[number], how)

    async def finish(self) -> None:
        """Answer all that is under way, and what comes of it."""
        while under_way := [call for call in self.node.calls if not call.reply.done()]:
            for call in under_way:
                end(call, "answer")
            await settled()

    def check(self, key: str) -> None:
        """A lookup that nobody left and no failed call took along has its own outcome."""
        task = self.lookups[key]
        assert task.done(), key
        if key in self.left | self.broken:
            return
        if key.endswith(TOO_LARGE):
            assert "larger than max" in str(task.exception())
        elif key.endswith(REFUSED) and not isinstance(task.result(), bytes):
            outcome = task.result()
            assert isinstance(outcome, LookupFailure)
            assert (outcome.reason, outcome.message) == (Reason.NOT_ACTIVE, key)
        else:
            assert task.result() == response(key)


@pytest.mark.feature("concurrent-lookups-node")
@pytest.mark.feature("routers-pass-answers")
@given(steps=STEPS, room=st.integers(1, 12), longest_wait_s=st.sampled_from((0.0, math.inf)))
def test_every_lookup_has_its_own_outcome_whatever_goes_together(
    steps: list[tuple[str, str | int]], room: int, longest_wait_s: float
) -> None:
    async def play() -> None:
        run = Run(room * (len(body("10-too-large")) + 32))
        for step, detail in steps:
            if step == "ask":
                run.ask(str(detail))
            elif step == "leave":
                run.leave(int(detail))
            elif step == "go on":
                await settled()
            else:
                run.end(int(detail), step)
        await settled()
        await run.finish()
        for key in run.lookups:
            run.check(key)
        assert not run.coalescer.queues
        sent = [key for call in run.node.calls for key in call.keys if call.method == "BatchGet"]
        alone = {key for call in run.node.calls for key in call.keys if call.method == "Get"}
        assert alone | set(sent) >= run.lookups.keys() - run.left

    with patch("router.calls.coalesce._LONGEST_WAIT_S", longest_wait_s):
        asyncio.run(play())
