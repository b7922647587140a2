"""Batches that replicas keep, on every engine of this process, against one dictionary per batch."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from query_service.replicas.replica import StoreReplica
from query_service.states.checkpoint import Checkpoint
from query_service.states.lifecycle import StoreState
from query_service.stores.base import ChangelogRecord
from query_service.stores.engine import Engine, MomentGone
from query_service.stores.key_value import KeyValueStore
from query_service.stores.memory_engine import MemoryEngine
from query_service.stores.rocksdb_engine import RocksDBEngine
from query_service.stores.walk import Walk
from query_service.telemetry.metrics import NodeMetrics
from statehouse.contract.batch_cuts import is_kept
from statehouse.contract.committed_moments import Chosen, CommittedMoments
from statehouse.contract.moment_leases import AGE_MAX_MS
from statehouse.contract.moments import NONE
from statehouse.contract.paging import KeyRange
from statehouse.contract.topology import Role, StoreSpec
from statehouse.control.v1 import commits_pb2
from statehouse.errors import LookupFailure

PARTITIONS = 2
SPEC = StoreSpec("s", "changelog", PARTITIONS, 0, committed=True)
METRIC = NodeMetrics().of("s", Role.ACTIVE)
KEYS = [b"a", b"b", b"c", b"d"]

State = dict[bytes, bytes]
Part = list[tuple[bytes, bool]]  # a key, and whether it gets a value


@dataclass(frozen=True)
class Batch:
    """A batch is written: its part of each partition, and what is said of where it ends there."""

    parts: tuple[Part, ...]
    has_headers: bool
    ends: str
    skipped_ids: int


@dataclass(frozen=True)
class Commit:
    """The oldest commit that nodes have not seen comes to them."""


@dataclass(frozen=True)
class Follow:
    """A replica reads at most so many records, and writes them as one slice; of an end that it reaches it learns."""

    partition: int
    records: int
    sees_end: bool


@dataclass(frozen=True)
class Reopen:
    """A node starts again with what it has on disk, and restores."""

    partition: int


@dataclass(frozen=True)
class NewRun:
    """The query begins anew, with another id: its batches are counted from 0 again."""


Step = Batch | Commit | Follow | Reopen | NewRun
PARTITION = st.integers(0, PARTITIONS - 1)
PART = st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), max_size=4)
BATCH = st.builds(
    Batch,
    st.tuples(*[PART] * PARTITIONS),
    st.sampled_from([True, True, True, False]),
    st.sampled_from(["last", "behind", "late"]),
    st.sampled_from([0, 0, 0, 1, 20]),
)
FOLLOW = st.builds(Follow, PARTITION, st.integers(0, 12), st.booleans())
STEPS = st.lists(
    BATCH | BATCH | st.builds(Commit) | FOLLOW | FOLLOW | st.builds(Reopen, PARTITION) | st.builds(NewRun), max_size=30
)


@dataclass
class Log:
    """A partition of the changelog: its records, and its end, before which there may be markers."""

    records: list[ChangelogRecord] = field(default_factory=list)
    end: int = 0

    def write(self, part: Part, batch_id: int, header: int) -> None:
        for nth, (key, has_value) in enumerate(part):
            value = b"%d/%d/%d" % (batch_id, self.end, nth) if has_value else None
            self.records.append(ChangelogRecord(key, value, 0, self.end, header))
            self.end += 1
        if part:
            self.end += 1  # the transaction's marker

    def last_end(self) -> int:
        return self.records[-1].offset + 1 if self.records else 0

    def state(self) -> State:
        state: dict[bytes, bytes | None] = {record.key: record.value for record in self.records}
        return {key: value for key, value in state.items() if value is not None}


@dataclass
class Written:
    """A batch that was written: the state at its end, whether all can show it, and the record that tells of it."""

    states: list[State]
    is_plain: list[bool]
    commit: commits_pb2.Commit


class World:
    """A query, its changelog, and a replica of each partition."""

    def __init__(self, make: Callable[[Path], Engine]) -> None:
        self.make, self.directory = make, Path(tempfile.mkdtemp())
        self.logs = [Log() for _ in range(PARTITIONS)]
        self.run, self.next_id = 0, 0
        self.written: dict[tuple[str, int], Written] = {}
        self.late: Written | None = None
        self.unseen: deque[Written] = deque()
        self.known = CommittedMoments()
        # The offset after the newest record that each replica had when it began to follow.
        self.followed_from = [0] * PARTITIONS
        self.replicas = [self.open(partition) for partition in range(PARTITIONS)]

    def open(self, partition: int) -> StoreReplica:
        store = KeyValueStore(self.make(self.directory / str(partition)))
        checkpoint = store.checkpoint() or Checkpoint("changelog", "id", 0, 1, records_end=0)
        replica = StoreReplica(SPEC, partition, store, checkpoint, METRIC, partition_of=lambda _key, _count: partition)
        log = self.logs[partition]
        restored = [record for record in log.records if record.offset >= replica.position]
        if restored:
            replica.apply(restored, restored[-1].offset + 1)
        replica.reach(log.end)
        replica.note_end(log.end, time.monotonic(), 1)
        replica.to(StoreState.RESTORED)
        replica.to(StoreState.FOLLOWING)
        self.followed_from[partition] = log.last_end()
        return replica

    def close(self) -> None:
        for replica in self.replicas:
            assert replica.store.open_views() == 0
            replica.store.close()
        shutil.rmtree(self.directory)

    def do(self, step: Step) -> None:
        match step:
            case Batch():
                self.write(step)
            case Commit():
                if self.unseen:
                    self.known.take(self.unseen.popleft().commit)
            case Follow(partition, records, sees_end):
                self.follow(partition, records, sees_end=sees_end)
            case Reopen(partition):
                self.replicas[partition].save_checkpoint()
                self.replicas[partition].store.close()
                self.replicas[partition] = self.open(partition)
            case NewRun():
                self.run, self.next_id, self.late = self.run + 1, 0, None

    def write(self, batch: Batch) -> None:
        batch_id = self.next_id + batch.skipped_ids
        self.next_id = batch_id + 1
        for log, part in zip(self.logs, batch.parts, strict=True):
            log.write(part, batch_id, batch_id if batch.has_headers else NONE)
        ends = [log.last_end() if batch.ends == "last" else log.end for log in self.logs]
        newest = [log.records[-1].batch if log.records else None for log in self.logs]
        # An earlier run's ids are larger: nobody can tell that this batch wrote nothing after them.
        is_plain = [last is None or NONE < last <= batch_id for last in newest]
        commit = commits_pb2.Commit(store="s", query_id=f"run {self.run}", batch_id=batch_id, is_moment=True)
        for partition, end in enumerate(ends):
            commit.changelog_ends.add(partition=partition, offset=end)
        written = Written([log.state() for log in self.logs], is_plain, commit)
        for partition, log in enumerate(self.logs):
            if log.records and log.records[0].batch == NONE:  # it doesn't differ from no record
                for each in self.written.values():
                    each.is_plain[partition] &= bool(each.states[partition])
        if self.late is not None:
            self.end_late(self.late)
        self.late = written if batch.ends == "late" else None
        self.written[commit.query_id, batch_id] = written
        self.unseen.append(written)

    def end_late(self, written: Written) -> None:
        """Have a batch end, as its driver says, after what the one that took its place has written."""
        if written in self.unseen:
            written.is_plain = [False] * PARTITIONS
            for each, log in zip(written.commit.changelog_ends, self.logs, strict=True):
                each.offset = log.end

    def follow(self, partition: int, count: int, *, sees_end: bool) -> None:
        replica, log = self.replicas[partition], self.logs[partition]
        left = [record for record in log.records if record.offset >= replica.position]
        if left and count:
            replica.apply(left[:count], left[:count][-1].offset + 1)
        if sees_end and len(left) <= count:
            replica.reach(log.end)

    def check(self) -> None:
        """Look at every batch that nodes know of: it is as it was, or it can't be shown and there is a reason."""
        try:
            known = self.known.of("s")
        except LookupFailure:
            return
        for partition, replica in enumerate(self.replicas):
            for batch_id, _ in known.batches:
                written, end = self.written[known.query_id, batch_id], known.end(batch_id, partition)
                if end is None or end > replica.position:
                    continue
                shown = shown_by(replica, Chosen(known.query_id, batch_id, end))
                if shown is None:
                    # The next run's first batch may have the same id: then nothing cuts the log between them.
                    is_due = known.query_id == f"run {self.run}" and written.is_plain[partition]
                    is_due = is_due and end >= self.followed_from[partition]
                    assert not (is_due and is_kept(batch_id, known.newest)), f"batch {batch_id} is not shown"
                else:
                    assert shown == written.states[partition], f"batch {batch_id} is shown, but not as it was"


