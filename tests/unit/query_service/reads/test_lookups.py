"""Lookups of several keys in one call: what becomes of one is no matter of the others'."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from query_service.reads import lookups
from query_service.reads.fleet_view import ServedStore
from query_service.reads.lookups import LookupHandler
from query_service.reads.moments import Admitted
from query_service.replicas.replica import StoreReplica
from query_service.states.checkpoint import Checkpoint
from query_service.stores.base import ChangelogRecord, StateStore
from query_service.stores.key_value import KeyValueStore
from query_service.stores.rocksdb_engine import RocksDBEngine
from query_service.telemetry.metrics import NodeMetrics
from statehouse.contract.committed_moments import Chosen
from statehouse.contract.topology import Role, StoreSpec
from statehouse.errors import LookupFailure, Reason, reason_from_number
from statehouse.runtime.batches import is_too_big
from statehouse.serdes import SERDES
from statehouse.v1 import query_service_pb2, types_pb2
from tests.unit.query_service.one_node import admission_of


class Broken(KeyValueStore):
    """A plug-in with a defect that some keys meet."""

    def get(self, key: bytes) -> bytes | None:
        if key == b"bad":
            raise ZeroDivisionError
        return b"value of " + key


class Large(KeyValueStore):
    """Each of its values has a thousand bytes. `asked` has the keys that were read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(RocksDBEngine(folder))
        self.asked: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        self.asked.append(key)
        return b"x" * 1_000


class OneStore:
    """Stands for the admission of a node that holds one store, but one of its keys."""

    def __init__(self, store: StateStore, metrics: NodeMetrics) -> None:
        spec = StoreSpec("s", "t", 1, 0)
        self._served = ServedStore(spec, SERDES["string"], SERDES["string"])
        self._replica = StoreReplica(spec, 0, store, Checkpoint("t", "id", 1, 1), metrics.of("s", Role.ACTIVE))

    def prove(self, *_: object) -> None: ...

    def is_scattered(self, _served: ServedStore) -> bool:
        return False

    def admit_key(self, request: query_service_pb2.GetRequest, _claim: object) -> Any:
        if request.key.text == "gone":
            raise LookupFailure(Reason.PARTITION_NOT_OWNED, "elsewhere")
        return self._served, request.key.text.encode(), Admitted(self._replica, types_pb2.ReplicaStamp())


async def test_a_lookup_that_meets_a_defect_fails_alone(tmp_path: Path) -> None:
    metrics = NodeMetrics()
    admission = cast("Any", OneStore(Broken(RocksDBEngine(tmp_path)), metrics))
    lookups = LookupHandler(admission, cast("Any", None), metrics, max_batch_entries=10, max_message_bytes=10**6)
    requests = [
        query_service_pb2.GetRequest(store="s", key=types_pb2.Key(text=key)) for key in ("a", "bad", "gone", "b")
    ]
    a, bad, gone, b = await _batch_get(lookups, requests)
    assert (a.response.value.text, b.response.value.text) == ("value of a", "value of b")
    assert reason_from_number(bad.error.reason) is Reason.INTERNAL
    assert "log" in bad.error.message
    assert reason_from_number(gone.error.reason) is Reason.PARTITION_NOT_OWNED
    failed = "statehouse_node_batch_entry_failures_total"
    assert metrics.registry.get_sample_value(failed, {"reason": "INTERNAL"}) == 1


