"""Lookups that the proxy has sent to a node already: that is their first attempt."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from google.rpc import code_pb2, status_pb2

from router.lookups.batch import BatchGetter
from router.lookups.dispatch import NodeAnswer
from router.lookups.keyed import KeyLookups
from router.lookups.locate import keyed_call
from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure, Reason, reason_name
from statehouse.errors.statuses import to_status
from statehouse.link.handed import HandedLookup
from statehouse.link.link import CallFailed
from statehouse.rpc.deadline import Deadline
from statehouse.serdes.wire import framed, result_of
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.polling import poll_until_async
from tests.unit.router.fake_nodes import Fleet
from tests.unit.router.fleets import STORE
from tests.unit.router.making_calls import body

Start = Callable[..., Awaitable[Fleet]]
Came = asyncio.Future[bytes | LookupFailure | None]


def handed(
    fleet: Fleet, to: str, ago_s: float = 0.0, lookups: int = 1, partitions: tuple[int, ...] = ()
) -> tuple[HandedLookup, Came]:
    loop = asyncio.get_running_loop()
    came: Came = loop.create_future()
    address = f"127.0.0.1:{fleet.nodes[to].port}" if to in fleet.nodes else "127.0.0.1:1"
    return HandedLookup(to, address, loop.time() - ago_s, came, lookups, partitions), came


async def batch(fleet: Fleet, keys: str, *calls: HandedLookup, is_handed: bool = True) -> list[str]:
    """Return who answered each of a batch, or why nobody did."""
    getter: BatchGetter = fleet.router.first.lookups.batches
    data = await getter.batch_get(framed(body(key) for key in keys), Deadline.after(60.0), calls if is_handed else None)
    results = query_service_pb2.BatchGetResponse.FromString(data).results
    return [
        each.response.replica.host.instance_id if each.HasField("response") else reason_name(each.error.reason)
        for each in results
    ]


def metric(fleet: Fleet, name: str, **labels: str) -> float:
    return fleet.router.metrics.registry.get_sample_value(f"statehouse_router_{name}_total", labels) or 0.0


async def answer(fleet: Fleet, lookup: HandedLookup) -> NodeAnswer:
    keys: KeyLookups = fleet.router.first.lookups.keys
    call = keyed_call(fleet.router.tables.current(), "Get", body("k"))
    return await keys.answer(call, Deadline.after(60.0), handed=lookup)


def by(found: NodeAnswer) -> str:
    return query_service_pb2.GetResponse.FromString(found.data).replica.host.instance_id


async def test_an_answer_that_the_caller_has_ends_the_lookup_and_nobody_is_asked(start: Start) -> None:
    fleet = await start("a", "b")
    lookup, came = handed(fleet, "a")
    came.set_result(b"")
    assert (await answer(fleet, lookup)).data == b""
    assert not fleet.nodes["a"].gets
    assert not fleet.nodes["b"].gets


@pytest.mark.parametrize("is_refused", [True, False])
async def test_what_did_not_go_well_is_asked_elsewhere(start: Start, is_refused: bool) -> None:
    fleet = await start("a", "b")
    lookup, came = handed(fleet, "a")
    if is_refused:
        came.set_result(LookupFailure(Reason.PARTITION_RESTORING, "at 5 of 10"))
    else:
        came.set_exception(CallFailed(status_pb2.Status(code=code_pb2.UNAVAILABLE, message="connection refused")))
    assert by(await answer(fleet, lookup)) == "b"
    assert not fleet.nodes["a"].gets
    assert ("a" in fleet.router.health.suspects) is not is_refused


@pytest.mark.parametrize("said", [None, LookupFailure(Reason.WOULD_WAIT, "it would wait")])
async def test_of_whom_nothing_is_known_is_asked_again(start: Start, said: LookupFailure | None) -> None:
    fleet = await start("a", "b")
    lookup, came = handed(fleet, "a")
    came.set_result(said)
    assert by(await answer(fleet, lookup)) == "a"


async def test_a_late_one_is_hedged_at_once_and_either_may_answer(start: Start) -> None:
    fleet = await start("a", "b", attempt_timeout_ms=8_000, hedge_min_ms=1)
    lookup, _came = handed(fleet, "a", ago_s=1.0)
    assert by(await answer(fleet, lookup)) == "b"
    assert not fleet.nodes["a"].gets
    fleet.nodes["b"].freeze()
    lookup, came = handed(fleet, "a", ago_s=1.0)
    under_way = asyncio.create_task(answer(fleet, lookup))
    await poll_until_async(lambda: fleet.nodes["b"].held, 10, "the hedge")
    came.set_result(b"")
    assert (await under_way).data == b""


async def test_one_that_is_silent_for_as_long_as_an_attempt_may_take_counts_as_such(start: Start) -> None:
    fleet = await start("a", "b", attempt_timeout_ms=20_000, hedge_min_ms=20_000)
    lookup, _came = handed(fleet, "a", ago_s=19.9)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert by(await answer(fleet, lookup)) == "b"
    assert loop.time() - began < 15.0, "the time before it was handed over counts"
    assert fleet.router.health.suspects["a"].reason is Reason.ATTEMPT_TIMED_OUT


async def test_a_node_that_the_table_no_longer_names_first_is_not_waited_for_alone(start: Start) -> None:
    fleet = await start("a", "b")
    lookup, _came = handed(fleet, "gone", ago_s=0.1)
    assert by(await answer(fleet, lookup)) == "a"


async def test_what_failed_at_an_address_that_a_node_has_left_is_not_held_against_it(start: Start) -> None:
    fleet = await start("a")
    lookup, came = handed(fleet, "a", lookups=2)
    lookup = dataclasses.replace(lookup, address="127.0.0.1:1")
    came.set_exception(CallFailed(status_pb2.Status(code=code_pb2.UNAVAILABLE, message="connection refused")))
    assert by(await answer(fleet, lookup)) == "a"
    assert await batch(fleet, "12", lookup) == ["a", "a"]
    assert "a" not in fleet.router.health.suspects


def refusals(*reasons: Reason) -> bytes:
    return framed(result_of(LookupFailure(reason, "no")) for reason in reasons)


async def test_of_a_handed_batch_each_refusal_goes_its_own_way(start: Start) -> None:
    fleet = await start("a", "b")
    call, came = handed(fleet, "a", lookups=3)
    came.set_result(refusals(Reason.PARTITION_RESTORING, Reason.INVALID_KEY, Reason.WOULD_WAIT))
    assert await batch(fleet, "1234", call) == ["b", "INVALID_KEY", "a", "a"]
    assert [[each.key.text for each in batch] for batch in fleet.nodes["a"].batches] == [["4"]]
    assert [each.key.text for each in fleet.nodes["a"].gets] == ["3"]
    assert metric(fleet, "lookups", store=STORE, outcome="OK", role="") == 3
    assert "a" not in fleet.router.health.suspects


async def test_a_handed_batch_that_failed_is_asked_elsewhere_in_one_call(start: Start) -> None:
    fleet = await start("a", "b")
    call, came = handed(fleet, "a", lookups=2)
    came.set_exception(CallFailed(status_pb2.Status(code=code_pb2.UNAVAILABLE, message="connection refused")))
    assert await batch(fleet, "12", call) == ["b", "b"]
    assert len(fleet.nodes["b"].batches) == 1
    assert not fleet.nodes["a"].batches
    assert "a" in fleet.router.health.suspects
    assert metric(fleet, "attempts", reason="UNREACHABLE") == 1


async def test_a_handed_batch_that_was_too_large_is_asked_in_halves(start: Start) -> None:
    fleet = await start("a", "b")
    call, came = handed(fleet, "a", lookups=4)
    came.set_exception(CallFailed(status_pb2.Status(code=code_pb2.RESOURCE_EXHAUSTED, message="larger than max")))
    assert await batch(fleet, "1234", call) == ["a"] * 4
    assert [len(batch) for batch in fleet.nodes["a"].batches] == [2, 2]


async def test_a_late_batch_is_waited_for_as_long_as_an_attempt_may_take_in_all(start: Start) -> None:
    fleet = await start("a", "b", attempt_timeout_ms=20_000)
    answered, came = handed(fleet, "a", lookups=1, ago_s=2.0)
    under_way = asyncio.create_task(batch(fleet, "12", answered))
    await poll_until_async(lambda: fleet.nodes["a"].batches, 15, "the rest to be asked for")
    came.set_result(framed([result_of(query_service_pb2.GetResponse(found=True).SerializeToString())]))
    assert await under_way == ["", "a"]
    silent, _ = handed(fleet, "a", lookups=1, ago_s=19.9)
    began = asyncio.get_running_loop().time()
    assert await batch(fleet, "1", silent) == ["b"]
    assert asyncio.get_running_loop().time() - began < 15.0, "the time before it was handed over counts"
    assert fleet.router.health.suspects["a"].reason is Reason.ATTEMPT_TIMED_OUT


async def test_calls_to_whom_the_table_no_longer_has_and_of_broken_lookups_are_made_anew(start: Start) -> None:
    fleet = await start("a", "b")
    gone, _ = handed(fleet, "gone", lookups=1)
    assert await batch(fleet, "12", gone) == ["a", "a"]
    unread, came = handed(fleet, "a", lookups=2)
    came.set_result(b"")
    getter: BatchGetter = fleet.router.first.lookups.batches
    data = await getter.batch_get(framed([b"\xff", body("1")]), Deadline.after(5.0), [unread])
    first, second = query_service_pb2.BatchGetResponse.FromString(data).results
    assert first.HasField("error")
    assert second.response.replica.host.instance_id == "a"


async def test_what_the_proxy_has_admitted_is_not_refused_when_it_is_handed_over(start: Start) -> None:
    fleet = await start("a", "b", max_lookups=1)
    with fleet.router.first.lookups.limit.admitted(1):
        with pytest.raises(LookupFailure):
            await batch(fleet, "1", is_handed=False)
        assert await batch(fleet, "1") == ["a"]
        call, came = handed(fleet, "a", lookups=1)
        came.set_result(refusals(Reason.PARTITION_RESTORING))
        assert await batch(fleet, "1", call) == ["b"]


async def two_nodes(start: Start, attempt_timeout_ms: int = 1_000) -> Fleet:
    """Partitions 0 and 2 on a, 1 on b; each is the other's standby, and has one key of each partition."""
    fleet = await start("a", "b", attempt_timeout_ms=attempt_timeout_ms)
    await fleet.publish(TaskAssignment("a", ("b",)), TaskAssignment("b", ("a",)), TaskAssignment("a", ("b",)), epoch=2)
    for name, node in fleet.nodes.items():
        fleet.heartbeat(name, 3)
        node.data = {partition: {b"%d" % partition: b""} for partition in range(3)}
    while len(fleet.router.tables.current().stores[STORE].partitions[2].callable) < 2:
        await fleet.router.tables.wait_for_epoch(3, 0.02)
    return fleet


