"""Scans, counts and batches over several partitions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import grpc.aio
import pytest

from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.partitioning import partition_for
from statehouse.errors import LookupFailure, Reason, reason_from_number
from statehouse.link.link import LinkContext
from statehouse.serdes.wire import framed, frames
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.polling import poll_until_async
from tests.unit.router.fake_nodes import Fleet, failure_of
from tests.unit.router.fleets import STORE, assignment

Start = Callable[..., Awaitable[Fleet]]
PARTITIONS = 3
KEYS = sorted(f"key-{number:02}" for number in range(40))


async def _spread(
    start: Start, *, attempt_timeout_ms: int = 1_000, max_message_bytes: int = 16 * 1024 * 1024, **serdes: str
) -> Fleet:
    """Partitions 0 and 2 on a, 1 on b; each is the other's standby. Every key is held by both."""
    fleet = await start("a", "b", attempt_timeout_ms=attempt_timeout_ms, max_message_bytes=max_message_bytes)
    await fleet.publish(
        TaskAssignment("a", ("b",)), TaskAssignment("b", ("a",)), TaskAssignment("a", ("b",)), epoch=2, **serdes
    )
    for name, node in fleet.nodes.items():
        fleet.heartbeat(name, PARTITIONS)
        for key in KEYS:
            held = node.data.setdefault(partition_for(key.encode(), PARTITIONS), {})
            held[key.encode()] = f"value of {key}".encode()
    # A heartbeat makes a table too; the last one has both.
    while len(fleet.router.tables.current().stores[STORE].partitions[2].callable) < 2:
        await fleet.router.tables.wait_for_epoch(3, 0.02)
    return fleet


async def _pages(fleet: Fleet, **fields: object) -> list[query_service_pb2.ScanResponse]:
    pages: list[query_service_pb2.ScanResponse] = []
    token = ""
    while token or not pages:
        request = query_service_pb2.ScanRequest(store=STORE, page_token=token, **fields)  # type: ignore[arg-type]
        pages.append(await fleet.query.Scan(request))
        token = pages[-1].next_page_token
    return pages


@pytest.mark.feature("scan-ranges-prefixes")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("node_limit", [1_000, 3])
@pytest.mark.parametrize("page_size", [1, 7, 40, 0])
async def test_pages_are_in_key_order_and_complete(
    start: Start, page_size: int, node_limit: int, reverse: bool
) -> None:
    fleet = await _spread(start)
    for node in fleet.nodes.values():
        node.page_limit = node_limit
    pages = await _pages(fleet, page_size=page_size, reverse=reverse)
    found = [entry.key.text for page in pages for entry in page.entries]
    assert found == sorted(KEYS, reverse=reverse)
    assert pages[0].entries[0].value.text == f"value of {found[0]}"
    assert {stamp.partition for stamp in pages[0].replicas} == {0, 1, 2}
    if node_limit == 1_000 and page_size:
        assert all(len(page.entries) == page_size for page in pages[:-1])


async def test_a_range_and_a_single_partition_are_kept(start: Start) -> None:
    fleet = await _spread(start)
    ranged = await _pages(fleet, from_key=types_pb2.Key(text="key-05"), to_key=types_pb2.Key(text="key-09"))
    assert [entry.key.text for entry in ranged[0].entries] == KEYS[5:10]
    one = await _pages(fleet, partition=1, page_size=2, raw=True)
    found = [entry.key.raw for page in one for entry in page.entries]
    assert found == sorted(fleet.nodes["b"].data[1])
    assert one[0].entries[0].value.HasField("raw")


async def test_a_node_is_asked_once_for_all_it_is_active_for(start: Start) -> None:
    fleet = await _spread(start)
    (page,) = await _pages(fleet)
    assert len(page.entries) == len(KEYS)
    asked = {name: [list(request.partitions) for request in node.scans] for name, node in fleet.nodes.items()}
    assert asked == {"a": [[0, 2]], "b": [[]]}
    assert fleet.nodes["b"].scans[0].partition == 1


async def test_a_node_that_has_lost_one_partition_answers_for_the_other(start: Start) -> None:
    fleet = await _spread(start)
    del fleet.nodes["a"].data[2]
    (page,) = await _pages(fleet)
    assert len(page.entries) == len(KEYS)
    assert {stamp.partition: stamp.host.instance_id for stamp in page.replicas} == {0: "a", 1: "b", 2: "b"}