def shown_by(replica: StoreReplica, chosen: Chosen) -> State | None:
    """Return a batch as a replica shows it; None: it doesn't."""
    store: Any = replica.store
    if not replica.is_exact(chosen.end):
        return None
    try:
        with replica.at(chosen):
            page = store.scan(KeyRange(), 100, 10**6, Walk())
            found = {key: value[0] for key, value in zip(KEYS, store.get_many(KEYS), strict=True) if value is not None}
            back = store.scan(KeyRange(b"a", b"d", True), 100, 10**6, Walk())
    except MomentGone:
        return None
    shown = dict(page.entries)
    assert list(shown) == sorted(found)
    assert shown == found
    assert list(back.entries) == [(key, found[key]) for key in sorted(found, reverse=True) if key < b"d"]
    return shown


def play(make: Callable[[Path], Engine], steps: list[Step]) -> None:
    world = World(make)
    try:
        for step in steps:
            world.do(step)
            world.check()
        for partition in range(PARTITIONS):
            world.do(Follow(partition, 1_000, sees_end=True))
        while world.unseen:
            world.do(Commit())
            world.check()
    finally:
        world.close()


@given(steps=STEPS)
def test_in_memory_a_batch_is_shown_as_it_was_or_not_at_all(steps: list[Step]) -> None:
    play(lambda _path: MemoryEngine(10**9), steps)