async def page(fleet: Fleet, *calls: HandedLookup, **fields: Any) -> dict[int, str]:
    """Return who has answered for each partition."""
    request = query_service_pb2.ScanRequest(store=STORE, **fields)
    data = await fleet.router.first.lookups.scatter.page(request, Deadline.after(60.0), calls)
    found = query_service_pb2.ScanResponse.FromString(data)
    assert [entry.key.text for entry in found.entries] == [str(each) for each in sorted(_partitions(found))]
    return {stamp.partition: stamp.host.instance_id for stamp in found.replicas}


def _partitions(found: query_service_pb2.ScanResponse) -> list[int]:
    return [stamp.partition for stamp in found.replicas]


def part(by: str, *partitions: int) -> bytes:
    keys = [b"%d" % partition for partition in partitions]
    return query_service_pb2.ScanResponse(
        entries=[query_service_pb2.Entry(key=types_pb2.Key(text=key.decode())) for key in keys],
        entry_keys=keys,
        replicas=[types_pb2.ReplicaStamp(partition=each, host=types_pb2.Host(instance_id=by)) for each in partitions],
    ).SerializeToString()


async def test_what_a_node_answered_for_a_page_is_not_asked_again(start: Start) -> None:
    fleet = await two_nodes(start)
    (first, came), (second, refused) = (handed(fleet, "a", partitions=(0, 2)), handed(fleet, "b", partitions=(1,)))
    came.set_result(part("a", 0, 2))
    refused.set_exception(CallFailed(to_status(LookupFailure(Reason.PARTITION_RESTORING, "at 3 of 5"))))
    assert await page(fleet, first, second) == {0: "a", 2: "a", 1: "a"}
    assert [list(each.partitions) or [each.partition] for each in fleet.nodes["a"].scans] == [[1]]
    assert fleet.nodes["b"].scans == []
    assert metric(fleet, "attempts", reason="OK") == 2
    assert metric(fleet, "attempts", reason="PARTITION_RESTORING") == 1


