"""Replicas: what they say of their freshness."""

from __future__ import annotations

import time

from query_service.checkpoint import Checkpoint
from query_service.metrics import NodeMetrics
from query_service.replica import StoreReplica
from query_service.stores.key_value import KeyValueStore
from query_service.stores.memory_engine import MemoryEngine
from statehouse.topology import Role, StoreSpec


def replica_at(position: int) -> StoreReplica:
    checkpoint = Checkpoint("topic", "id", position, int(time.time() * 1000))
    store = KeyValueStore(MemoryEngine(1_000_000))
    return StoreReplica(StoreSpec("s", "topic", 1, 0), 0, store, checkpoint, NodeMetrics().of("s", Role.ACTIVE))


def test_staleness_counts_from_the_last_end_reached_also_with_a_steady_lag() -> None:
    replica = replica_at(0)
    assert replica.staleness_ms(100.0) is None
    for second in range(1, 20):  # it gets to each end only after the next one was asked for
        replica.note_end(10 * second, float(second), second)
        replica.reach(10 * second - 5)
    staleness_ms = replica.staleness_ms(20.0)
    assert staleness_ms is not None
    assert 1_000 <= staleness_ms <= 3_000
    assert replica.lag == 5
    replica.reach(190)
    assert replica.staleness_ms(20.0) == 1_000


def test_an_end_not_reached_confirms_nothing() -> None:
    replica = replica_at(5)
    replica.note_end(10, 1.0, 1)
    replica.reach(9)
    assert replica.staleness_ms(2.0) is None
