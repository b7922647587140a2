"""What the data plane learns of the batches that a replica shows."""

from __future__ import annotations

from query_service.replicas.replica import LogLost, StoreReplica
from query_service.replicas.tail import Compaction, Tail
from query_service.serving.moments import SHOWN_MAX, ShownMoments
from query_service.states.checkpoint import Checkpoint
from query_service.states.faults import Fault
from query_service.states.lifecycle import StoreState
from query_service.stores.base import ChangelogRecord
from query_service.stores.key_value import KeyValueStore
from query_service.stores.memory_engine import MemoryEngine
from query_service.telemetry.metrics import NodeMetrics
from statehouse.contract.committed_moments import CommittedMoments
from statehouse.contract.topology import Role, StoreSpec
from statehouse.control.v1 import commits_pb2, serving_pb2

METRIC = NodeMetrics().of("s", Role.ACTIVE)


def replica(*, committed: bool = True) -> StoreReplica:
    """Return one that has nothing yet, of a log that is not compacted."""
    spec, at = StoreSpec("s", "topic", 1, 0, committed=committed), Checkpoint("topic", "id", 0, 1, records_end=0)
    of = StoreReplica(spec, 0, KeyValueStore(MemoryEngine(10**6)), at, METRIC, tail=Tail(0, Compaction(None), 0))
    of.to(StoreState.RESTORED)
    return of


def write(of: StoreReplica, batch_id: int) -> None:
    of.apply([ChangelogRecord(b"k", b"v", 0, of.position, batch_id)], of.position + 1)


class Node:
    """A replica of the number 7, and what the data plane learns of it."""

    def __init__(self, of: StoreReplica) -> None:
        self.replica, self.committed = of, CommittedMoments()
        self.shown = ShownMoments(self.committed)

    def commit(self, batch_id: int, end: int, query_id: str = "q") -> None:
        commit = commits_pb2.Commit(store="s", query_id=query_id, batch_id=batch_id, is_moment=True)
        commit.changelog_ends.add(partition=0, offset=end)
        self.committed.take(commit)

    def told(self) -> dict[int, int] | None:
        """Return the batches and their ends, None if there is nothing new."""
        told = self.shown.changed(7, self.replica)
        assert told is None or told.store == 7
        return None if told is None else dict(zip(told.batch_ids, told.ends, strict=True))


def test_a_batch_is_told_once_it_is_named_and_reached() -> None:
    node = Node(replica())
    assert node.told() == {}
    assert node.told() is None
    write(node.replica, 0)
    assert node.told() is None
    node.commit(0, 1)
    assert node.told() == {0: 1}
    node.commit(1, 2)
    node.commit(2, 2)
    assert node.told() is None
    write(node.replica, 1)
    assert node.told() == {0: 1, 1: 2, 2: 2}
    assert node.told() is None


def test_only_the_latest_ones_are_told() -> None:
    node = Node(replica())
    for batch_id in range(SHOWN_MAX + 10):
        write(node.replica, batch_id)
        node.commit(batch_id, batch_id + 1)
        if batch_id % 3 == 1:
            assert node.told() is not None
    assert node.told() is None
    node.commit(500, node.replica.position)
    assert list(node.told() or ()) == [*range(11, SHOWN_MAX + 10), 500]


def test_batches_that_begin_anew_take_the_place_of_the_others() -> None:
    node = Node(replica())
    write(node.replica, 5)
    node.commit(5, 1)
    assert node.told() == {5: 1}
    node.commit(0, 1)
    assert node.told() == {0: 1}
    node.commit(0, 1, "other")
    told = node.shown.changed(7, node.replica)
    assert told == serving_pb2.ServingMoments(store=7, query_id="other", batch_ids=[0], ends=[1])
    node.committed.forget("s")
    assert node.told() == {}


def test_a_lost_log_shows_none() -> None:
    node = Node(replica())
    write(node.replica, 0)
    node.commit(0, 1)
    assert node.told() == {0: 1}
    node.replica.lose(LogLost("gone", Fault.LOG_TRUNCATED))
    assert node.told() == {}


def test_what_left_the_snapshot_is_told_anew() -> None:
    node = Node(replica())
    write(node.replica, 0)
    node.commit(0, 1)
    assert node.told() == {0: 1}
    node.shown.keep({7})
    assert node.told() is None
    node.shown.keep({8})
    assert node.told() == {0: 1}


def test_a_store_that_keeps_no_batches_shows_none() -> None:
    node = Node(replica(committed=False))
    write(node.replica, 0)
    node.commit(0, 1)
    assert node.told() == {}
