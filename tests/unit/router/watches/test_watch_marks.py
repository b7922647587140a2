"""Watches that mark moments, through a router: whole batches, whatever nodes send first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from router.watches import watch_relay as relay
from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.polling import poll_until_async
from tests.unit.router.fake_nodes import Fleet
from tests.unit.router.watches.test_watch_relay import MOVED, Watcher, changes, watched

Start = Callable[..., Awaitable[Fleet]]
QUERY = "q"
ALIVE = query_service_pb2.WatchResponse(mark=query_service_pb2.WatchMark())


def moment(batch_id: int) -> types_pb2.Moment:
    return types_pb2.Moment(query_id=QUERY, batch_id=batch_id)


def part(batch_id: int, *offsets: int, ends: bool = False, **fields: Any) -> query_service_pb2.WatchResponse:
    """Changes that lead up to a batch's end, or to it."""
    position = (offsets[-1] if offsets else 99) + 1
    return changes(*offsets, position=position, moment=moment(batch_id), moment_ends=ends, **fields)


async def on_two_nodes(start: Start, *standbys: str) -> Fleet:
    fleet = await start("a", "b", *standbys)
    for name in ("a", "b", *standbys):
        fleet.nodes[name].kept = []
        fleet.heartbeat(name, 2)
    await fleet.publish(TaskAssignment("a", standbys), TaskAssignment("b"), epoch=2)
    return fleet


def shown(watcher: Watcher) -> list[Any]:
    """The changes, as partition and offsets, and the marks, as batch and positions, in the order in which they came."""
    return [
        (response.mark.moment.batch_id, [(each.partition, each.position) for each in response.mark.positions])
        if response.HasField("mark")
        else (response.replica.partition, [event.offset for event in response.events])
        for response in watcher.responses
        if response.events or response.mark.HasField("moment")
    ]


async def test_a_partition_that_is_ahead_waits_for_the_mark(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "PROGRESS_INTERVAL_S", 0.05)
    fleet = await on_two_nodes(start)
    a, b = fleet.nodes["a"], fleet.nodes["b"]
    watcher = Watcher(
        fleet, mark_moments=True, freshness=types_pb2.Freshness(moment=types_pb2.MomentBound(newest=True))
    )
    await watched(a, 0)
    await watched(b, 1)
    assert {each.freshness.moment.newest for each in (*a.watches, *b.watches)} == {True}
    a.feed(0, part(5, 1, 2), part(5, 3, ends=True), part(6, 4, ends=True))
    await poll_until_async(lambda: watcher.responses.count(ALIVE) > 3, 5, "signs of life")
    assert shown(watcher) == [(0, [1, 2]), (0, [3])]
    b.feed(1, part(5, 7, ends=True), part(6, ends=True))
    await poll_until_async(lambda: len(shown(watcher)) == 6, 5, "both batches")
    assert watcher.responses[0] == ALIVE
    assert shown(watcher)[2:] == [(1, [7]), (5, [(0, 4), (1, 8)]), (0, [4]), (6, [(0, 5), (1, 100)])]
    (mark,) = (each.mark for each in watcher.responses if each.mark.moment.batch_id == 5)
    assert {each.after.batch_id for each in mark.positions} == {5}
    await watcher.leave()
    again = Watcher(fleet, mark_moments=True, resume=mark.positions)
    await poll_until_async(lambda: len(a.watches) == len(b.watches) == 2, 5, "them to be watched again")
    assert [list(node.watches[-1].resume) for node in (a, b)] == [[each] for each in mark.positions]
    await again.leave()


