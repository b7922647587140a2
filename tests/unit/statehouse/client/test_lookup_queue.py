"""What leaves when, and what becomes of those that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import pytest

from statehouse.client import lookup_queue
from statehouse.client.answers import Answer, Host
from statehouse.client.batches import LookupOutcome
from statehouse.client.lookup_queue import LookupQueue, QueuedLookup
from statehouse.errors import LookupFailure, Reason
from statehouse.runtime.batches import MAX_ENTRIES
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.polling import poll_until_async

NEVER = float("inf")


class Destination:
    """Takes calls and answers each lookup with its key, once a call is let go."""

    def __init__(self, max_bytes: int = 10**6) -> None:
        self.calls: list[list[str]] = []
        self.cancelled: list[list[str]] = []
        self._let_go: list[asyncio.Event] = []
        self.queue = LookupQueue(self._send, max_bytes)

    async def _send(self, lookups: Sequence[QueuedLookup]) -> list[LookupOutcome]:
        keys = [lookup.request.key.text for lookup in lookups]
        self.calls.append(keys)
        self._let_go.append(asyncio.Event())
        try:
            await self._let_go[-1].wait()
        except asyncio.CancelledError:
            self.cancelled.append(keys)
            raise
        return [Answer(True, key, 0, 1, Host("a", "", 0), "ACTIVE", 1, 0, 0) for key in keys]

    def let_go(self, number: int) -> None:
        self._let_go[number].set()

    def ask(self, key: str, give_up_at: float = NEVER) -> asyncio.Task[LookupOutcome]:
        request = query_service_pb2.GetRequest(key=types_pb2.Key(text=key))
        return asyncio.create_task(self.queue.ask(request, give_up_at))

    async def called(self, count: int) -> None:
        await poll_until_async(lambda: len(self.calls) >= count, 10, f"call {count}")


async def value(asking: asyncio.Task[LookupOutcome]) -> object:
    outcome = await asking
    assert isinstance(outcome, Answer)
    return outcome.value


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no call be late unless a test says so."""
    monkeypatch.setattr(lookup_queue, "LATE_S", 60.0)


async def test_an_idle_queue_sends_at_once_and_what_comes_meanwhile_goes_together() -> None:
    to = Destination()
    first = to.ask("1")
    await to.called(1)
    others = [to.ask(key) for key in "234"]
    await asyncio.sleep(0)
    assert to.calls == [["1"]]
    to.let_go(0)
    await to.called(2)
    to.let_go(1)
    assert [await value(each) for each in (first, *others)] == ["1", "2", "3", "4"]
    assert to.calls == [["1"], ["2", "3", "4"]]


async def test_what_is_asked_in_one_breath_leaves_together() -> None:
    to = Destination()
    asking = [to.ask(str(number)) for number in range(50)]
    await to.called(1)
    to.let_go(0)
    assert [await value(each) for each in asking] == [str(number) for number in range(50)]
    assert len(to.calls) == 1


async def test_calls_are_split_by_count_and_bytes() -> None:
    to, small = Destination(), Destination(max_bytes=250)
    many = [to.ask(str(number)) for number in range(MAX_ENTRIES + 5)]
    long = [small.ask("x" * length) for length in (80, 80, 80, 300, 10)]
    for number in range(4):
        await small.called(number + 1)
        small.let_go(number)
    for number in range(2):
        await to.called(number + 1)
        to.let_go(number)
    assert [await value(each) for each in many] == [str(number) for number in range(MAX_ENTRIES + 5)]
    assert [len(keys) for keys in to.calls] == [MAX_ENTRIES, 5]
    await asyncio.gather(*long)
    assert [[len(key) for key in keys] for keys in small.calls] == [[80, 80], [80], [300], [10]]


