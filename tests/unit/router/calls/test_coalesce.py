"""Lookups for one node that go together, and what each of them gets."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

import grpc
import grpc.aio
import pytest
from google.protobuf.message import DecodeError

from router.calls.attempts import CallOutcome
from router.calls.coalesce import Coalescer
from router.telemetry.metrics import RouterMetrics
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.failures import from_rpc_error
from statehouse.v1 import query_service_pb2
from tests.support.polling import poll_until_async
from tests.unit.router.fake_nodes import Fleet
from tests.unit.router.making_calls import NODE, ScriptedNode, body, response

Start = Callable[..., Awaitable[Fleet]]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait for a call lasts until its end: when lookups go together must not hang on this machine's speed."""
    monkeypatch.setattr("router.calls.coalesce._LONGEST_WAIT_S", math.inf)


class Lookups:
    """A coalescer in front of a scripted node."""

    def __init__(self, max_message_bytes: int = 1_000_000) -> None:
        self.node, self.metrics = ScriptedNode(), RouterMetrics()
        self.coalescer = Coalescer(self.node.send, self.metrics, max_message_bytes=max_message_bytes)

    async def ask(self, *keys: str, timeout_s: float = 60.0, method: str = "Get") -> list[asyncio.Task[CallOutcome]]:
        """Begin lookups, and let them get as far as they do on their own."""
        tasks = [asyncio.create_task(self._ask(method, key, timeout_s)) for key in keys]
        await settled()
        return tasks

    async def _ask(self, method: str, key: str, timeout_s: float) -> CallOutcome:
        return await self.coalescer.ask(NODE, method, body(key), timeout_s)

    async def answer(self, call: int, **refusals: LookupFailure) -> None:
        """Answer a call, and let what follows from it happen."""
        self.node.calls[call].answer(refusals)
        await settled()


