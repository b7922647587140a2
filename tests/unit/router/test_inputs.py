"""From input records to positions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import grpc.aio
import pytest

from router.inputs import CommitTail, Inputs, latest
from statehouse.control.v1 import commits_pb2
from statehouse.errors import LookupFailure, Reason
from statehouse.positions import Token
from statehouse.rpc.deadline import Deadline
from statehouse.rpc.failures import from_rpc_error
from statehouse.v1 import fleet_service_pb2, fleet_service_pb2_grpc
from tests.unit.router.fake_nodes import Fleet
from tests.unit.router.fleets import STORE

Start = Callable[..., Awaitable[Fleet]]
CLICKS, VIEWS = ("clicks", 0), ("views", 0)


def commit(
    batch: int, sources: Mapping[tuple[str, int], int], changelog: Mapping[int, int], query: str = "q"
) -> commits_pb2.Commit:
    """The record of a batch: next offsets of the inputs, and of the changelog's partitions."""
    return commits_pb2.Commit(
        store=STORE,
        query_id=query,
        batch_id=batch,
        source_ends=[commits_pb2.TopicOffset(topic=t, partition=p, offset=o) for (t, p), o in sources.items()],
        changelog_ends=[commits_pb2.TopicOffset(topic="log", partition=p, offset=o) for p, o in changelog.items()],
    )


@pytest.fixture
def tail() -> CommitTail:
    tail = CommitTail()
    tail.feed(commit(0, {CLICKS: 5, VIEWS: 1}, {0: 10, 1: 20}))
    tail.feed(commit(1, {CLICKS: 8, VIEWS: 1}, {0: 15, 1: 20}))
    tail.feed(commit(2, {CLICKS: 8, VIEWS: 4}, {0: 15, 1: 30}))
    return tail


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ({CLICKS: 4}, {0: 10, 1: 20}),
        ({CLICKS: 5}, {0: 15, 1: 20}),
        ({CLICKS: 7}, {0: 15, 1: 20}),
        ({CLICKS: 8}, None),
        ({VIEWS: 2}, {0: 15, 1: 30}),
        ({CLICKS: 4, VIEWS: 2}, {0: 15, 1: 30}),
        ({CLICKS: 4, VIEWS: 4}, None),
        ({("clicks", 3): 0}, None),
    ],
)
def test_the_first_commit_that_has_all_records_counts(
    tail: CommitTail, records: Mapping[tuple[str, int], int], found: Mapping[int, int] | None
) -> None:
    assert tail.positions(records) == found


def test_a_topic_that_is_no_input_is_refused(tail: CommitTail) -> None:
    with pytest.raises(LookupFailure, match="clicks, views") as caught:
        tail.positions({("scores", 0): 1})
    assert caught.value.reason is Reason.INVALID_REQUEST


def test_of_several_records_of_a_partition_the_last_counts_and_a_negative_offset_is_refused() -> None:
    records = [fleet_service_pb2.InputRecord(topic="clicks", offset=offset) for offset in (0, 4, 2)]
    assert latest(records) == {CLICKS: 4}
    records.append(fleet_service_pb2.InputRecord(topic="clicks", offset=-1))
    with pytest.raises(LookupFailure, match="offset -1 of clicks:0 is negative") as caught:
        latest(records)
    assert caught.value.reason is Reason.INVALID_REQUEST


def test_a_repeated_batch_says_nothing_new(tail: CommitTail) -> None:
    tail.feed(commit(2, {CLICKS: 8, VIEWS: 4}, {0: 99, 1: 99}))
    assert tail.positions({VIEWS: 3}) == {0: 15, 1: 30}


def test_a_query_that_began_anew_has_read_nothing_yet(tail: CommitTail) -> None:
    tail.feed(commit(0, {CLICKS: 2, VIEWS: 0}, {0: 40, 1: 40}, query="another"))
    assert tail.positions({CLICKS: 1}) == {0: 40, 1: 40}
    assert tail.positions({CLICKS: 4}) is None


def test_for_a_record_from_before_the_tail_its_oldest_commit_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.inputs._TAIL", 2)
    tail = CommitTail()
    for batch in range(5):
        tail.feed(commit(batch, {CLICKS: batch}, {0: 10 * batch}))
    assert tail.positions({CLICKS: 0}) == {0: 30}


async def test_who_waits_hears_of_the_commit() -> None:
    inputs = Inputs()
    waiting = asyncio.create_task(inputs.processed(STORE, {CLICKS: 5}, Deadline.after(30.0)))
    inputs.on_commit(commit(0, {CLICKS: 5}, {0: 1}))
    await asyncio.sleep(0)
    assert not waiting.done()
    inputs.on_commit(commit(1, {CLICKS: 6}, {0: 2}))
    assert await waiting == Token({(STORE, 0): 2})


async def test_too_many_who_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.inputs._MAX_WAITS", 1)
    inputs = Inputs()
    waiting = asyncio.create_task(inputs.processed(STORE, {CLICKS: 5}, Deadline.after(30.0)))
    await asyncio.sleep(0)
    with pytest.raises(LookupFailure) as caught:
        await inputs.processed(STORE, {CLICKS: 5}, Deadline.after(30.0))
    assert caught.value.reason is Reason.OVERLOADED
    inputs.on_commit(commit(1, {CLICKS: 6}, {0: 2}))
    await waiting


async def _await_input(fleet: Fleet, *records: tuple[str, int, int], store: str = STORE) -> Token | Reason:
    stub = fleet_service_pb2_grpc.FleetServiceStub(fleet.channel)
    request = fleet_service_pb2.AwaitInputRequest(
        store=store, records=[fleet_service_pb2.InputRecord(topic=t, partition=p, offset=o) for t, p, o in records]
    )
    try:
        return Token.from_proto((await stub.AwaitInput(request, timeout=1.0)).at_least)
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error).reason


async def test_the_service_answers_with_a_token_or_says_why_not(start: Start) -> None:
    fleet = await start("a")
    assert await _await_input(fleet, ("clicks", 0, 4)) is Reason.INPUT_NOT_PROCESSED
    fleet.router.inputs.on_commit(commit(0, {CLICKS: 5}, {0: 3}))
    assert await _await_input(fleet, ("clicks", 0, 4)) == Token({(STORE, 0): 3})
    assert await _await_input(fleet, ("clicks", 0, 2), ("clicks", 0, 5)) is Reason.INPUT_NOT_PROCESSED
    assert await _await_input(fleet, ("views", 0, 4)) is Reason.INVALID_REQUEST
    assert await _await_input(fleet) is Reason.INVALID_REQUEST
    assert await _await_input(fleet, ("clicks", 0, 4), ("clicks", 0, -1001)) is Reason.INVALID_REQUEST
    assert await _await_input(fleet, ("clicks", 0, 4), store="nope") is Reason.UNKNOWN_STORE