async def test_a_late_call_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_queue, "LATE_S", 0.001)
    monkeypatch.setattr(lookup_queue, "MAX_CALLS", 2)
    to = Destination()
    late = to.ask("late")
    await to.called(1)
    second = to.ask("2")
    await to.called(2)
    third = to.ask("3")
    to.let_go(1)
    assert await value(second) == "2"
    await to.called(3)
    assert to.calls == [["late"], ["2"], ["3"]], "never more than two at once"
    to.let_go(2)
    to.let_go(0)
    assert [await value(third), await value(late)] == ["3", "late"]


async def test_who_leaves_takes_the_lookup_along_and_the_last_one_the_call() -> None:
    to = Destination()
    first = to.ask("1")
    await to.called(1)
    second, third = to.ask("2"), to.ask("3")
    await asyncio.sleep(0)
    second.cancel()
    to.let_go(0)
    await to.called(2)
    assert to.calls[1] == ["3"]
    third.cancel()
    await poll_until_async(lambda: to.cancelled == [["3"]], 10, "the call to be cancelled")
    assert await value(first) == "1"
    both = [to.ask("4"), to.ask("5")]
    await to.called(3)
    both[0].cancel()
    to.let_go(2)
    assert await value(both[1]) == "5"


async def test_each_lookup_ends_at_its_own_time_and_the_last_one_ends_the_call() -> None:
    to = Destination()
    now = asyncio.get_running_loop().time()
    # Not in the order of their times, and one of them waits for a call that is never made.
    patient, soon, sooner = to.ask("patient"), to.ask("soon", now + 0.1), to.ask("sooner", now + 0.05)
    await to.called(1)
    waits = to.ask("waits", now + 0.05)
    ended = []
    for each in (patient, soon, sooner, waits):
        each.add_done_callback(ended.append)
    with pytest.raises(TimeoutError):
        await soon
    assert set(ended) == {sooner, waits, soon}
    assert ended[-1] is soon
    for each in (sooner, waits):
        with pytest.raises(TimeoutError):
            await each
    assert asyncio.get_running_loop().time() >= now + 0.1
    assert not to.cancelled, "one lookup still waits for the call"
    to.let_go(0)
    assert await value(patient) == "patient"
    late = to.ask("late", asyncio.get_running_loop().time() + 0.02)
    with pytest.raises(TimeoutError):
        await late
    await poll_until_async(lambda: bool(to.cancelled), 10, "the call that nobody waits for ends")
    assert to.calls == [["patient", "soon", "sooner"], ["late"]]


async def test_those_that_wait_can_be_refused_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_queue, "MAX_WAITING", 2)
    to = Destination()
    first = to.ask("1")
    await to.called(1)
    waiting, refusal = [to.ask("2"), to.ask("3")], LookupFailure(Reason.UNREACHABLE, "gone")
    await asyncio.sleep(0)
    overflow = await to.ask("4")
    assert isinstance(overflow, LookupFailure)
    assert overflow.reason is Reason.OVERLOADED
    to.queue.refuse_waiting(refusal)
    assert await asyncio.gather(*waiting) == [refusal, refusal]
    to.let_go(0)
    assert await value(first) == "1"


async def test_a_queue_that_is_closed_fails_all() -> None:
    to = Destination()
    asking = [to.ask("1")]
    await to.called(1)
    asking.append(to.ask("2"))
    await asyncio.sleep(0)
    await to.queue.close()
    for outcome in await asyncio.gather(*asking):
        assert isinstance(outcome, LookupFailure)
        assert outcome.reason is Reason.UNREACHABLE


async def test_a_defect_reaches_all_callers_and_the_queue_goes_on() -> None:
    async def send(lookups: Sequence[QueuedLookup]) -> list[LookupOutcome]:
        if len(lookups) > 1:
            raise ZeroDivisionError
        return [LookupFailure(Reason.INVALID_KEY, "wrong")]

    queue = LookupQueue(send, 10**6)
    both = [asyncio.create_task(queue.ask(query_service_pb2.GetRequest(), NEVER)) for _ in range(2)]
    for asking in both:
        with suppress(ZeroDivisionError):
            await asking
            pytest.fail("it must be raised")
    assert isinstance(await queue.ask(query_service_pb2.GetRequest(), NEVER), LookupFailure)
