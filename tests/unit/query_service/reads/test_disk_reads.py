"""Lookups whose keys are not in memory: a disk that doesn't answer holds up only who needs it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Sequence
from typing import Any, cast

import pytest

from query_service.reads import disk_reads, lookups
from query_service.reads.batches import Batch, batch_of
from query_service.reads.disk_reads import THREADS, DiskReads
from query_service.reads.lookups import DiskLookup, LookupHandler
from query_service.reads.position_waits import PositionWaits
from query_service.reads.serde_fetches import SerdeFetches
from query_service.replicas.replica import StoreReplica
from query_service.service import QueryServicer
from query_service.states.checkpoint import Checkpoint
from query_service.stores.base import ChangelogRecord
from query_service.stores.engine import Unknown
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
    """Has some keys in memory, and the others on a disk that answers when `answers` is set."""

    def __init__(self, cold: Sequence[str]) -> None:
        super().__init__(10**9)
        self.cold = {key.encode() for key in cold}
        self.damaged: set[bytes] = set()
        self.answers = threading.Event()
        self.answers.set()
        self.asked: list[int] = []

    def recall(self, family: str, keys: Sequence[bytes]) -> list[bytes | Unknown | None]:
        return [Unknown.ON_DISK if key in self.cold else self.get(family, key) for key in keys]

    def get_many(self, family: str, keys: Sequence[bytes]) -> list[bytes | None]:
        self.asked.append(len(keys))
        assert self.answers.wait(30)
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

    def ask(self, request: query_service_pb2.GetRequest, until: float | None = None) -> bytes | Awaitable[bytes]:
        return self.servicer.proxied["Get"](request.SerializeToString(), LinkContext(until))

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


def batch_for(keys: Iterable[str], *, shared: bool = True) -> Batch:
    requests = [request_of(key) for key in keys]
    for request in requests if shared else ():
        request.forwarding.epoch = 1
    return batch_of(query_service_pb2.BatchGetRequest(requests=requests).SerializeToString())


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


async def whole(answer: bytes | DiskLookup) -> bytes:
    return await answer.complete() if isinstance(answer, DiskLookup) else answer


@pytest.mark.parametrize("cold", [[], KEYS[::3], KEYS, ["absent"]], ids=["none", "some", "all", "absent"])
async def test_an_answer_is_the_same_wherever_its_keys_are(cold: Sequence[str]) -> None:
    keys = [*KEYS, "absent", KEYS[0]]
    batch = batch_for(keys)
    warm, node = Node([]), Node(cold)
    at_once = warm.lookups.batch_get(batch)
    assert isinstance(at_once, bytes)
    answer = node.lookups.batch_get(batch)
    assert isinstance(answer, DiskLookup) == bool(cold)
    results = results_of(await whole(answer))
    assert results == results_of(at_once)
    for key, result in zip(keys, results, strict=True):
        alone = query_service_pb2.GetResponse.FromString(await whole(node.lookups.get(request_of(key))))
        alone.replica.ClearField("staleness_ms")
        assert alone == result.response
    node.lookups.close()


async def test_who_does_not_need_the_disk_does_not_wait_for_it(stalled: Node) -> None:
    waiting = stalled.ask(request_of(KEYS[0]))
    assert not isinstance(waiting, bytes)
    reading = asyncio.ensure_future(waiting)
    await poll_until_async(lambda: stalled.lookups.disk_reads == 1, 20, "the read to begin")
    found = stalled.ask(request_of(KEYS[30]))
    assert isinstance(found, bytes)
    assert query_service_pb2.GetResponse.FromString(found).value.text == KEYS[30].upper()
    assert not reading.done()
    stalled.go_on()
    assert query_service_pb2.GetResponse.FromString(await reading).value.text == KEYS[0].upper()
    assert stalled.calls("OK") == 2
    await poll_until_async(lambda: stalled.lookups.disk_reads == 0, 20, "the thread to be free")


async def test_of_a_batch_only_what_needs_the_disk_has_to_be_asked_for_alone(
    stalled: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "BATCH_WAITS_S", 0.01)
    batch = stalled.lookups.batch_get(batch_for(KEYS))
    assert isinstance(batch, DiskLookup)
    for key, result in zip(KEYS, results_of(await batch.complete()), strict=True):
        if key in KEYS[:20]:
            assert reason_from_number(result.error.reason) is Reason.WOULD_WAIT
        else:
            assert result.response.value.text == key.upper()


async def test_a_batch_of_one_caller_waits_for_the_disk(stalled: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "BATCH_WAITS_S", 0.0)
    monkeypatch.setattr(lookups, "OWN_BATCH_WAITS_S", 30.0)
    shared, own = (stalled.lookups.batch_get(batch_for(KEYS, shared=each)) for each in (True, False))
    assert isinstance(own, DiskLookup)
    reading = asyncio.ensure_future(own.complete())
    assert any(result.HasField("error") for result in results_of(await whole(shared)))
    assert not reading.done()
    stalled.go_on()
    assert [result.response.value.text for result in results_of(await reading)] == [key.upper() for key in KEYS]


async def test_of_a_batch_only_what_needs_the_disk_is_refused_when_too_many_wait(
    stalled: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_reads, "WAITING_MAX", 0)
    batch = stalled.lookups.batch_get(batch_for(KEYS))
    results = results_of(await whole(batch))
    refused = [reason_from_number(each.error.reason) for each in results if each.HasField("error")]
    assert refused == [Reason.OVERLOADED] * 20


async def test_a_read_that_nobody_waits_for_goes_no_further(stalled: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "BATCH_WAITS_S", 0.01)
    keys = [key for key in KEYS[:20] for _ in range(4)]
    batch = stalled.lookups.batch_get(batch_for(keys))
    await whole(batch)
    stalled.go_on()
    await poll_until_async(lambda: stalled.lookups.disk_reads == 0, 20, "the thread to be free")
    assert sum(sum(disk.asked) for disk in stalled.disks.values()) <= 16


async def test_a_caller_waits_for_the_disk_until_the_deadline(stalled: Node) -> None:
    soon = asyncio.get_running_loop().time() + 0.05
    with pytest.raises(LookupFailure) as caught:
        await cast("Awaitable[bytes]", stalled.ask(request_of(KEYS[0]), soon))
    assert caught.value.reason is Reason.DEADLINE_EXCEEDED
    assert stalled.calls("DEADLINE_EXCEEDED") == 1
    assert stalled.lookups.disk_reads == 1, "its thread still waits"


async def test_a_stamp_claims_no_more_than_was_read(stalled: Node) -> None:
    answer = stalled.lookups.get(request_of(KEYS[0]))
    assert isinstance(answer, DiskLookup)
    replica = next(r for p, r in stalled.replicas.items() if stalled.disks[p].get("default", KEYS[0].encode()))
    before = replica.position
    reading = asyncio.ensure_future(answer.complete())
    await poll_until_async(lambda: any(disk.asked for disk in stalled.disks.values()), 20, "the read to begin")
    replica.apply([ChangelogRecord(KEYS[0].encode(), b"newer", 0)], before + 1)
    stalled.go_on()
    response = query_service_pb2.GetResponse.FromString(await reading)
    assert (response.value.text, response.replica.position) == ("newer", before)


async def test_a_store_that_is_closed_meanwhile_has_no_answer(stalled: Node) -> None:
    get = stalled.lookups.get(request_of(KEYS[0]))
    batch = stalled.lookups.batch_get(batch_for(KEYS[:2]))
    assert isinstance(get, DiskLookup)
    assert isinstance(batch, DiskLookup)
    stalled.go_on()
    for replica in stalled.replicas.values():
        replica.store.close()
    with pytest.raises(LookupFailure, match="gave partition") as caught:
        await get.complete()
    assert caught.value.reason is Reason.PARTITION_NOT_OWNED
    reasons = {reason_from_number(each.error.reason) for each in results_of(await batch.complete())}
    assert reasons == {Reason.PARTITION_NOT_OWNED}


async def test_a_damaged_entry_fails_alone() -> None:
    node = Node(KEYS)
    for disk in node.disks.values():
        disk.damaged = {KEYS[3].encode()}
    batch = node.lookups.batch_get(batch_for(KEYS))
    results = results_of(await whole(batch))
    failed = {key: result.error.reason for key, result in zip(KEYS, results, strict=True) if result.HasField("error")}
    assert {key: reason_from_number(reason) for key, reason in failed.items()} == {KEYS[3]: Reason.TASK_FAILED}
    node.lookups.close()


async def test_no_more_is_read_than_about_what_a_message_takes() -> None:
    node = Node(KEYS, max_message_bytes=100_000)
    large = b"x" * 20_000
    for disk in node.disks.values():
        disk.write({"default": [(key.encode(), bytes(8) + large) for key in KEYS]}, Checkpoint("t", "id", 0, 1))
    batch = node.lookups.batch_get(batch_for(KEYS))
    assert isinstance(batch, DiskLookup)
    with pytest.raises(LookupFailure) as caught:
        await batch.complete()
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
