"""Callers that wait for the processor to have input records."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import grpc.aio
import pytest

from router.fleet_api.inputs import Inputs
from statehouse.contract.moments import MomentToken
from statehouse.contract.positions import Token
from statehouse.contract.topology import StoreSpec
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.deadline import Deadline
from statehouse.rpc.failures import from_rpc_error
from statehouse.runtime.held_bytes import HELD_BYTES_MAX
from statehouse.v1 import fleet_service_pb2, fleet_service_pb2_grpc
from tests.unit.router.commits import CLICKS, commit
from tests.unit.router.fake_nodes import Fleet
from tests.unit.router.fleets import STORE

Start = Callable[..., Awaitable[Fleet]]


@pytest.mark.feature("least-input-record")
async def test_who_waits_hears_of_the_commit() -> None:
    inputs = Inputs()
    waiting = asyncio.create_task(inputs.processed(STORE, {CLICKS: 5}, Deadline.after(30.0), 50))
    inputs.on_commit(commit(0, {CLICKS: 5}, {0: 1}))
    await asyncio.sleep(0)
    assert not waiting.done()
    inputs.on_commit(commit(1, {CLICKS: 6}, {0: 2}))
    assert await waiting == Token({(STORE, 0): 2})


async def test_after_a_reset_the_records_are_to_be_processed_again() -> None:
    inputs = Inputs()
    inputs.on_commit(commit(7, {CLICKS: 6}, {0: 90}))
    inputs.on_reset(STORE)
    inputs.on_reset("never heard of")
    waiting = asyncio.create_task(inputs.processed(STORE, {CLICKS: 5}, Deadline.after(30.0), 50))
    await asyncio.sleep(0)
    assert not waiting.done()
    inputs.on_commit(commit(0, {CLICKS: 6}, {0: 2}))
    assert await waiting == Token({(STORE, 0): 2})


async def test_too_many_who_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.fleet_api.inputs._MAX_WAITS", 1)
    inputs = Inputs()
    waiting = asyncio.create_task(inputs.processed(STORE, {CLICKS: 5}, Deadline.after(30.0), 50))
    await asyncio.sleep(0)
    with pytest.raises(LookupFailure) as caught:
        await inputs.processed(STORE, {CLICKS: 5}, Deadline.after(30.0), 50)
    assert caught.value.reason is Reason.OVERLOADED
    inputs.on_commit(commit(1, {CLICKS: 6}, {0: 2}))
    await waiting


async def test_those_who_wait_keep_so_much_and_no_more() -> None:
    inputs = Inputs()
    many = {("clicks", number): 5 for number in range(1_000)}
    waiting = [asyncio.create_task(inputs.processed(STORE, many, Deadline.after(30.0), 50_000)) for _ in range(47)]
    await asyncio.sleep(0)
    with pytest.raises(LookupFailure, match="calls that wait for the processor") as caught:
        await asyncio.wait_for(inputs.processed(STORE, many, Deadline.after(30.0), 50_000), 10)
    assert caught.value.reason is Reason.OVERLOADED
    waiting.append(asyncio.create_task(inputs.processed(STORE, {CLICKS: 5}, Deadline.after(30.0), 50)))
    await asyncio.sleep(0)
    inputs.on_commit(commit(1, dict.fromkeys(many, 6), {0: 2}))
    assert await asyncio.gather(*waiting) == [Token({(STORE, 0): 2})] * 48
    assert await inputs.processed(STORE, many, Deadline.after(30.0), HELD_BYTES_MAX - 300_000)


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


def test_a_batch_tells_what_it_has_of_the_inputs_if_reads_can_be_of_it() -> None:
    inputs, spec = Inputs(), StoreSpec(STORE, "log", 1, 0, committed=True)
    with pytest.raises(LookupFailure, match="told the end of no batch") as caught:
        inputs.moment(spec, MomentToken())
    assert caught.value.reason is Reason.MOMENTS_UNAVAILABLE
    inputs.on_commit(commit(7, {CLICKS: 5}, {0: 3}, is_moment=True))
    found = inputs.moment(spec, MomentToken())
    assert found.moment.batch_id == 7
    assert [(each.topic, each.partition, each.offset) for each in found.source_ends] == [(*CLICKS, 5)]
    with pytest.raises(LookupFailure, match="no processor of ours writes it"):
        inputs.moment(replace(spec, committed=False), MomentToken())


async def test_the_service_says_why_a_store_has_no_batches(start: Start) -> None:
    stub = fleet_service_pb2_grpc.FleetServiceStub((await start("a")).channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GetMoment(fleet_service_pb2.GetMomentRequest(store=STORE), timeout=1.0)
    assert from_rpc_error(caught.value).reason is Reason.MOMENTS_UNAVAILABLE


async def test_what_a_processor_does_not_tell_of_its_last_batch_counts_as_of_the_one_before() -> None:
    inputs = Inputs()
    inputs.on_commit(commit(0, {CLICKS: 5}, {0: 10, 1: 20}))
    inputs.on_commit(commit(1, {CLICKS: 8}, {0: 12, 1: 21}))
    assert await inputs.sources_at(STORE, {0: 10, 1: 20}, 30.0) == {CLICKS: 5}
    assert await inputs.sources_at(STORE, {0: 11}, 30.0) == {CLICKS: 8}
    assert await inputs.sources_at(STORE, {0: 13, 1: 20}, 0.01) == {CLICKS: 8}
    assert await inputs.sources_at("other", {0: 13}, 0.01) == {}
    later = asyncio.create_task(inputs.sources_at(STORE, {0: 13}, 30.0))
    await asyncio.sleep(0)
    inputs.on_commit(commit(2, {CLICKS: 9}, {0: 13, 1: 21}))
    assert await later == {CLICKS: 9}


async def test_whether_there_are_commits_is_known_once_the_topic_was_read() -> None:
    inputs = Inputs()
    asked = asyncio.create_task(inputs.has(STORE))
    await asyncio.sleep(0)
    assert not asked.done()
    inputs.on_commit(commit(0, {CLICKS: 5}, {0: 10}))
    inputs.on_read()
    assert await asked
    assert not await inputs.has("other")