@pytest.mark.feature("reads-one-batch")
def test_lookups_of_other_batches_between_them_take_no_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lookups of several callers go together, and some of them ask for another batch, or for none."""
    served = ServedStore(StoreSpec("s", "t", 1, 0), SERDES["string"], SERDES["string"])
    replica = cast("Any", SimpleNamespace(store=None))
    moments = [None if batch is None else Chosen("q", batch, 9) for batch in (5, None, 5, 4, 4, 5, None, 5)]
    asked = [
        lookups._Asked(
            place,
            query_service_pb2.GetRequest(),
            served,
            f"k{place}".encode(),
            Admitted(replica, types_pb2.ReplicaStamp(), moment),
        )
        for place, moment in enumerate(moments)
    ]
    monkeypatch.setattr(lookups, "_each", lambda admitted, keys: [(key, admitted.moment) for key in keys])
    read = lookups._read(asked, 10**6, lambda: False)
    assert read == [(each.key, each.admitted.moment) for each in asked]


@pytest.mark.feature("value-serde-t")
@pytest.mark.parametrize(("serde", "good", "torn"), [("json", b"[1]", b"[1"), ("long", bytes(8), bytes(7))])
async def test_a_value_that_does_not_decode_fails_typed_reads_of_its_key_alone(
    tmp_path: Path, serde: str, good: bytes, torn: bytes
) -> None:
    metrics, store = NodeMetrics(), KeyValueStore(RocksDBEngine(tmp_path))
    admission = OneStore(store, metrics)
    admission._served = replace(admission._served, value_serde=SERDES[serde])
    admission._replica.apply([ChangelogRecord(b"good", good, 0), ChangelogRecord(b"torn", torn, 0)], 2)
    lookups = LookupHandler(
        cast("Any", admission), cast("Any", None), metrics, max_batch_entries=10, max_message_bytes=10**6
    )
    asked = [("good", False), ("torn", False), ("torn", True), ("good", False)]
    first, typed, raw, last = await _batch_get(
        lookups,
        [query_service_pb2.GetRequest(store="s", key=types_pb2.Key(text=key), raw=raw) for key, raw in asked],
    )
    assert reason_from_number(typed.error.reason) is Reason.VALUE_UNDECODABLE
    assert raw.response.value.raw == torn
    assert first.response.found
    assert first.response.value == last.response.value == SERDES[serde].value(good)


@pytest.mark.feature("batchget-keys-several")
async def test_a_batch_says_of_each_what_a_get_of_its_own_would() -> None:
    """Entries of one partition share what admits them only as far as they ask for the same."""
    metrics, keys = NodeMetrics(), [f"k{number}" for number in range(9)]
    admission = admission_of(metrics, (0, 1), keys[:-2])  # the third partition is elsewhere
    lookups = LookupHandler(admission, cast("Any", None), metrics, max_batch_entries=99, max_message_bytes=10**6)
    bounds = [{}, {"freshness": {"max_lag": 2}}, {"forwarding": {"epoch": 8, "hops": 1}}, {"forwarding": {"hops": 9}}]
    requests = [
        query_service_pb2.GetRequest(store="s", key={"text": key}, **cast("Any", more))
        for key in keys
        for more in bounds
    ]

    async def alone(request: query_service_pb2.GetRequest) -> query_service_pb2.BatchGetResult:
        try:
            return query_service_pb2.BatchGetResult(
                response=query_service_pb2.GetResponse.FromString(await lookups.get(request))
            )
        except LookupFailure as failure:
            return query_service_pb2.BatchGetResult(error=failure.to_proto())

    batch = await _batch_get(lookups, requests)
    expected = [await alone(request) for request in requests]
    for result in (*batch, *expected):  # the only thing that time changes
        result.response.replica.ClearField("staleness_ms") if result.HasField("response") else None
    assert batch == expected
    outcomes = {reason_from_number(each.error.reason) for each in batch if each.HasField("error")}
    assert outcomes == {Reason.PARTITION_NOT_OWNED, Reason.LAG_EXCEEDS_BOUND, Reason.HOP_LIMIT}
    assert {each.response.found for each in batch if each.HasField("response")} == {True, False}


@pytest.mark.parametrize("partitions_apart", [False, True], ids=["one-group", "a-group-each"])
async def test_answers_beyond_a_message_are_not_read_and_the_batch_is_to_be_split(
    tmp_path: Path, partitions_apart: bool
) -> None:
    store, metrics = Large(tmp_path), NodeMetrics()
    lookups = LookupHandler(
        cast("Any", OneStore(store, metrics)),
        cast("Any", None),
        metrics,
        max_batch_entries=999,
        max_message_bytes=9_500,
    )

    def requests(count: int) -> list[query_service_pb2.GetRequest]:
        epochs = range(count) if partitions_apart else [1] * count
        return [query_service_pb2.GetRequest(store="s", key={"text": "k"}, forwarding={"epoch": n}) for n in epochs]

    with pytest.raises(LookupFailure, match="exceed max_message_bytes 9500: ask for fewer") as caught:
        await _batch_get(lookups, requests(500))
    assert is_too_big(caught.value, 500), "who asks knows that it may be split"
    assert len(store.asked) == 10, "the one that is too much, and none after it"
    assert len(await _batch_get(lookups, requests(9))) == 9
    assert await _batch_get(lookups, requests(9)) == await _batch_get(lookups, requests(9)), (
        "each batch has a message of its own"
    )


async def test_failures_of_a_batch_take_room_in_the_message_too(tmp_path: Path) -> None:
    metrics, store = NodeMetrics(), Large(tmp_path)
    lookups = LookupHandler(
        cast("Any", OneStore(store, metrics)),
        cast("Any", None),
        metrics,
        max_batch_entries=999,
        max_message_bytes=9_500,
    )
    asked = ["gone"] * 900 + ["k"] * 9
    with pytest.raises(LookupFailure) as caught:
        await _batch_get(lookups, [query_service_pb2.GetRequest(store="s", key={"text": key}) for key in asked])
    assert caught.value.reason is Reason.MESSAGE_TOO_LARGE
    assert not store.asked


async def test_what_stands_in_front_of_each_result_takes_room_in_the_message_too(tmp_path: Path) -> None:
    metrics, store = NodeMetrics(), Large(tmp_path)
    admission = cast("Any", OneStore(store, metrics))
    requests = [query_service_pb2.GetRequest(store="s", key={"text": "k"})] * 9
    batch = query_service_pb2.BatchGetRequest(requests=requests)

    async def answered(max_message_bytes: int) -> bytes:
        lookups = LookupHandler(
            admission,
            cast("Any", None),
            metrics,
            max_batch_entries=999,
            max_message_bytes=max_message_bytes,
        )
        return await lookups.batch_get(batch)

    size = len(await answered(100_000))
    assert len(await answered(size)) == size
    with pytest.raises(LookupFailure) as caught:
        await answered(size - 1)
    assert caught.value.reason is Reason.MESSAGE_TOO_LARGE


async def _batch_get(
    lookups: LookupHandler, requests: list[query_service_pb2.GetRequest]
) -> list[query_service_pb2.BatchGetResult]:
    answered = await lookups.batch_get(query_service_pb2.BatchGetRequest(requests=requests))
    return list(query_service_pb2.BatchGetResponse.FromString(answered).results)
