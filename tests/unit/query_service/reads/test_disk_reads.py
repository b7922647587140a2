"""Lookups: a disk that doesn't answer holds up only who needs it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Sequence
from typing import Any, cast

import pytest

from query_service.reads import disk_reads, lookups
from query_service.reads.disk_reads import THREADS, DiskReads
from query_service.reads.lookups import LookupHandler
from query_service.reads.position_waits import PositionWaits
from query_service.reads.serde_fetches import SerdeFetches
from query_service.replicas.replica import StoreReplica
from query_service.service import QueryServicer
from query_service.states.checkpoint import Checkpoint
from query_service.stores.base import ChangelogRecord
from query_service.stores.key_value import KeyValueStore
from query_service.stores.memory_engine import MemoryEngine
from query_service.telemetry.metrics import NodeMetrics
from statehouse.errors import LookupFailure, Reason, reason_from_number
from statehouse.link.link import LinkContext
from statehouse.rpc.deadline import RequestTimes
from statehouse.v1 import query_service_pb2
from tests.support.polling import poll_until_async
from tests.unit.query_service.one_node import admission_of

REQUEST = query_service_pb2.GetRequest(store="s", key={"text": "k"})
KEYS = [f"k{number}" for number in range(40)]


class Disk(MemoryEngine):
    """Has some keys on a disk that answers when `answers` is set."""

    def __init__(self, cold: Sequence[str]) -> None:
        super().__init__(10**9)
        self.cold = {key.encode() for key in cold}
        self.damaged: set[bytes] = set()
        self.answers = threading.Event()
        self.answers.set()
        self.asked: list[int] = []

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        self.asked.append(len(keys))
        assert not self.cold & set(keys) or self.answers.wait(30)
        if self.damaged & set(keys):
            raise LookupFailure(Reason.TASK_FAILED, "damaged")
        return super().get_many(family, keys)


class Node:
    """Holds all partitions of a store. Its metrics, and the engines by partition."""

    def __init__(self, cold: Sequence[str], *, max_message_bytes: int = 10**6) -> None:
        self.metrics = NodeMetrics()
        admission = admission_of(self.metrics, (0, 1, 2), KEYS)
        self.disks: dict[int, Disk] = {}
        self.replicas: dict[int, StoreReplica] = {}
        for task in admission._replicas.values():
            (replica,) = task.stores.values()
            held = replica.store
            assert isinstance(held, KeyValueStore)
            disk = self.disks[replica.partition] = Disk(cold)
            entries = [(key.encode(), held._engine.get("default", key.encode())) for key in KEYS]
            disk.write({"default": [entry for entry in entries if entry[1] is not None]}, Checkpoint("t", "id", 0, 1))
            replica.store = KeyValueStore(disk)
            self.replicas[replica.partition] = replica
        self.lookups = LookupHandler(
            admission, cast("Any", None), self.metrics, max_batch_entries=99, max_message_bytes=max_message_bytes
        )
        nothing = cast("Any", None)
        waits = PositionWaits(RequestTimes(1, 60), max_waits=1)
        self.servicer = QueryServicer(self.lookups, nothing, nothing, waits, SerdeFetches(timeout_s=1), self.metrics)

    async def ask(self, request: query_service_pb2.GetRequest, until: float | None = None) -> bytes:
        return await cast(
            "Awaitable[bytes]", self.servicer.proxied["Get"](request.SerializeToString(), LinkContext(until))
        )

    def calls(self, outcome: str) -> float | None:
        labels = {"method": "Get", "outcome": outcome}
        return self.metrics.registry.get_sample_value("statehouse_node_calls_total", labels)

    def stall(self) -> None:
        for disk in self.disks.values():
            disk.answers.clear()

    def go_on(self) -> None:
        for disk in self.disks.values():
            disk.answers.set()


def request_of(key: str) -> query_service_pb2.GetRequest:
    return query_service_pb2.GetRequest(store="s", key={"text": key})


def batch_for(keys: Iterable[str], *, shared: bool = True) -> query_service_pb2.BatchGetRequest:
    requests = [request_of(key) for key in keys]
    for request in requests if shared else ():
        request.forwarding.epoch = 1
    return query_service_pb2.BatchGetRequest(requests=requests)


@pytest.fixture(autouse=True)
def batches_wait_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is slow."""
    monkeypatch.setattr(lookups, "BATCH_WAITS_S", 30.0)