async def test_a_frozen_node_has_its_share_of_the_time_and_is_asked_no_more(start: Start) -> None:
    fleet = await _spread(start, attempt_timeout_ms=50)
    fleet.nodes["a"].freeze()
    page = await fleet.query.Scan(query_service_pb2.ScanRequest(store=STORE), timeout=3.0)
    assert len(page.entries) == len(KEYS)
    assert {stamp.host.instance_id for stamp in page.replicas} == {"b"}
    assert fleet.nodes["a"].held == 1


async def test_a_read_that_may_have_to_wait_asks_for_each_partition(start: Start) -> None:
    fleet = await _spread(start)
    seen = types_pb2.Positions(positions=[types_pb2.StorePosition(store=STORE, partition=0, position=0)])
    (page,) = await _pages(fleet, freshness=types_pb2.Freshness(at_least=seen))
    assert len(page.entries) == len(KEYS)
    assert not any(request.partitions for node in fleet.nodes.values() for request in node.scans)


async def test_a_scan_falls_back_to_standbys(start: Start) -> None:
    fleet = await _spread(start)
    await fleet.nodes["a"].kill()
    (page,) = await _pages(fleet)
    assert len(page.entries) == len(KEYS)
    assert {stamp.host.instance_id for stamp in page.replicas} == {"b"}


async def test_a_scan_fails_with_the_name_of_the_partition(start: Start) -> None:
    fleet = await _spread(start)
    await fleet.publish(TaskAssignment("a"), TaskAssignment("b"), TaskAssignment("a"), epoch=3)
    fleet.nodes["b"].failure = LookupFailure(Reason.TASK_FAILED, "disk full")
    failure = await failure_of(_pages(fleet))
    assert failure.reason is Reason.NO_REPLICA_AVAILABLE
    assert failure.message.startswith("partition 1: ")
    assert failure.metadata["partition"] == "1"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"page_token": "damaged!"}, Reason.INVALID_PAGE_TOKEN),
        ({"partition": 3}, Reason.INVALID_REQUEST),
        ({"partitions": [0, 1]}, Reason.INVALID_REQUEST),
        ({"prefix": types_pb2.Key(text="k"), "to_key": types_pb2.Key(text="k")}, Reason.INVALID_REQUEST),
        ({"forwarding": types_pb2.Forwarding(hops=1)}, Reason.HOP_LIMIT),
    ],
)
async def test_a_scan_that_cannot_be_is_refused(start: Start, fields: dict[str, object], reason: Reason) -> None:
    fleet = await _spread(start)
    request = query_service_pb2.ScanRequest(store=STORE, **fields)  # type: ignore[arg-type]
    assert (await failure_of(fleet.query.Scan(request))).reason is reason


async def test_the_proxy_gets_the_same_pages_and_refusals_as_callers_of_grpcio(start: Start) -> None:
    fleet = await _spread(start)
    over_link = fleet.router._queries.proxied["Scan"]
    straight = fleet.channel.unary_unary("/statehouse.v1.QueryService/Scan")
    for fields in ({}, {"page_size": 7, "reverse": True}, {"partition": 1, "raw": True}):
        request = query_service_pb2.ScanRequest(store=STORE, **fields).SerializeToString()  # type: ignore[arg-type]
        assert await cast("Any", over_link(request, LinkContext(None))) == await straight(request)
    for request in (b"\xff", query_service_pb2.ScanRequest(store="none").SerializeToString()):
        refusal = await failure_of(cast("Any", straight(request)))
        with pytest.raises(LookupFailure) as caught:
            await cast("Any", over_link(request, LinkContext(None)))
        assert (caught.value.reason, caught.value.message) == (refusal.reason, refusal.message)


@pytest.mark.feature("value-serde-t")
async def test_what_does_not_decode_is_shown_raw_and_its_neighbours_typed(start: Start) -> None:
    fleet = await _spread(start, value_serde="long")
    for node in fleet.nodes.values():
        node.value_serde = "long"
        for held in node.data.values():
            held.update((key, (7).to_bytes(8)) for key in held if key != KEYS[0].encode())
            if KEYS[0].encode() in held:
                held[b"\xff"] = (7).to_bytes(8)
    (page,) = await _pages(fleet)
    assert [entry.key.text for entry in page.entries] == [*KEYS, ""]
    assert page.entries[0].value.raw == f"value of {KEYS[0]}".encode()
    assert {entry.value.long for entry in page.entries[1:]} == {7}
    assert page.entries[-1].key.raw == b"\xff"


