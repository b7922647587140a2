"""Coalescing, whatever the order in which calls end and callers leave: each caller gets exactly its answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.client import lookup_queue
from statehouse.client.answers import Answer, Host
from statehouse.client.batches import LookupOutcome
from statehouse.client.lookup_queue import LookupQueue, QueuedLookup
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2, types_pb2

MAX_BYTES = 120
_TURNS = 1_000

steps = st.one_of(
    st.tuples(st.just("ask"), st.integers(1, 40)),
    st.tuples(st.just("answer"), st.integers(0, 5)),
    st.tuples(st.just("fail"), st.integers(0, 5)),
    st.tuples(st.just("leave"), st.integers(0, 20)),
    st.tuples(st.just("late"), st.integers(0, 5)),
    st.tuples(st.just("turn"), st.just(0)),
)


class Calls:
    """The calls under way, which end as a test says."""

    def __init__(self) -> None:
        self.queue = LookupQueue(self._send, MAX_BYTES)
        self.under_way: list[tuple[list[str], asyncio.Future[bool]]] = []
        self.sent: list[str] = []
        self.failed: set[str] = set()

    async def _send(self, lookups: Sequence[QueuedLookup]) -> list[LookupOutcome]:
        keys = [lookup.request.key.text for lookup in lookups]
        assert len(keys) == 1 or sum(lookup.size for lookup in lookups) <= MAX_BYTES
        assert len(self.under_way) < lookup_queue.MAX_CALLS
        self.sent += keys
        ending = (keys, asyncio.get_running_loop().create_future())
        self.under_way.append(ending)
        try:
            if await ending[1]:
                return [Answer(True, key, 0, 1, Host("a", "", 0), "ACTIVE", 1, 0, 0) for key in keys]
            self.failed.update(keys)
            return [LookupFailure(Reason.UNREACHABLE, key) for key in keys]
        finally:
            self.under_way.remove(ending)

    def end(self, number: int, *, well: bool) -> None:
        if self.under_way:
            ending = self.under_way[number % len(self.under_way)][1]
            if not ending.done():
                ending.set_result(well)

    def late(self, number: int) -> None:
        calls = sorted(self.queue._calls, key=id)
        if calls:
            self.queue._release(calls[number % len(calls)])


class Script:
    """A run of steps, and what became of each caller."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.callers: dict[str, asyncio.Task[LookupOutcome]] = {}
        self.left: set[str] = set()

    async def play(self, step: str, number: int) -> None:
        match step:
            case "ask":
                key = f"{len(self.callers)}-".ljust(number, "x")
                request = query_service_pb2.GetRequest(key=types_pb2.Key(text=key))
                self.callers[key] = asyncio.create_task(self.calls.queue.ask(request, math.inf))
            case "answer" | "fail":
                self.calls.end(number, well=step == "answer")
            case "leave" if self.callers:
                key = list(self.callers)[number % len(self.callers)]
                if self.callers[key].cancel():
                    self.left.add(key)
            case "late":
                self.calls.late(number)
            case "turn":
                await asyncio.sleep(0)

    async def end(self) -> None:
        """Answer all that is left, until nothing is under way: the next call drops the callers that left."""
        for _ in range(_TURNS):
            if not self.calls.queue._calls and all(caller.done() for caller in self.callers.values()):
                return
            self.calls.end(0, well=True)
            await asyncio.sleep(0)

    def check(self, key: str) -> None:
        caller = self.callers[key]
        if caller.cancelled():
            assert key in self.left
            return
        outcome = caller.result()
        if isinstance(outcome, Answer):
            assert outcome.value == key
        else:
            assert outcome.message == key
            assert key in self.calls.failed


@pytest.mark.feature("concurrent-lookups-node")
@given(st.lists(steps, max_size=80))
def test_each_caller_gets_exactly_its_answer(steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        script = Script()
        for step, number in steps:
            await script.play(step, number)
        await script.end()
        for key in script.callers:
            script.check(key)
        assert len(script.calls.sent) == len(set(script.calls.sent)), "no lookup is sent twice"
        assert not script.calls.queue._waiting

    asyncio.run(run())
