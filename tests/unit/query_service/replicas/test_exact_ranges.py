"""Batches that a replica can show: what it has read at the log's end, and what it has kept."""

from __future__ import annotations

import time
from typing import Any

import pytest

from query_service.replicas.exact_ranges import RANGES_MAX, ExactRanges
from query_service.replicas.replica import LogLost, Progress, StoreReplica
from query_service.replicas.tail import READ_AT_ONCE_S, Compaction, Tail
from query_service.states.checkpoint import Checkpoint
from query_service.states.faults import Fault
from query_service.states.lifecycle import StoreState
from query_service.stores.base import ChangelogRecord
from query_service.stores.engine import MomentGone
from query_service.stores.key_value import KeyValueStore
from query_service.stores.memory_engine import MemoryEngine
from query_service.telemetry.metrics import NodeMetrics
from statehouse.contract.committed_moments import Chosen
from statehouse.contract.moments import NONE
from statehouse.contract.topology import Role, StoreSpec

METRIC = NodeMetrics().of("s", Role.ACTIVE)


class Clock:
    """The monotonic clock, which stands."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def opened(checkpoint: Checkpoint, *, is_compacted: bool = True, log_start: int = 0, **more: Any) -> StoreReplica:
    spec = StoreSpec("s", "topic", 1, 0, committed=True)
    tail = Tail(0, Compaction(0 if is_compacted else None), checkpoint.position)
    store = KeyValueStore(MemoryEngine(10**6))
    return StoreReplica(spec, 0, store, checkpoint, METRIC, tail=tail, log_start=log_start, **more)


def following(position: int, *, records_end: int = 0, **more: Any) -> StoreReplica:
    at = Checkpoint("topic", "id", position, 1, batch=0 if records_end else NONE, records_end=records_end)
    replica = opened(at, **more)
    replica.to(StoreState.RESTORED)
    return replica


def told(replica: StoreReplica, end: int) -> None:
    """Have a replica learn of the log's end, as of now."""
    replica.note_end(end, time.monotonic(), 1)


def batch(batch_id: int, *offsets: int) -> list[ChangelogRecord]:
    return [ChangelogRecord(b"k", b"%d" % offset, 0, offset, batch_id) for offset in offsets]


def exact(replica: StoreReplica) -> list[int]:
    return [end for end in range(replica.position + 1) if replica.is_exact(end)]


@pytest.mark.usefixtures("clock")
def test_a_restored_state_is_exact_from_its_newest_record_once_the_end_is_known() -> None:
    replica = opened(Checkpoint("topic", "id", 0, 1, records_end=0))
    told(replica, 7)
    replica.apply(batch(3, 2, 4), 5)
    replica.reach(7)
    told(replica, 7)
    assert exact(replica) == [], "it is being restored, from a log that may have been compacted"
    replica.to(StoreState.RESTORED)
    assert exact(replica) == [5, 6, 7]
    assert not replica.is_exact(8)


def test_what_is_read_at_once_is_exact_and_what_is_read_late_is_not(clock: Clock) -> None:
    replica = following(4, records_end=3)
    told(replica, 4)
    replica.apply(batch(1, 4, 5), 6)
    replica.apply(batch(2, 7), 8)
    replica.reach(9)
    assert exact(replica) == list(range(3, 10))
    clock.now += READ_AT_ONCE_S + 1
    replica.apply(batch(3, 12), 13)  # what was at 9 to 11 may have been compacted meanwhile
    assert exact(replica) == list(range(3, 10))
    told(replica, 20)
    assert exact(replica) == list(range(3, 10))
    replica.apply(batch(4, 19), 20)
    assert exact(replica) == [*range(3, 10), 20]
    replica.apply(batch(5, 20), 21)
    assert exact(replica) == [*range(3, 10), 20, 21]


def test_an_idle_replica_is_exact_when_it_is_asked(clock: Clock) -> None:
    replica = following(9, records_end=6)
    assert exact(replica) == []
    told(replica, 9)
    clock.now += READ_AT_ONCE_S + 1
    assert exact(replica) == []
    told(replica, 9)
    assert exact(replica) == [6, 7, 8, 9]


def test_all_is_exact_in_a_log_that_is_not_compacted(clock: Clock) -> None:
    replica = following(4, records_end=3, is_compacted=False)
    clock.now += 1_000
    replica.apply(batch(1, 6), 7)
    assert exact(replica) == [3, 4, 5, 6, 7]


@pytest.mark.usefixtures("clock")
def test_nothing_is_known_of_what_was_before_the_logs_start() -> None:
    replica = following(9, log_start=7)
    told(replica, 9)
    assert exact(replica) == [7, 8, 9]


@pytest.mark.usefixtures("clock")
def test_a_lost_log_shows_no_batch() -> None:
    replica = following(4, records_end=3)
    told(replica, 4)
    assert exact(replica) == [3, 4]
    replica.lose(LogLost("recreated", Fault.TOPIC_RECREATED))
    assert exact(replica) == []


async def test_reports_of_the_data_plane_count_alike(clock: Clock) -> None:
    async def nothing(start: int, limit: int) -> Any:
        raise AssertionError(start, limit)

    replica = following(4, records_end=3, latest=nothing)
    told(replica, 4)
    replica.advanced_to(Progress(8, 7, puts=3))
    assert exact(replica) == [3, 4, 5, 6, 7, 8]
    clock.now += READ_AT_ONCE_S + 1
    replica.advanced_to(Progress(12, 11, puts=1))
    assert exact(replica) == [3, 4, 5, 6, 7, 8]
    told(replica, 12)
    assert exact(replica) == [3, 4, 5, 6, 7, 8, 11, 12]
    assert replica.present_checkpoint().batch == NONE, "only the data plane knows it"