@pytest.fixture
def reads() -> Iterator[DiskReads]:
    made = DiskReads()
    yield made
    made.close()


@pytest.fixture
async def stalled() -> AsyncIterator[Node]:
    node = Node(KEYS[:20])
    node.stall()
    yield node
    node.go_on()
    node.lookups.close()


def results_of(data: bytes) -> list[query_service_pb2.BatchGetResult]:
    results = list(query_service_pb2.BatchGetResponse.FromString(data).results)
    for result in results:
        result.response.replica.ClearField("staleness_ms") if result.HasField("response") else None
    return results


async def test_a_batch_says_what_each_lookup_alone_would() -> None:
    keys = [*KEYS, "absent", KEYS[0]]
    node = Node([])
    results = results_of(await node.lookups.batch_get(batch_for(keys)))
    for key, result in zip(keys, results, strict=True):
        alone = query_service_pb2.GetResponse.FromString(await node.lookups.get(request_of(key)))
        alone.replica.ClearField("staleness_ms")
        assert alone == result.response
    node.lookups.close()


async def test_who_does_not_need_the_disk_does_not_wait_for_it(stalled: Node) -> None:
    reading = asyncio.ensure_future(stalled.ask(request_of(KEYS[0])))
    await poll_until_async(lambda: stalled.lookups.disk_reads == 1, 20, "the read to begin")
    found = await stalled.ask(request_of(KEYS[30]))
    assert query_service_pb2.GetResponse.FromString(found).value.text == KEYS[30].upper()
    assert not reading.done()
    stalled.go_on()
    assert query_service_pb2.GetResponse.FromString(await reading).value.text == KEYS[0].upper()
    assert stalled.calls("OK") == 2
    await poll_until_async(lambda: stalled.lookups.disk_reads == 0, 20, "the thread to be free")


async def test_what_a_batch_has_not_read_in_time_has_to_be_asked_for_alone(
    stalled: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "BATCH_WAITS_S", 0.01)
    for key, result in zip(KEYS, results_of(await stalled.lookups.batch_get(batch_for(KEYS))), strict=True):
        if result.HasField("error"):
            assert reason_from_number(result.error.reason) is Reason.WOULD_WAIT
        else:
            assert result.response.value.text == key.upper()
            assert key not in KEYS[:20]


async def test_a_batch_of_one_caller_waits_for_the_disk(stalled: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "BATCH_WAITS_S", 0.0)
    monkeypatch.setattr(lookups, "OWN_BATCH_WAITS_S", 30.0)
    reading = asyncio.ensure_future(stalled.lookups.batch_get(batch_for(KEYS, shared=False)))
    shared = await stalled.lookups.batch_get(batch_for(KEYS))
    assert any(result.HasField("error") for result in results_of(shared))
    assert not reading.done()
    stalled.go_on()
    assert [result.response.value.text for result in results_of(await reading)] == [key.upper() for key in KEYS]


async def test_each_lookup_of_a_batch_is_refused_when_too_many_wait(
    stalled: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_reads, "WAITING_MAX", 0)
    results = results_of(await stalled.lookups.batch_get(batch_for(KEYS)))
    assert [reason_from_number(each.error.reason) for each in results] == [Reason.OVERLOADED] * len(KEYS)


async def test_a_read_that_nobody_waits_for_goes_no_further(stalled: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "BATCH_WAITS_S", 0.01)
    keys = [key for key in KEYS[:20] for _ in range(4)]
    await stalled.lookups.batch_get(batch_for(keys))
    stalled.go_on()
    await poll_until_async(lambda: stalled.lookups.disk_reads == 0, 20, "the thread to be free")
    assert sum(sum(disk.asked) for disk in stalled.disks.values()) <= 16


async def test_a_caller_waits_for_the_disk_until_the_deadline(stalled: Node) -> None:
    soon = asyncio.get_running_loop().time() + 0.05
    with pytest.raises(LookupFailure) as caught:
        await stalled.ask(request_of(KEYS[0]), soon)
    assert caught.value.reason is Reason.DEADLINE_EXCEEDED
    assert stalled.calls("DEADLINE_EXCEEDED") == 1
    assert stalled.lookups.disk_reads == 1, "its thread still waits"