@pytest.mark.feature("count-estimated-exact")
@pytest.mark.parametrize("exact", [True, False])
async def test_counts_are_summed_and_exact_only_if_all_are(start: Start, exact: bool) -> None:
    fleet = await _spread(start)
    response = await fleet.query.Count(query_service_pb2.CountRequest(store=STORE, exact=exact))
    assert (response.count, response.exact, len(response.replicas)) == (len(KEYS), exact, PARTITIONS)


@pytest.mark.feature("overload-bounded-queues")
@pytest.mark.parametrize("leaves", [True, False])
async def test_what_nodes_do_for_a_caller_who_left_is_cancelled(start: Start, leaves: bool) -> None:
    fleet = await _spread(start)
    for node in fleet.nodes.values():
        node.counts.clear()
    request = query_service_pb2.CountRequest(store=STORE, exact=True)
    call = fleet.query.Count(request, timeout=None if leaves else 2.0)
    await poll_until_async(
        lambda: sum(node.counts_begun for node in fleet.nodes.values()) == PARTITIONS, 10, "the counts to begin"
    )
    if leaves:
        call.cancel()
    await poll_until_async(
        lambda: all(node.counts_begun == node.counts_cancelled > 0 for node in fleet.nodes.values()), 20, "their end"
    )
    with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
        await call


def _batch(keys: list[str]) -> query_service_pb2.BatchGetRequest:
    requests = [query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text=key)) for key in keys]
    return query_service_pb2.BatchGetRequest(requests=requests)


def _answers(response: query_service_pb2.BatchGetResponse) -> list[str]:
    return [result.response.value.text.partition(":")[2] for result in response.results]


@pytest.mark.feature("batchget-keys-several")
async def test_a_batch_makes_one_call_a_node_and_keeps_the_order(start: Start) -> None:
    fleet = await _spread(start)
    keys = [*reversed(KEYS), KEYS[0]]
    response = await fleet.query.BatchGet(_batch(keys))
    assert _answers(response) == keys
    assert [len(node.batches) for node in fleet.nodes.values()] == [1, 1]
    assert all(result.response.replica.epoch == 2 for result in response.results)


@pytest.mark.feature("batchget-keys-several")
async def test_a_batch_may_ask_for_keys_of_several_stores(start: Start) -> None:
    fleet = await _spread(start)
    one = assignment([TaskAssignment("a"), TaskAssignment("b"), TaskAssignment("a")], epoch=3)
    ranks = replace(one.stores[STORE], name="ranks", changelog_topic="app-ranks-changelog")
    fleet.router.tracker.on_assignment(replace(one, stores={**one.stores, "ranks": ranks}))
    assert await fleet.router.tables.wait_for_epoch(3, 10.0)
    request = _batch([*KEYS, *KEYS])
    for entry in request.requests[len(KEYS) :]:
        entry.store = "ranks"
    assert _answers(await fleet.query.BatchGet(request)) == [*KEYS, *KEYS]
    (of_a,), (of_b,) = (node.batches for node in fleet.nodes.values())
    assert Counter(entry.store for entry in (*of_a, *of_b)) == {STORE: len(KEYS), "ranks": len(KEYS)}
    assert {entry.store for entry in of_a} == {STORE, "ranks"}, "in one call"


@pytest.mark.feature("batchget-keys-several")
async def test_each_entry_has_its_own_outcome(start: Start) -> None:
    fleet = await _spread(start)
    request = _batch(KEYS[:3])
    request.requests[1].store = "nope"
    request.requests[2].forwarding.hops = 1
    first, second, third = (await fleet.query.BatchGet(request)).results
    assert first.response.found
    assert reason_from_number(second.error.reason) is Reason.UNKNOWN_STORE
    assert reason_from_number(third.error.reason) is Reason.HOP_LIMIT


async def test_entries_that_a_node_refuses_go_on_alone(start: Start) -> None:
    fleet = await _spread(start)
    fleet.nodes["b"].failure = LookupFailure(Reason.OVERLOADED, "queue full")
    response = await fleet.query.BatchGet(_batch(KEYS))
    assert _answers(response) == KEYS
    assert {result.response.replica.host.instance_id for result in response.results} == {"a"}
    assert not fleet.nodes["b"].gets
    assert len(fleet.nodes["b"].batches) == 1, "an overloaded node is not asked again"
    held_by_b = sum(partition_for(key.encode(), PARTITIONS) == 1 for key in KEYS)
    assert fleet.nodes["a"].lookups == len(KEYS)
    assert len(fleet.nodes["a"].batches[0]) == len(KEYS) - held_by_b


async def test_a_batch_to_a_dead_node_is_grouped_again(start: Start) -> None:
    fleet = await _spread(start)
    await fleet.nodes["a"].kill()
    assert _answers(await fleet.query.BatchGet(_batch(KEYS))) == KEYS
    assert not fleet.nodes["b"].gets, "its entries went on together"