def test_so_many_ranges_are_known() -> None:
    ranges = ExactRanges(0)
    for begin in range(0, 10 * (RANGES_MAX + 3), 10):
        ranges.moved(begin, begin, begin + 5, at_once=True)
        ranges.moved(begin + 5, begin + 5, begin + 10, at_once=False)
    assert [begin for begin in range(0, 10 * (RANGES_MAX + 3), 10) if ranges.holds(begin, lambda: None)] == list(
        range(30, 10 * (RANGES_MAX + 3), 10)
    )


def test_of_batches_whose_records_may_be_gone_only_the_last_is_shown() -> None:
    """Records and their tombstones were at 4 to 8, and compaction has removed both; batches ended at 6 and 9."""
    ranges = ExactRanges(0)
    ranges.found_at_end(4, 10)
    assert not ranges.holds(6, lambda: 9)
    assert ranges.holds(9, lambda: None)
    assert ranges.holds(9, lambda: 12), "the batch after it came after that"
    ranges.moved(4, 10, 15, at_once=True)
    assert ranges.holds(12, lambda: 15)
    assert not ranges.holds(6, lambda: 9)


@pytest.mark.usefixtures("clock")
def test_a_slice_of_several_batches_is_written_batch_by_batch() -> None:
    replica = following(0)
    store: Any = replica.store
    records = [*batch(0, 0, 1), *batch(1, 2), *batch(2, 4, 5)]
    assert replica.apply(records, 7) == []
    assert replica.position == 7
    saved = store.checkpoint()
    assert (saved.position, saved.batch, saved.records_end) == (7, 2, 6)
    shown = {}
    for batch_id, end in ((0, 2), (1, 3), (1, 4), (2, 6), (2, 7)):
        with replica.at(Chosen("q", batch_id, end)):
            shown[batch_id, end] = store.get(b"k")
    assert shown == {(0, 2): b"1", (1, 3): b"2", (1, 4): b"2", (2, 6): b"5", (2, 7): b"5"}
    assert replica.oldest_batch == 0
    for batch_id, end in ((0, 3), (1, 5), (1, 6), (2, 5), (2, 8)):
        with pytest.raises(MomentGone), replica.at(Chosen("q", batch_id, end)):
            pass
    replica.apply(batch(3, 7), 8)
    with replica.at(Chosen("q", 2, 7)):
        assert store.get(b"k") == b"5"
    assert store.get(b"k") == b"7"


def test_a_restore_keeps_nothing_but_notes_the_newest_record() -> None:
    replica = opened(Checkpoint("topic", "id", 0, 1, records_end=0))
    replica.apply([*batch(0, 0, 1), *batch(1, 2), *batch(2, 4)], 6)
    assert replica.store.statistics()["moments_kept"] == 0
    assert replica.oldest_batch is None
    saved = replica.present_checkpoint()
    assert (saved.batch, saved.records_end) == (2, 5)
    replica.to(StoreState.RESTORED)
    assert replica.oldest_batch == 2, "none is kept, and the present state is this batch's"
    assert replica.save_checkpoint() == replica.store.checkpoint()


@pytest.mark.parametrize("position", [0, 4])
def test_a_state_of_an_earlier_version_is_no_batchs_unless_it_is_empty(position: int) -> None:
    replica = opened(Checkpoint("topic", "id", position, 1))
    replica.to(StoreState.RESTORED)
    assert replica.keeps_moments
    assert replica.oldest_batch == (None if position > 0 else 0)
    chosen = Chosen("q", 5, position)
    if position > 0:
        with pytest.raises(MomentGone), replica.at(chosen):
            pass
    else:
        with replica.at(chosen):
            pass
    replica.apply(batch(6, position), position + 1)
    with replica.at(Chosen("q", 6, position + 1)):
        pass


def test_a_store_that_no_processor_writes_shows_no_batch() -> None:
    at, store = Checkpoint("topic", "id", 0, 1, records_end=0), KeyValueStore(MemoryEngine(10**6))
    replica = StoreReplica(StoreSpec("s", "topic", 1, 0), 0, store, at, METRIC)
    replica.to(StoreState.RESTORED)
    replica.apply([*batch(0, 0), *batch(1, 1)], 2)
    assert not replica.keeps_moments
    assert replica.oldest_batch is None
    assert store.statistics()["moments_kept"] == 0
    with pytest.raises(MomentGone, match="keeps no"), replica.at(Chosen("q", 0, 1)):
        pass


def test_unreadable_records_of_later_batches_are_told_by_their_places_in_the_slice() -> None:
    replica = following(0)
    store: Any = replica.store
    apply = store.apply

    def applied(records: Any, checkpoint: Checkpoint) -> Any:
        found = apply(records, checkpoint)
        found.unreadable += [(place, "odd") for place, record in enumerate(records) if record.offset % 2]
        found.late += 1
        return found

    store.apply = applied
    assert replica.apply([*batch(0, 0, 1), *batch(1, 2, 3, 4), *batch(2, 5)], 6) == [(1, "odd"), (3, "odd"), (5, "odd")]
    assert replica.late == 3