async def test_it_goes_on_within_a_batch_and_never_before_a_mark(start: Start) -> None:
    fleet = await on_two_nodes(start, "c")
    a, b, c = (fleet.nodes[name] for name in "abc")
    watcher = Watcher(fleet, mark_moments=True)
    await watched(a, 0)
    await watched(b, 1)
    b.feed(1, part(5, ends=True), part(6, ends=True))
    a.feed(0, part(5, 1, ends=True), part(6, 2, 3), MOVED)
    await watched(c, 0)
    (resumed,) = c.watches[-1].resume
    assert (resumed.position, resumed.after) == (4, moment(5))
    # This one knows no batch 6. Then both lack changes, and the caller is given values, but not all of them.
    values = changes(1, moment=moment(8), gap=True, current=True, begins=True)
    c.feed(0, part(7, 4), values)
    await poll_until_async(lambda: len(a.watches) == 2, 5, "the first one to be asked again")
    await watched(a, 0)
    a.feed(0, values)
    await poll_until_async(lambda: len(a.watches) + len(c.watches) == 4, 5, "one of them to be asked for values")
    (node,) = (each for each in (a, c) if len(each.watches) > 1 + (each is a))
    node.feed(0, values, MOVED)
    await poll_until_async(lambda: len(a.watches) + len(c.watches) == 5, 5, "the other to be asked for all of them")
    (other,) = {a, c} - {node}
    assert not other.watches[-1].resume
    assert other.watches[-1].freshness.moment.at_least.moments == [moment(5)]
    other.feed(0, changes(1, moment=moment(8), current=True, begins=True, position=9, moment_ends=True))
    b.feed(1, part(8, ends=True))
    await poll_until_async(lambda: shown(watcher)[-1] == (8, [(0, 9), (1, 100)]), 5, "the mark")
    assert [each for each, _ in shown(watcher)[:3]] == [0, 5, 0]
    await watcher.leave()


async def test_a_node_of_an_earlier_version_is_named(start: Start) -> None:
    fleet = await start("a")
    watcher = Watcher(fleet, partition=0, mark_moments=True)
    await watched(fleet.nodes["a"])
    fleet.nodes["a"].feed(0, changes(current=True, position=5))
    await poll_until_async(lambda: watcher.failure, 5, "the failure")
    assert watcher.failure is not None
    assert watcher.failure.reason is Reason.MOMENTS_UNAVAILABLE
    assert "a" in {each.host.instance_id for each in watcher.failure.candidates}
    assert "earlier version" in str([each.detail for each in watcher.failure.candidates])


async def test_batches_of_another_query_end_it(start: Start) -> None:
    fleet = await on_two_nodes(start)
    watcher = Watcher(fleet, mark_moments=True)
    await watched(fleet.nodes["a"], 0)
    await watched(fleet.nodes["b"], 1)
    fleet.nodes["a"].feed(0, part(5, 1, ends=True))
    await poll_until_async(lambda: shown(watcher), 5, "the change")
    other = part(1, 7)
    other.moment.query_id = "new"
    fleet.nodes["b"].feed(1, other)
    await asyncio.wait({watcher.task}, timeout=10)
    assert watcher.failure is not None
    assert watcher.failure.reason is Reason.MOMENT_GONE


async def test_it_ends_once_all_replicas_say_that_its_batches_are_gone(start: Start) -> None:
    """To ask them again would help nobody, though the watch has begun."""
    fleet = await on_two_nodes(start, "c")
    watcher = Watcher(fleet, mark_moments=True)
    await watched(fleet.nodes["a"], 0)
    await watched(fleet.nodes["b"], 1)
    gone = LookupFailure(Reason.MOMENT_GONE, "the batches began anew")
    fleet.nodes["a"].feed(0, part(5, 1, ends=True), gone)
    await watched(fleet.nodes["c"], 0)
    assert not watcher.task.done()
    fleet.nodes["c"].feed(0, gone)
    await asyncio.wait({watcher.task}, timeout=10)
    assert watcher.failure is not None
    assert watcher.failure.reason is Reason.MOMENT_GONE
    assert "began anew" in watcher.failure.message


async def test_a_moment_is_for_watches_that_mark_some(start: Start) -> None:
    fleet = await start("a")
    watcher = Watcher(fleet, freshness=types_pb2.Freshness(moment=types_pb2.MomentBound(newest=True)))
    await asyncio.wait({watcher.task}, timeout=10)
    assert isinstance(watcher.failure, LookupFailure)
    assert watcher.failure.reason is Reason.INVALID_REQUEST