async def test_entries_that_nobody_answers_list_their_candidates(start: Start) -> None:
    fleet = await _spread(start)
    for node in fleet.nodes.values():
        node.failure = LookupFailure(Reason.TASK_FAILED, "disk full")
    (result,) = (await fleet.query.BatchGet(_batch(KEYS[:1]))).results
    assert reason_from_number(result.error.reason) is Reason.NO_REPLICA_AVAILABLE
    assert {item.host.instance_id for item in result.error.candidates} == {"a", "b"}


@pytest.mark.feature("batches-pages-bounded")
async def test_a_batch_too_large_is_split(start: Start) -> None:
    fleet = await _spread(start)
    keys = [f"k{number}" for number in range(2_500)]
    assert _answers(await fleet.query.BatchGet(_batch(keys))) == keys
    sizes = [len(batch) for node in fleet.nodes.values() for batch in node.batches]
    assert sum(sizes) == len(keys)
    assert max(sizes) <= 1_000


@pytest.mark.feature("batches-pages-bounded")
async def test_an_answer_too_large_for_a_message_is_asked_for_in_parts(start: Start) -> None:
    fleet = await _spread(start)
    for node in fleet.nodes.values():
        node.batch_limit = 3
    assert _answers(await fleet.query.BatchGet(_batch(KEYS))) == KEYS
    assert not any(node.gets for node in fleet.nodes.values())


@pytest.mark.parametrize("alone", [False, True], ids=["in-batches", "alone"])
async def test_once_an_answer_is_full_nothing_more_is_asked_for_it(start: Start, alone: bool) -> None:
    """A short request must not have a router hold as much as all its values are."""
    most, padding = 262_144, 10_000
    fleet = await _spread(start, max_message_bytes=most)
    for node in fleet.nodes.values():
        node.padding, node.batch_limit, node.lets_wait = padding, 3, alone
    keys = [f"k{number}" for number in range(300)]
    response = await fleet.query.BatchGet(_batch(keys))
    answered = {
        key: result.response.value.text
        for key, result in zip(keys, response.results, strict=True)
        if result.HasField("response")
    }
    full = most // padding + 1
    assert full * 0.7 < len(answered) < full, "as many as the message holds, beside the refusals"
    assert all(f":{key}." in text for key, text in answered.items())
    (refusal,) = {(each.error.reason, each.error.message) for each in response.results if each.HasField("error")}
    assert reason_from_number(refusal[0]) is Reason.MESSAGE_TOO_LARGE
    assert "ask for fewer" in refusal[1]
    assert response.ByteSize() <= most
    served = [len(batch) for node in fleet.nodes.values() for batch in node.batches if len(batch) <= node.batch_limit]
    gets = sum(len(node.gets) for node in fleet.nodes.values())
    if alone:
        assert len(answered) <= gets <= full + 32, "those that were under way at the same time"
    else:
        assert len(answered) <= sum(served) <= full + 2 * 3, "what was under way at the other node"
        assert not gets


async def test_an_answer_that_just_fits_is_given_however_small_its_parts_must_be(start: Start) -> None:
    fleet = await _spread(start, max_message_bytes=65_536)
    for node in fleet.nodes.values():
        node.padding, node.batch_limit = 6_000, 2
    assert [each.rstrip(".") for each in _answers(await fleet.query.BatchGet(_batch(KEYS[:10])))] == KEYS[:10]


async def test_an_empty_batch_has_an_empty_answer(start: Start) -> None:
    fleet = await _spread(start)
    assert not (await fleet.query.BatchGet(query_service_pb2.BatchGetRequest())).results


def test_frames_are_protobufs() -> None:
    request = _batch(["a", "b" * 300, "c" * 20_000])
    data = request.SerializeToString()
    parts = frames(data)
    assert [query_service_pb2.GetRequest.FromString(part) for part in parts] == list(request.requests)
    assert framed(parts) == data


@pytest.mark.feature("least-position-read")
async def test_an_entry_that_would_wait_is_sent_alone_to_the_same_node(start: Start) -> None:
    fleet = await _spread(start)
    for node in fleet.nodes.values():
        node.lets_wait = True
    keys = [key for key in KEYS if partition_for(key.encode(), PARTITIONS) == 0][:3]
    response = await fleet.query.BatchGet(_batch(keys))
    assert _answers(response) == keys
    assert [len(node.gets) for node in fleet.nodes.values()] == [len(keys), 0]
