"""Watches through a router: streams put together, moved when they break off, nothing passed on twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from router.watches import watch_relay as relay
from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.failures import from_rpc_error
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.polling import poll_until_async
from tests.unit.router.fake_nodes import FakeNode, Fleet
from tests.unit.router.fleets import STORE

Start = Callable[..., Awaitable[Fleet]]
MOVED = LookupFailure(Reason.PARTITION_RESTORING, "closed here")


class Watcher:
    """A stream read by a task. `offsets` are those of the changes that came, by partition."""

    def __init__(self, fleet: Fleet, **fields: Any) -> None:
        self.call = fleet.query.Watch(query_service_pb2.WatchRequest(store=STORE, **fields))
        self.responses: list[query_service_pb2.WatchResponse] = []
        self.failure: LookupFailure | None = None
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for response in self.call:
                self.responses.append(response)
        except grpc.RpcError as error:
            self.failure = from_rpc_error(error)

    def offsets(self, partition: int = 0) -> list[int]:
        return [
            event.offset
            for response in self.responses
            if response.replica.partition == partition and not response.current
            for event in response.events
        ]

    async def leave(self) -> None:
        self.call.cancel()
        await asyncio.wait({self.task})


def changes(*offsets: int, position: int | None = None, **fields: Any) -> query_service_pb2.WatchResponse:
    events = [query_service_pb2.WatchEvent(key=types_pb2.Key(text="k"), offset=offset) for offset in offsets]
    return query_service_pb2.WatchResponse(events=events, position=position, topic_id="id", **fields)


async def watched(node: FakeNode, partition: int = 0) -> None:
    await poll_until_async(lambda: partition in node.feeds, 5, "the node to be watched")


@pytest.mark.feature("watch-key-prefix")
async def test_it_goes_on_where_it_broke_off_and_repeats_nothing(start: Start) -> None:
    fleet = await start("a", "b")
    a, b = fleet.nodes["a"], fleet.nodes["b"]
    watcher = Watcher(fleet, key=types_pb2.Key(text="k"), freshness=types_pb2.Freshness(active_only=True))
    await watched(a)
    a.feed(0, changes(current=True, position=5), changes(5, 7, position=8), MOVED)
    await watched(b)
    request = b.watches[-1]
    assert [(each.partition, each.position, each.topic_id) for each in request.resume] == [(0, 8, "id")]
    assert not request.HasField("freshness"), "the bound is for the first answer; a standby may go on"
    assert (request.key.text, request.partition, request.forwarding.hops) == ("k", 0, 1)
    b.feed(0, changes(7, 8, 9, position=10))
    await poll_until_async(lambda: watcher.offsets() == [5, 7, 8, 9], 5, "the changes")
    await watcher.leave()
    await poll_until_async(lambda: (a.left, b.left) == (1, 1), 5, "the nodes to be left")


@pytest.mark.feature("watch-key-prefix")
async def test_partitions_share_one_stream(start: Start) -> None:
    fleet = await start("a", "b")
    fleet.heartbeat("a", 2)
    fleet.heartbeat("b", 2)
    await fleet.publish(TaskAssignment("a"), TaskAssignment("b"), epoch=2)
    watcher = Watcher(fleet, prefix=types_pb2.Key(text="k"))
    await watched(fleet.nodes["a"], 0)
    await watched(fleet.nodes["b"], 1)
    for offset in range(50):
        fleet.nodes["a"].feed(0, changes(offset, position=offset + 1))
        fleet.nodes["b"].feed(1, changes(offset, position=offset + 1))
    await poll_until_async(lambda: len(watcher.offsets(0) + watcher.offsets(1)) == 100, 10, "all changes")
    assert watcher.offsets(0) == watcher.offsets(1) == list(range(50))
    await watcher.leave()


@pytest.mark.feature("callers-ask-bounded")
async def test_watches_of_too_many_partitions_are_refused_and_give_their_places_back(start: Start) -> None:
    fleet = await start("a", max_watched_partitions=3)
    fleet.heartbeat("a", 2)
    await fleet.publish(TaskAssignment("a"), TaskAssignment("a"), epoch=2)
    whole = Watcher(fleet)
    await watched(fleet.nodes["a"], 1)
    refused = Watcher(fleet)
    await poll_until_async(lambda: refused.failure, 5, "the refusal")
    assert refused.failure is not None
    assert refused.failure.reason is Reason.OVERLOADED
    assert refused.failure.metadata == {"max_watched_partitions": "3"}
    one = Watcher(fleet, partition=0)
    await poll_until_async(lambda: len(fleet.nodes["a"].watches) == 3, 5, "one partition more")
    for watcher in (whole, one):
        await watcher.leave()
    await poll_until_async(lambda: fleet.router.watches._partitions == 0, 5, "the places")
    again = Watcher(fleet)
    await poll_until_async(lambda: len(fleet.nodes["a"].watches) == 5, 5, "both partitions again")
    await again.leave()


async def test_watches_that_keep_too_much_are_refused_and_give_their_room_back(start: Start) -> None:
    """Each is kept once for its caller, and once for each partition, by the call to a node."""
    fleet = await start("a")
    fleet.heartbeat("a", 3)
    await fleet.publish(TaskAssignment("a"), TaskAssignment("a"), TaskAssignment("a"), epoch=2)
    node = fleet.nodes["a"]
    large = {"prefix": types_pb2.Key(raw=bytes(1_000_000))}
    kept = []
    for number in range(1, 5):
        kept.append(Watcher(fleet, **large))
        await poll_until_async(lambda number=number: len(node.watches) == 3 * number, 5, "another one to be open")
    refused = Watcher(fleet, **large)
    await poll_until_async(lambda: refused.failure, 5, "the refusal")
    assert refused.failure is not None
    assert refused.failure.reason is Reason.OVERLOADED
    assert "16,777,216 are" in refused.failure.message
    small = Watcher(fleet, prefix=types_pb2.Key(text="k"))
    await poll_until_async(lambda: len(node.watches) == 15, 5, "a small one to be open")
    await kept.pop().leave()
    await poll_until_async(lambda: fleet.router.watches.streams.open == 4, 5, "one to be gone")
    kept.append(Watcher(fleet, **large))
    await poll_until_async(lambda: len(node.watches) == 18, 5, "room for it")
    for watcher in (*kept, small):
        await watcher.leave()


async def test_a_killed_and_a_frozen_node_are_left(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "SILENCE_S", 0.5)
    fleet = await start("a", "b", "c")
    a, b, c = (fleet.nodes[name] for name in "abc")
    watcher = Watcher(fleet, partition=0)
    await watched(a)
    a.feed(0, changes(1, position=2))
    await poll_until_async(lambda: watcher.offsets() == [1], 5, "a change")
    await a.kill()
    await watched(b)
    b.feed(0, changes(2, position=3))
    await poll_until_async(lambda: watcher.offsets() == [1, 2], 5, "the change after the kill")
    b.freeze()
    await watched(c)
    assert c.watches[-1].resume[0].position == 3
    c.feed(0, changes(3, position=4))
    await poll_until_async(lambda: watcher.offsets() == [1, 2, 3], 5, "the change after the freeze")
    await watcher.leave()


async def test_a_node_begins_so_many_at_once_and_the_others_learn_from_them(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "_BEGINNINGS_MAX", 2)
    fleet = await start("a", "b")
    a, b = (fleet.nodes[name] for name in "ab")
    a.freeze()
    watchers = [Watcher(fleet, partition=0) for _ in range(20)]
    await poll_until_async(lambda: len(b.watches) == 20, 10, "all to be watched at the other node")
    assert 2 <= a.held < 10, "two watches, and some probes"
    a.thaws.set()
    for watcher in watchers:
        await watcher.leave()


async def test_a_watch_does_not_wait_for_a_place_beyond_its_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_BEGINNINGS_MAX", 1)
    monkeypatch.setattr(relay, "FIRST_RESPONSE_S", 60.0)
    fleet = await start("a", request_timeout_ms=500, attempt_timeout_ms=100)
    fleet.nodes["a"].freeze()
    first, second = (Watcher(fleet, partition=0) for _ in range(2))
    await asyncio.wait({second.task, first.task}, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    (late,) = (each for each in (first, second) if each.failure is not None)
    assert late.failure is not None
    assert late.failure.reason is Reason.OVERLOADED
    assert "other watches were still to begin" in late.failure.message
    for watcher in (first, second):
        await watcher.leave()


async def test_a_replica_behind_the_position_is_asked_again(start: Start) -> None:
    fleet = await start("a", "b")
    a, b = fleet.nodes["a"], fleet.nodes["b"]
    behind = LookupFailure(Reason.LAG_EXCEEDS_BOUND, "not there yet")
    b.failure = lambda: behind if len(b.watches) < 3 else None
    watcher = Watcher(fleet, partition=0)
    await watched(a)
    a.feed(0, changes(1, position=2))
    await poll_until_async(lambda: watcher.offsets() == [1], 5, "a change")
    await a.kill()
    await watched(b)
    b.feed(0, changes(2, position=3))
    await poll_until_async(lambda: watcher.offsets() == [1, 2], 5, "the change")
    assert len(b.watches) == 3
    await watcher.leave()


async def test_a_gap_that_breaks_off_begins_anew_elsewhere(start: Start) -> None:
    fleet = await start("a", "b")
    a, b = fleet.nodes["a"], fleet.nodes["b"]
    b.failure = LookupFailure(Reason.PARTITION_RESTORING, "not yet")
    a.feed_all = [changes(current=True, begins=True, gap=True)]
    watcher = Watcher(fleet, partition=0, resume=[query_service_pb2.WatchPosition(partition=0, position=5)])
    await poll_until_async(lambda: any(each.gap for each in watcher.responses), 5, "a part of the current values")
    b.failure, b.feed_all = None, [changes(current=True, begins=True, position=9), changes(9, position=10)]
    await a.kill()
    await poll_until_async(lambda: watcher.offsets() == [9], 5, "what follows all current values")
    assert not b.watches[-1].resume, "from the old position on there would be changes only"
    assert [each.begins for each in watcher.responses if each.current] == [True, True]
    await watcher.leave()


async def test_incomplete_current_values_renew_the_patience(start: Start) -> None:
    fleet = await start("a", "b", request_timeout_ms=300)
    a, b = fleet.nodes["a"], fleet.nodes["b"]
    loop = asyncio.get_running_loop()
    watcher = Watcher(fleet, partition=0)
    await watched(a)
    over_at = loop.time() + 0.4
    a.feed(0, changes(current=True, begins=True))
    await poll_until_async(lambda: loop.time() > over_at and len(watcher.responses) == 2, 5, "the first time to pass")
    a.failure = LookupFailure(Reason.PARTITION_RESTORING, "closed here")
    b.failure = lambda: LookupFailure(Reason.OVERLOADED, "too many") if len(b.watches) < 3 else None
    a.feed(0, MOVED)
    await watched(b)
    assert len(b.watches) == 3
    await watcher.leave()


async def test_it_ends_when_nobody_can_go_on(start: Start) -> None:
    fleet = await start("a", watch_resume_timeout_ms=300)
    watcher = Watcher(fleet, partition=0)
    await watched(fleet.nodes["a"])
    fleet.nodes["a"].feed(0, changes(1, position=2))
    await poll_until_async(lambda: watcher.offsets() == [1], 5, "a change")
    await fleet.nodes["a"].kill()
    await asyncio.wait({watcher.task}, timeout=10)
    assert watcher.failure is not None
    assert watcher.failure.reason is Reason.NO_REPLICA_AVAILABLE
    assert [each.host.instance_id for each in watcher.failure.candidates] == ["a"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"key": types_pb2.Key()}, Reason.INVALID_KEY),
        ({"partition": 9}, Reason.INVALID_REQUEST),
        ({"resume": [query_service_pb2.WatchPosition(partition=9, position=1)]}, Reason.INVALID_REQUEST),
        ({"resume": [query_service_pb2.WatchPosition(partition=0)]}, Reason.INVALID_REQUEST),
        ({"freshness": types_pb2.Freshness(max_lag=-1)}, Reason.INVALID_REQUEST),
        ({"forwarding": types_pb2.Forwarding(hops=1)}, Reason.HOP_LIMIT),
    ],
)
async def test_wrong_requests_are_refused(start: Start, fields: dict[str, Any], reason: Reason) -> None:
    fleet = await start("a")
    watcher = Watcher(fleet, **fields)
    await asyncio.wait({watcher.task}, timeout=10)
    assert watcher.failure is not None
    assert watcher.failure.reason is reason
    assert not fleet.nodes["a"].watches


async def test_watches_are_bounded_and_end_with_the_router(start: Start) -> None:
    fleet = await start("a", max_watches=1)
    first = Watcher(fleet, partition=0)
    await watched(fleet.nodes["a"])
    second = Watcher(fleet, partition=0)
    await asyncio.wait({second.task}, timeout=10)
    assert second.failure is not None
    assert second.failure.reason is Reason.OVERLOADED
    fleet.router.watches.streams.stop()
    await asyncio.wait({first.task}, timeout=10)
    assert first.failure is not None
    assert first.failure.reason is Reason.NODE_SHUTTING_DOWN
    await poll_until_async(lambda: fleet.nodes["a"].left == 1, 5, "the node to be left")
    assert fleet.router.watches.streams.open == 0


async def test_a_gap_is_passed_on_only_if_no_other_replica_can_do_without(start: Start) -> None:
    fleet = await start("a", "b", "c")
    a, b, c = (fleet.nodes[name] for name in "abc")
    watcher = Watcher(fleet, partition=0)
    await watched(a)
    a.feed(0, changes(1, position=2), MOVED)
    await watched(b)
    b.feed(0, changes(current=True, gap=True, position=9))
    await watched(c)
    assert c.watches[-1].resume[0].position == 2
    c.feed(0, changes(2, position=3))
    await poll_until_async(lambda: watcher.offsets() == [1, 2], 5, "the change that b lacked")
    assert not any(response.gap for response in watcher.responses)
    # Now nobody can: any node may say so. The changelog is another one: its offsets are smaller, and new.
    await a.kill()
    c.feed_all = b.feed_all = [changes(current=True, gap=True, position=0), changes(0, position=1)]
    c.feed(0, MOVED)
    await poll_until_async(lambda: watcher.offsets() == [1, 2, 0], 10, "what follows the gap")
    assert sum(response.gap for response in watcher.responses) == 1
    await watcher.leave()