@settings(max_examples=25)  # each opens databases
@given(steps=STEPS)
def test_on_disk_a_batch_is_shown_as_it_was_or_not_at_all(steps: list[Step]) -> None:
    play(RocksDBEngine, steps)


ENGINES = pytest.mark.parametrize("make", [RocksDBEngine, lambda _path: MemoryEngine(10**9)], ids=["rocksdb", "memory"])


@ENGINES
@pytest.mark.parametrize("every", [1, 5])
def test_the_same_batches_stay_wherever_a_replica_began(
    make: Callable[[Path], Engine], every: int, tmp_path: Path
) -> None:
    """Those that their ids say, by whichever batch the partition has records of."""
    last = 330
    log = [ChangelogRecord(b"a", b"%d" % n, 0, n // every, n) for n in range(0, last + 1, every)]
    ends = {n: n // every + 1 for n in range(last + 1)}
    replicas = []
    for began in (0, 7, 150):
        replica = StoreReplica(
            SPEC, 0, KeyValueStore(make(tmp_path / str(began))), Checkpoint("t", "id", 0, 1, records_end=0), METRIC
        )
        replica.apply(log[:began], began)
        replica.to(StoreState.RESTORED)
        for place in range(began, len(log), 3):
            slice_ = log[place : place + 3]
            replica.apply(slice_, slice_[-1].offset + 1)
        replicas.append(replica)
    kept = [{n for n, end in ends.items() if shown_by(replica, Chosen("q", n, end))} for replica in replicas]
    wanted = {n for n in ends if is_kept(n, last)}
    assert wanted <= kept[0]
    if every == 1:
        assert kept[0] == wanted
    for began, each in zip((0, 7, 150), kept, strict=True):
        assert each == {n for n in kept[0] if ends[n] >= began}
    for replica in replicas:
        replica.store.close()


@ENGINES
def test_what_moments_hold_back_is_bounded(
    make: Callable[[Path], Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("query_service.stores.rocksdb_engine.DISK_BYTES", 50_000)
    monkeypatch.setattr("query_service.stores.memory_engine.moment_bytes_in_memory", lambda _budget: 50_000)
    engine: Any = make(tmp_path)
    store = KeyValueStore(engine)
    replica = StoreReplica(SPEC, 0, store, Checkpoint("t", "id", 0, 1, records_end=0), METRIC)
    replica.to(StoreState.RESTORED)
    keys = [b"%03d" % number for number in range(50)]
    for batch in range(30):
        offset = batch * len(keys)
        records = [ChangelogRecord(key, b"v" * 100, 0, offset + n, batch) for n, key in enumerate(keys)]
        replica.apply(records, offset + len(keys))
        kept = store.statistics()
        assert kept["moments_written_bytes"] <= 50_000
    assert 2 <= kept["moments_kept"] < 20
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + AGE_MAX_MS / 1_000 + 1)
    replica.apply([ChangelogRecord(b"k", b"v", 0, 1_500, 30)], 1_501)
    assert store.statistics()["moments_kept"] == 1, "the one that this record's batch has begun after"
    store.close()