async def test_a_stamp_claims_no_more_than_was_read(stalled: Node) -> None:
    replica = next(r for p, r in stalled.replicas.items() if stalled.disks[p].get("default", KEYS[0].encode()))
    before = replica.position
    reading = asyncio.ensure_future(stalled.lookups.get(request_of(KEYS[0])))
    await poll_until_async(lambda: any(disk.asked for disk in stalled.disks.values()), 20, "the read to begin")
    replica.apply([ChangelogRecord(KEYS[0].encode(), b"newer", 0)], before + 1)
    stalled.go_on()
    response = query_service_pb2.GetResponse.FromString(await reading)
    assert (response.value.text, response.replica.position) == ("newer", before)


async def test_a_store_that_is_closed_meanwhile_has_no_answer(stalled: Node) -> None:
    get = asyncio.ensure_future(stalled.lookups.get(request_of(KEYS[0])))
    batch = asyncio.ensure_future(stalled.lookups.batch_get(batch_for(KEYS[:2])))
    await poll_until_async(lambda: stalled.lookups.disk_reads == 2, 20, "the reads to begin")
    for replica in stalled.replicas.values():
        replica.store.close()
    stalled.go_on()
    with pytest.raises(LookupFailure, match="gave partition") as caught:
        await get
    assert caught.value.reason is Reason.PARTITION_NOT_OWNED
    reasons = {reason_from_number(each.error.reason) for each in results_of(await batch)}
    assert reasons == {Reason.PARTITION_NOT_OWNED}


async def test_a_damaged_entry_fails_alone() -> None:
    node = Node(KEYS)
    for disk in node.disks.values():
        disk.damaged = {KEYS[3].encode()}
    results = results_of(await node.lookups.batch_get(batch_for(KEYS)))
    failed = {key: result.error.reason for key, result in zip(KEYS, results, strict=True) if result.HasField("error")}
    assert {key: reason_from_number(reason) for key, reason in failed.items()} == {KEYS[3]: Reason.TASK_FAILED}
    node.lookups.close()


async def test_no_more_is_read_than_about_what_a_message_takes() -> None:
    node = Node(KEYS, max_message_bytes=100_000)
    large = b"x" * 20_000
    for disk in node.disks.values():
        disk.write({"default": [(key.encode(), bytes(8) + large) for key in KEYS]}, Checkpoint("t", "id", 0, 1))
    with pytest.raises(LookupFailure) as caught:
        await node.lookups.batch_get(batch_for(KEYS))
    assert caught.value.reason is Reason.MESSAGE_TOO_LARGE
    assert sum(sum(disk.asked) for disk in node.disks.values()) <= 2 * 16
    node.lookups.close()


async def test_reads_are_bounded_also_when_their_callers_leave(
    reads: DiskReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_reads, "WAITING_MAX", THREADS + 1)
    answers, begun = threading.Event(), []

    def read(_: disk_reads.HasLeft) -> None:
        begun.append(threading.get_ident())
        assert answers.wait(30)

    waiting = [asyncio.ensure_future(reads.run(REQUEST, read)) for _ in range(THREADS + 1)]
    await poll_until_async(lambda: len(begun) == THREADS, 20, "all threads to read")
    assert threading.get_ident() not in begun
    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)
    assert reads.count == THREADS + 1
    with pytest.raises(LookupFailure) as caught:
        await reads.run(REQUEST, read)
    assert caught.value.reason is Reason.OVERLOADED
    answers.set()
    await poll_until_async(lambda: reads.count == 0, 20, "the threads to be free")
    assert len(begun) == THREADS, "nobody waits for the last one, so it does not begin"
    assert await reads.run(REQUEST, lambda _: "read") == "read"


async def test_a_stop_ends_what_has_not_begun(reads: DiskReads) -> None:
    answers, begun = threading.Event(), []

    def read(_: disk_reads.HasLeft) -> str:
        begun.append(1)
        assert answers.wait(30)
        return "read"

    waiting = [asyncio.ensure_future(reads.run(REQUEST, read)) for _ in range(THREADS + 1)]
    await poll_until_async(lambda: len(begun) == THREADS, 20, "all threads to read")
    reads.close()
    with pytest.raises(LookupFailure) as caught:
        await waiting[-1]
    assert caught.value.reason is Reason.NODE_SHUTTING_DOWN
    with pytest.raises(LookupFailure) as caught:
        await reads.run(REQUEST, read)
    assert caught.value.reason is Reason.NODE_SHUTTING_DOWN
    answers.set()
    assert await asyncio.gather(*waiting[:-1]) == ["read"] * THREADS
