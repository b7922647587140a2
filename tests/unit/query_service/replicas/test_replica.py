"""Replicas: what they say of their freshness, and who waits for whom."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

import pytest

from query_service.dataplane.engine import KeptRecords
from query_service.replicas.replica import LogLost, Progress, StoreReplica, monotonic_and_wall_ms
from query_service.replicas.tail import Compaction, Tail
from query_service.states.checkpoint import Checkpoint
from query_service.states.lifecycle import InvalidTransition, StoreState
from query_service.stores.base import Applied, ChangelogRecord
from query_service.stores.key_value import KeyValueStore
from query_service.stores.memory_engine import MemoryEngine
from query_service.stores.walk import Walk
from query_service.telemetry.metrics import NodeMetrics
from statehouse.contract.paging import KeyRange
from statehouse.contract.topology import Role, StoreSpec


def replica_at(
    position: int,
    tail: Tail | None = None,
    ends_valid_s: float | None = None,
    latest: Callable[[int, int], Awaitable[KeptRecords]] | None = None,
) -> StoreReplica:
    checkpoint = Checkpoint("topic", "id", position, int(time.time() * 1000))
    store = KeyValueStore(MemoryEngine(1_000_000))
    metrics = NodeMetrics().of("s", Role.ACTIVE)
    spec = StoreSpec("s", "topic", 1, 0)
    return StoreReplica(spec, 0, store, checkpoint, metrics, tail=tail, ends_valid_s=ends_valid_s, latest=latest)


def test_staleness_counts_from_the_last_end_reached_also_with_a_steady_lag() -> None:
    replica = replica_at(0)
    assert replica.staleness_ms(100.0) is None
    for second in range(1, 20):  # it gets to each end only after the next one was asked for
        replica.note_end(10 * second, float(second), second)
        replica.reach(10 * second - 5)
    staleness_ms = replica.staleness_ms(20.0)
    assert staleness_ms is not None
    assert 1_000 <= staleness_ms <= 3_000
    assert replica.lag(20.0) == 5
    replica.reach(190)
    assert replica.staleness_ms(20.0) == 1_000


def test_an_end_not_reached_confirms_nothing() -> None:
    replica = replica_at(5)
    replica.note_end(10, 1.0, 1)
    replica.reach(9)
    assert replica.staleness_ms(2.0) is None


@pytest.mark.feature("answer-says-partition")
@pytest.mark.parametrize(("position", "lag"), [(5, 5), (10, 0), (12, 0)])
def test_lag_is_unknown_until_an_end_is_known_and_when_that_is_of_too_long_ago(position: int, lag: int) -> None:
    replica = replica_at(position, ends_valid_s=2.0)
    assert replica.lag(1.0) is None
    replica.note_end(10, 1.0, 1)
    assert [replica.lag(now) for now in (1.0, 3.0, 3.01)] == [lag, lag, None]
    replica.note_end(10, 3.5, 2)
    assert replica.lag(4.0) == lag


def test_the_time_of_the_last_end_is_saved_with_the_next_checkpoint() -> None:
    replica = replica_at(0)
    replica.apply([ChangelogRecord(b"k", b"v", 0, 0)], 1)
    replica.note_end(1, 1.0, 77)
    assert replica.save_checkpoint().at_end_ms == 77
    replica.note_end(1, 2.0, 88)
    replica.reach(3)
    replica.note_end(9, 3.0, 99)
    replica.apply([ChangelogRecord(b"k", b"v", 0, 3)], 4)
    saved = replica.store.checkpoint()
    assert saved is not None
    assert (saved.position, saved.at_end_ms) == (4, 88)
    assert replica.save_checkpoint() == saved


def test_a_write_is_not_waited_for_by_who_asks_for_staleness() -> None:
    replica = replica_at(5)
    told: list[int | None] = []

    def ask() -> None:
        replica.note_end(5, 1.0, 1)
        told.append(replica.staleness_ms(2.0))

    with replica._write_lock:  # as a write that is slow
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(20)
        assert told == [1_000]


def test_a_write_gets_through_while_a_page_is_walked_and_the_page_is_of_before_it() -> None:
    replica = replica_at(0)
    replica.apply([ChangelogRecord(b"%d" % n, b"v", 0, n) for n in range(5)], 5)
    replica.reach(6)
    store = replica.store
    assert isinstance(store, KeyValueStore)
    paused, go_on = threading.Event(), threading.Event()

    def pause() -> bool:
        paused.set()
        return not go_on.wait(30)

    pages: list[tuple[int, int]] = []

    def read() -> None:
        walk = Walk(is_closing=pause)
        page, position = replica.at_rest(walk, lambda: store.scan(KeyRange(), 100, 10**6, walk))
        pages.append((len(page.entries), position))

    reading = threading.Thread(target=read)
    reading.start()
    assert paused.wait(20)
    writing = threading.Thread(target=replica.apply, args=([ChangelogRecord(b"9", b"v", 0, 6)], 7), daemon=True)
    writing.start()
    writing.join(20)
    assert not writing.is_alive()
    assert replica.position == 7
    go_on.set()
    reading.join(20)
    assert pages == [(5, 6)]


def test_a_tail_is_not_taken_as_whole_because_of_an_end_that_it_was_asked_for_after() -> None:
    """Records read late, with a hole among them, and the end confirmed by these very records before they are kept."""
    tail = Tail(10_000, Compaction(0), 0)
    replica = replica_at(0, tail)
    replica.to(StoreState.RESTORED)
    replica.note_end(8, time.monotonic(), int(time.time() * 1000))
    metrics = replica.metrics.applied

    def ask(*arguments: object, **options: object) -> None:  # as an admission that comes after the write
        metrics(*arguments, **options)  # type: ignore[arg-type]
        assert replica.staleness_ms(time.monotonic()) is not None

    replica.metrics.applied = ask  # type: ignore[method-assign]
    replica.apply([ChangelogRecord(b"k", b"v", 0, 0), ChangelogRecord(b"k", b"v", 0, 7)], 8)
    assert tail.start == 7
    assert tail.read(0, 10, 10**6) is None


def test_what_is_lost_is_read_for_no_more() -> None:
    replica = replica_at(5)
    replica.lose(LogLost("first"))
    replica.lose(LogLost("second"))
    assert replica.state is StoreState.LOST
    for state in (StoreState.RESTORED, StoreState.FOLLOWING):
        with pytest.raises(LogLost, match="first"):
            replica.to(state)
    replica.to(StoreState.CLOSING)
    replica.lose(LogLost("third"))
    assert replica.state is StoreState.CLOSING


def test_a_state_is_not_skipped() -> None:
    with pytest.raises(InvalidTransition, match="from restoring to following"):
        replica_at(5).to(StoreState.FOLLOWING)


def test_ends_and_positions_that_several_threads_tell_lose_nothing() -> None:
    """An end that one thread names while another confirms is not forgotten."""
    replica = replica_at(0)
    ends = 2_000

    def name_ends() -> None:
        for number in range(1, ends + 1):
            replica.note_end(number, float(number), number)

    def read_on() -> None:
        for position in range(1, ends + 1):
            replica.reach(position)
            replica.staleness_ms(1e9)

    threads = [threading.Thread(target=work) for work in (name_ends, read_on)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert replica.end_offset == ends
    assert replica.lag(float(ends)) == 0
    assert replica.staleness_ms(float(ends)) == 0


@pytest.mark.parametrize("step_s", [-172_800, -600, -1, 1, 600, 172_800])
def test_a_wall_clock_that_is_set_loses_no_replica_and_makes_no_staleness_wrong(
    step_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_at, wall_ms = monotonic_and_wall_ms()
    checkpoint = Checkpoint("topic", "id", 0, wall_ms)
    metrics, spec = NodeMetrics().of("s", Role.ACTIVE), StoreSpec("s", "topic", 1, 0)
    store = KeyValueStore(MemoryEngine(1_000_000))
    replica = StoreReplica(spec, 0, store, checkpoint, metrics, tombstones_kept_ms=300_000)
    replica.note_end(0, asked_at, wall_ms)
    set_s = time.time() + step_s
    monkeypatch.setattr(time, "time", lambda: set_s)
    asked_at, wall_ms = monotonic_and_wall_ms()
    replica.note_end(1, asked_at, wall_ms)
    replica.apply([ChangelogRecord(b"k", b"v", 0, 0)], 1)
    assert replica.loss is None
    assert replica.staleness_ms(asked_at + 1.0) == 1_000
    assert replica.save_checkpoint().at_end_ms == wall_ms
    assert replica.outran_retention() is None


def test_what_the_data_plane_writes_leaves_a_replica_as_if_it_had_written_it_itself() -> None:
    async def nothing(start: int, limit: int) -> KeptRecords:
        raise AssertionError(start, limit)

    applying, told = replica_at(0), replica_at(0, latest=nothing)
    for replica in (applying, told):
        replica.note_end(3, 1.0, 77)
    applying.apply([ChangelogRecord(b"k", b"value", 5, 0), ChangelogRecord(b"k", None, 6, 2)], 3)
    told.advanced_to(Progress(3, 3, puts=1, deletes=1, size=7))
    for replica in (applying, told):
        assert (replica.position, replica.lag(2.0), replica.staleness_ms(2.0)) == (3, 0, 1_000)
        assert (replica.restored_records, replica.had_records, replica.late) == (2, False, 0)
    assert replace(told.present_checkpoint(), at_end_ms=0) == replace(applying.present_checkpoint(), at_end_ms=0)


@pytest.mark.parametrize(
    ("state", "is_just_at_end", "is_whole"),
    [
        (StoreState.RESTORED, True, True),
        (StoreState.RESTORED, False, False),
        # A restore reads a log that may have been compacted.
        (StoreState.RESTORING, True, False),
    ],
)
async def test_holes_in_what_the_data_plane_reads_at_once_are_no_losses(
    state: StoreState, *, is_just_at_end: bool, is_whole: bool
) -> None:
    records = [ChangelogRecord(b"k", b"v", 0, offset) for offset in (0, 2, 4)]

    async def latest(start: int, _limit: int) -> KeptRecords:
        return KeptRecords(start, 6, [each for each in records if each.offset >= start])

    tail = Tail(10_000, Compaction(0), 0)
    replica = replica_at(0, tail, latest=latest)
    if state is not replica.state:
        replica.to(state)
    if is_just_at_end:
        replica.note_end(0, time.monotonic(), 1)
    replica.advanced_to(Progress(6, 6, puts=3))
    async with replica.watched():
        assert tail.end == 6
        assert tail.start == (0 if is_whole else 4)


async def test_a_record_that_the_data_plane_had_read_late_begins_the_tail_anew() -> None:
    async def latest(start: int, _limit: int) -> KeptRecords:
        return KeptRecords(start, 8, [ChangelogRecord(b"k", b"v", 0, offset) for offset in (1, 3, 5, 7)])

    tail = Tail(10_000, Compaction(0), 0)
    replica = replica_at(0, tail, latest=latest)
    replica.to(StoreState.RESTORED)
    replica.note_end(0, time.monotonic() - 60.0, 1)
    replica.advanced_to(Progress(6, 6, puts=3))
    replica.note_end(6, time.monotonic(), 2)
    replica.advanced_to(Progress(8, 8, puts=1))
    async with replica.watched():
        assert tail.start == 6, "a record may be missing in the holes before, and none in the one before 7"


def test_a_save_that_waits_for_the_data_plane_keeps_no_report_from_being_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The event loop takes both from one link: it would never get to the answer."""

    async def nothing(start: int, limit: int) -> KeptRecords:
        raise AssertionError(start, limit)

    replica = replica_at(0, latest=nothing)
    saves, answered = threading.Event(), threading.Event()

    def save(records: Sequence[ChangelogRecord], checkpoint: Checkpoint) -> Applied:
        saves.set()
        assert answered.wait(30)
        return Applied()

    monkeypatch.setattr(replica.store, "apply", save)
    saving = threading.Thread(target=replica.save_checkpoint, daemon=True)
    saving.start()
    assert saves.wait(20)
    noting = threading.Thread(target=replica.advanced_to, args=(Progress(5, 5, puts=5),), daemon=True)
    noting.start()
    noting.join(20)
    assert not noting.is_alive()
    answered.set()
    saving.join(20)
    assert replica.present_checkpoint().position == 5


def test_who_is_lost_says_so_once() -> None:
    replica = replica_at(0)
    told: list[int] = []
    replica.on_lost = lambda: told.append(1)
    replica.lose(LogLost("gone"))
    replica.lose(LogLost("again"))
    assert told == [1]


def test_a_read_of_what_is_elsewhere_shows_one_moment() -> None:
    replica = StoreReplica(
        StoreSpec("s", "topic", 1, 0),
        0,
        KeyValueStore(MemoryEngine(1_000_000)),
        Checkpoint("topic", "id", 5, 0),
        NodeMetrics().of("s", Role.ACTIVE),
        pinned=lambda: nullcontext(8),
    )
    assert replica.at_rest(Walk(), lambda: "read") == ("read", 8)