async def settled() -> None:
    """Let all tasks go on until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


def rpc_error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


async def test_with_nothing_under_way_a_lookup_goes_at_once_as_a_get() -> None:
    lookups = Lookups()
    for number, key in enumerate("abc"):
        (lookup,) = await lookups.ask(key)
        assert lookups.node.shapes[-1] == ("Get", key)
        await lookups.answer(number)
        assert await lookup == response(key)
    assert not lookups.coalescer.queues, "a node that isn't asked anything takes no room"


@pytest.mark.feature("concurrent-lookups-node")
async def test_lookups_wait_for_the_call_under_way_and_go_together() -> None:
    lookups = Lookups()
    tasks = await lookups.ask("a", "b", "c", "d")
    assert lookups.node.shapes == [("Get", "a")]
    await lookups.answer(0)
    assert lookups.node.shapes[1:] == [("BatchGet", "b", "c", "d")]
    tasks += await lookups.ask("e")
    await lookups.answer(1)
    assert lookups.node.shapes[2:] == [("Get", "e")], "one alone goes as a Get"
    await lookups.answer(2)
    assert [await task for task in tasks] == [response(key) for key in "abcde"]
    assert not lookups.coalescer.queues
    assert lookups.metrics.registry.get_sample_value("statehouse_router_coalesced_lookups_sum") == 3


@pytest.mark.feature("routers-pass-answers")
async def test_answers_are_passed_on_unread() -> None:
    unreadable = [b"\xff\xff\xff no message", b"\x12\xff", b"\x00"]
    for answer in unreadable:
        with pytest.raises(DecodeError):
            query_service_pb2.GetResponse.FromString(answer)
    lookups = Lookups()
    tasks = await lookups.ask("a", "b", "c")
    lookups.node.calls[0].reply.set_result(unreadable[0])
    await settled()
    batch = b"".join(_field(1, _field(1, answer)) for answer in unreadable[1:])
    lookups.node.calls[1].reply.set_result(batch)
    assert [await task for task in tasks] == unreadable


def _field(number: int, content: bytes) -> bytes:
    """A short message within a message, as protobuf writes it."""
    return bytes([number << 3 | 2, len(content)]) + content


async def test_other_methods_neither_wait_nor_keep_others_waiting() -> None:
    lookups = Lookups()
    await lookups.ask("a")
    await lookups.ask("b", "c", method="FetchWindows")
    assert lookups.node.shapes[1:] == [("FetchWindows", "b"), ("FetchWindows", "c")]


async def test_each_lookup_has_its_own_refusal() -> None:
    lookups = Lookups()
    tasks = await lookups.ask("a", "b", "c")
    await lookups.answer(0)
    await lookups.answer(1, b=LookupFailure(Reason.PARTITION_RESTORING, "at 5 of 10", {"position": "5"}))
    assert await tasks[2] == response("c")
    refusal = await tasks[1]
    assert isinstance(refusal, LookupFailure)
    assert (refusal.reason, refusal.message) == (Reason.PARTITION_RESTORING, "at 5 of 10")
    assert refusal.metadata == {"position": "5"}


async def test_a_lookup_that_would_wait_goes_again_alone_and_keeps_nobody_waiting() -> None:
    lookups = Lookups()
    tasks = await lookups.ask("a", "b", "c")
    await lookups.answer(0)
    await lookups.answer(1, b=LookupFailure(Reason.WOULD_WAIT, "not there yet"))
    assert lookups.node.shapes[2:] == [("Get", "b")]
    tasks += await lookups.ask("d")
    assert lookups.node.shapes[3:] == [("Get", "d")]
    for call in (2, 3):
        await lookups.answer(call)
    assert [await task for task in tasks] == [response(key) for key in "abcd"]


async def test_a_call_that_fails_fails_all_its_lookups() -> None:
    lookups = Lookups()
    _, *tasks = await lookups.ask("a", "b", "c")
    await lookups.answer(0)
    lookups.node.calls[1].reply.set_exception(rpc_error(grpc.StatusCode.UNAVAILABLE, "connection refused"))
    for task in tasks:
        with pytest.raises(grpc.aio.AioRpcError, match="connection refused"):
            await task


async def test_a_connection_that_is_closed_cancels_all_its_lookups_but_not_their_callers() -> None:
    lookups = Lookups()
    _, *tasks = await lookups.ask("a", "b", "c")
    await lookups.answer(0)
    lookups.node.calls[1].reply.cancel()
    await settled()
    assert all(task.cancelled() and not task.cancelling() for task in tasks)


async def test_an_answer_that_is_none_is_everybodys_failure() -> None:
    lookups = Lookups()
    _, *tasks = await lookups.ask("a", "b", "c")
    await lookups.answer(0)
    lookups.node.calls[1].reply.set_result(b"")
    for task in tasks:
        outcome = await task
        assert isinstance(outcome, LookupFailure)
        assert outcome.reason is Reason.INTERNAL


async def test_what_a_message_does_not_hold_is_asked_for_in_several() -> None:
    lookups = Lookups(max_message_bytes=2 * (len(body("a")) + 32))
    tasks = await lookups.ask(*"abcdef")
    for call in range(4):
        await lookups.answer(call)
    assert lookups.node.shapes == [("Get", "a"), ("BatchGet", "b", "c"), ("BatchGet", "d", "e"), ("Get", "f")]
    assert [await task for task in tasks] == [response(key) for key in "abcdef"]


@pytest.mark.feature("batches-pages-bounded")
async def test_of_an_answer_that_is_too_large_halves_are_asked_for_and_only_the_large_value_fails() -> None:
    lookups = Lookups()
    _, *tasks = await lookups.ask(*"abcde")
    await lookups.answer(0)
    too_large = rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, "Received message larger than max (9 vs. 8)")
    done = 1
    while done < len(lookups.node.calls):
        call = lookups.node.calls[done]
        if "d" in call.keys:
            call.reply.set_exception(too_large)
        else:
            call.answer()
        done += 1
        await settled()
    assert lookups.node.shapes[1:] == [
        ("BatchGet", "b", "c", "d", "e"),
        ("BatchGet", "b", "c"),
        ("BatchGet", "d", "e"),
        ("Get", "d"),
        ("Get", "e"),
    ]
    assert [await tasks[number] for number in (0, 1, 3)] == [response(key) for key in "bce"]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await tasks[2]
    assert from_rpc_error(caught.value).reason is Reason.MESSAGE_TOO_LARGE


async def test_each_lookup_keeps_its_own_deadline_and_the_call_has_the_longest() -> None:
    lookups = Lookups()
    await lookups.ask("a")
    (short,) = await lookups.ask("b", timeout_s=0.05)
    (long,) = await lookups.ask("c", timeout_s=40.0)
    await lookups.answer(0)
    assert 30.0 < lookups.node.calls[1].timeout_s <= 40.0
    with pytest.raises(TimeoutError):
        await short
    assert not lookups.node.calls[1].reply.done()
    await lookups.answer(1)
    assert await long == response("c")


async def test_a_lookup_whose_caller_has_left_is_not_sent() -> None:
    lookups = Lookups()
    tasks = await lookups.ask("a", "b", "c", "d")
    tasks[2].cancel()
    await settled()
    await lookups.answer(0)
    assert lookups.node.shapes[1:] == [("BatchGet", "b", "d")]


async def test_a_call_ends_when_the_last_of_its_callers_leaves() -> None:
    lookups = Lookups()
    _, *tasks = await lookups.ask("a", "b", "c")
    await lookups.answer(0)
    for left, task in enumerate(tasks):
        assert not lookups.node.calls[1].reply.cancelled(), left
        task.cancel()
        await settled()
    assert lookups.node.calls[1].reply.cancelled()
    assert not lookups.coalescer.queues
    await lookups.ask("d")
    assert lookups.node.shapes[-1] == ("Get", "d")


async def test_a_call_whose_callers_leave_before_it_begins_is_not_made() -> None:
    lookups = Lookups()
    first, *others = await lookups.ask("a", "b", "c")
    lookups.node.calls[0].answer()
    for other in others:
        other.cancel()
    await settled()
    assert first.done()
    assert lookups.node.shapes == [("Get", "a")]
    assert not lookups.coalescer.queues


async def test_a_call_without_an_answer_keeps_others_waiting_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.calls.coalesce._LONGEST_WAIT_S", 0.02)
    lookups = Lookups()
    tasks = await lookups.ask("a", "b", "c")
    await poll_until_async(lambda: len(lookups.node.calls) > 1, 10, "the others to go without it")
    assert lookups.node.shapes[1:] == [("BatchGet", "b", "c")]
    await lookups.answer(1)
    assert [await task for task in tasks[1:]] == [response("b"), response("c")]
    tasks += await lookups.ask("d")
    assert lookups.node.shapes[2:] == [("Get", "d")], "the call that is late counts no more"
    for call in (0, 2):
        await lookups.answer(call)
    assert [await task for task in tasks] == [response(key) for key in "abcd"]
    assert not lookups.coalescer.queues


def open_lookups(fleet: Fleet) -> int:
    """How many lookups the router says it has under way: the one that a node has, and those that wait for it."""
    return int(fleet.router.metrics.registry.get_sample_value("statehouse_router_open_lookups") or 0)


async def test_lookups_through_the_router_go_together_while_a_call_is_under_way(start: Start) -> None:
    fleet = await start("a", attempt_timeout_ms=8_000)
    node = fleet.nodes["a"]
    node.failures["k7"] = LookupFailure(Reason.VALUE_UNDECODABLE, "not a number")
    node.freeze()
    first = asyncio.create_task(fleet.get("first"))
    await poll_until_async(lambda: node.held, 10, "the first call")
    others = [asyncio.create_task(fleet.get(f"k{number}")) for number in range(20)]
    await poll_until_async(lambda: open_lookups(fleet) == 21, 10, "the others to wait for it")
    node.thaws.set()
    assert await first == "a"
    found = await asyncio.gather(*others, return_exceptions=True)
    (batch,) = node.batches
    assert {request.key.text for request in batch} == {f"k{each}" for each in range(20)}
    assert all(request.forwarding.hops == 1 for request in batch)
    failure = found.pop(7)
    assert isinstance(failure, grpc.aio.AioRpcError)
    assert from_rpc_error(failure).reason is Reason.VALUE_UNDECODABLE
    assert found == ["a"] * 19


async def test_a_refused_lookup_goes_on_at_the_standby_and_shows_that_its_node_is_well(start: Start) -> None:
    fleet = await start("a", "b", attempt_timeout_ms=8_000)
    node = fleet.nodes["a"]
    node.failures["k1"] = LookupFailure(Reason.PARTITION_RESTORING, "at 5 of 10")
    node.freeze()
    lookups = [asyncio.create_task(fleet.get(f"k{number}")) for number in range(4)]
    await poll_until_async(lambda: node.held, 10, "the first call")
    await poll_until_async(lambda: open_lookups(fleet) == 4, 10, "the others to wait for it")
    node.thaws.set()
    assert await asyncio.gather(*lookups) == ["a", "b", "a", "a"]
    assert not fleet.router.health.suspects


async def test_lookups_at_a_frozen_node_go_elsewhere_and_leave_no_call_behind(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.calls.coalesce._LONGEST_WAIT_S", 0.01)
    fleet = await start("a", "b", attempt_timeout_ms=300)
    node = fleet.nodes["a"]
    node.freeze()
    assert await asyncio.gather(*(fleet.get(f"k{number}") for number in range(50))) == ["b"] * 50
    assert "a" in fleet.router.health.suspects
    await poll_until_async(lambda: not fleet.router.coalescer.queues, 10, "the calls to end")
    node.thaws.set()
    await poll_until_async(lambda: not fleet.router.health.suspects, 10, "a probe to get through")
    assert not node.lookups, "nobody waits for what it was asked while it was frozen"


async def test_the_callers_of_a_whole_batch_leave(start: Start) -> None:
    fleet = await start("a", attempt_timeout_ms=8_000)
    node = fleet.nodes["a"]
    node.freeze()
    first = asyncio.create_task(fleet.get("k0"))
    await poll_until_async(lambda: node.held == 1, 10, "the first call")
    others = [asyncio.create_task(fleet.get(f"k{number}")) for number in range(1, 5)]
    await poll_until_async(lambda: open_lookups(fleet) == 5, 10, "the others to wait for it")
    # Before the first one, as the router hears of each separately: it would send those that it takes to be there still.
    for lookup in others:
        lookup.cancel()
    await poll_until_async(lambda: open_lookups(fleet) == 1, 10, "the router to forget the others")
    first.cancel()
    await poll_until_async(lambda: not fleet.router.coalescer.queues, 10, "the router to forget the call")
    await poll_until_async(lambda: node.left_held == 1, 10, "the node to be told")
    assert node.held == 1, "nothing was sent for callers who have left"