async def test_a_node_that_was_gone_for_a_page_is_suspected_and_others_are_asked(start: Start) -> None:
    fleet = await two_nodes(start)
    lookup, came = handed(fleet, "a", partitions=(0, 2))
    came.set_exception(CallFailed(status_pb2.Status(code=code_pb2.UNAVAILABLE, message="connection refused")))
    assert await page(fleet, lookup) == {0: "b", 1: "b", 2: "b"}
    assert "a" in fleet.router.health.suspects
    assert fleet.nodes["a"].scans == []


async def test_a_late_page_is_waited_for_as_if_the_router_had_asked(start: Start) -> None:
    fleet = await two_nodes(start)
    lookup, came = handed(fleet, "a", ago_s=0.5, partitions=(0, 2))
    under_way = asyncio.create_task(page(fleet, lookup))
    await poll_until_async(lambda: fleet.nodes["b"].scans, 10, "the other node to be asked")
    came.set_result(part("a", 0, 2))
    assert await under_way == {0: "a", 1: "b", 2: "a"}


@pytest.mark.parametrize("partitions", [(0, 3), (7,)])
async def test_calls_for_partitions_that_a_page_is_not_of_are_passed_over(
    start: Start, partitions: tuple[int, ...]
) -> None:
    fleet = await two_nodes(start)
    (lookup, came), (elsewhere, moved) = handed(fleet, "a", partitions=partitions), handed(fleet, "c", partitions=(1,))
    came.set_result(part("a", *partitions))
    moved.set_result(part("c", 1))
    assert await page(fleet, lookup, elsewhere) == {0: "a", 1: "b", 2: "a"}


async def test_of_a_page_with_one_partition_the_call_is_the_first_attempt(start: Start) -> None:
    fleet = await two_nodes(start)
    lookup, came = handed(fleet, "b", partitions=(1,))
    came.set_result(None)
    assert await page(fleet, lookup, partition=1) == {1: "b"}
    assert len(fleet.nodes["b"].scans) == 1
    lookup, came = handed(fleet, "b", partitions=(1,))
    came.set_result(part("b", 1))
    assert await page(fleet, lookup, partition=1) == {1: "b"}
    assert len(fleet.nodes["b"].scans) == 1
