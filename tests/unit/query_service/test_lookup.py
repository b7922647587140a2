"""Lookups of several keys at once: what becomes of one is no matter of the others'."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from query_service.checkpoint import Checkpoint
from query_service.lookup import LookupEngine
from query_service.metrics import NodeMetrics
from query_service.replica import StoreReplica
from query_service.stores.base import StateStore
from query_service.stores.key_value import KeyValueStore
from query_service.stores.rocksdb_engine import RocksDBEngine
from query_service.view import ServedStore
from statehouse.errors import LookupFailure, Reason, reason_from_number
from statehouse.serdes import serde
from statehouse.topology import Role, StoreSpec
from statehouse.v1 import query_service_pb2, types_pb2


class Broken(KeyValueStore):
    """A plug-in with a defect that some keys meet."""

    def get(self, key: bytes) -> bytes | None:
        if key == b"bad":
            raise ZeroDivisionError
        return b"value of " + key


class OneStore:
    """Stands for the admission of a node that holds one store, but one of its keys."""

    def __init__(self, store: StateStore, metrics: NodeMetrics) -> None:
        spec = StoreSpec("s", "t", 1, 0)
        self._served = ServedStore(spec, serde("string"), serde("string"))
        self._replica = StoreReplica(spec, 0, store, Checkpoint("t", "id", 1, 1), metrics.of("s", Role.ACTIVE))

    def admit_key(self, request: query_service_pb2.GetRequest) -> Any:
        if request.key.text == "gone":
            raise LookupFailure(Reason.PARTITION_NOT_OWNED, "elsewhere")
        return self._served, request.key.text.encode(), self._replica, types_pb2.ReplicaStamp()


def test_a_lookup_that_meets_a_defect_fails_alone(tmp_path: Path) -> None:
    metrics = NodeMetrics()
    admission = cast("Any", OneStore(Broken(RocksDBEngine(tmp_path)), metrics))
    lookups = LookupEngine(admission, cast("Any", None), metrics, max_batch_entries=10, max_message_bytes=10**6)
    requests = [
        query_service_pb2.GetRequest(store="s", key=types_pb2.Key(text=key)) for key in ("a", "bad", "gone", "b")
    ]
    a, bad, gone, b = lookups.batch_get(query_service_pb2.BatchGetRequest(requests=requests)).results
    assert (a.response.value.text, b.response.value.text) == ("value of a", "value of b")
    assert reason_from_number(bad.error.reason) is Reason.INTERNAL
    assert "log" in bad.error.message
    assert reason_from_number(gone.error.reason) is Reason.PARTITION_NOT_OWNED
    failed = "statehouse_node_batch_entry_failures_total"
    assert metrics.registry.get_sample_value(failed, {"reason": "INTERNAL"}) == 1
