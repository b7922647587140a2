"""The simulated Kafka: control topics that are read from the start, changelogs, and transactions that fence."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from query_service.stores.base import ChangelogRecord
from statehouse.contract.topology import StoreSpec, TaskId
from tests.simulation.world import KAFKA, Process, World

_CHUNK = (1, 6)


class ControlLog:
    """A compacted topic of one partition. `records` are (offset, key, value, time written in s)."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.records: list[tuple[int, bytes, bytes | None, float]] = []
        self.end = 0
        self.followers: list[Follower] = []

    def append(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write records; all of them are there at the same time, as after a commit."""
        for key, value in records:
            self.records.append((self.end, key, value, self._world.now))
            self.end += 1
        self.end += len(records) > 1  # a transaction's marker
        for follower in self.followers:
            follower.poke()

    def compact(self) -> None:
        """Keep each key's last record, and what is younger than a second."""
        last = {key: offset for offset, key, *_ in self.records}
        young = self._world.now - 1.0
        kept = [record for record in self.records if last[record[1]] == record[0] or record[3] > young]
        self._world.counts["records compacted"] += len(self.records) - len(kept)
        self.records = kept

    def read(self, offset: int, limit: int) -> tuple[Sequence[tuple[int, bytes, bytes | None, float]], int]:
        """Return records from an offset on, and the offset to read on at."""
        at = bisect_left(self.records, offset, key=lambda record: record[0])
        found = self.records[at : at + limit]
        return found, (found[-1][0] + 1 if at + limit < len(self.records) else self.end)


class Follower:
    """A process' reader of a control topic, as `ControlLogReader`: in order, and in touch while it is at the end."""

    def __init__(
        self,
        process: Process,
        log: ControlLog,
        on_record: Callable[[bytes, bytes | None, float], None],
        *,
        confirm_interval_s: float = 1.0,
        on_contact: Callable[[], None] = lambda: None,
    ) -> None:
        self._process, self._log = process, log
        self._on_record, self._on_contact = on_record, on_contact
        self._interval_s = confirm_interval_s
        self._offset = 0
        self._is_fetching = False
        self.contact_at: float | None = None
        log.followers.append(self)
        process.enter(self._confirm)

    @property
    def is_caught_up(self) -> bool:
        return self.contact_at is not None

    @property
    def silence_s(self) -> float | None:
        """Seconds since the topic was last known to be read to its end."""
        return None if self.contact_at is None else self._process.world.now - self.contact_at

    def close(self) -> None:
        if self in self._log.followers:
            self._log.followers.remove(self)

    def poke(self) -> None:
        """Fetch what there is, if the process can reach Kafka."""
        process = self._process
        if not process.is_alive:
            self.close()
        elif (
            not self._is_fetching and self._offset < self._log.end and process.world.net.is_open(process.machine, KAFKA)
        ):
            at = self._offset
            records, following = self._log.read(at, process.world.rng.randint(*_CHUNK))
            self._is_fetching = process.world.net.send(
                KAFKA, process.machine, lambda: process.enter(self._fetched, at, records, following)
            )

    def _fetched(self, at: int, records: Sequence[tuple[int, bytes, bytes | None, float]], following: int) -> None:
        if at != self._offset:
            return  # it was asked for twice
        self._is_fetching = False
        self._offset = following
        for _, key, value, written_at in records:
            if self._process.is_alive:
                self._on_record(key, value, written_at)
        self.poke()

    def _confirm(self) -> None:
        """Ask for the end; being at it is contact."""
        process, asked_at = self._process, self._process.world.now
        if self not in self._log.followers:
            return
        process.later(self._interval_s, self._confirm)
        self._is_fetching = False  # whatever was lost on the way is asked for again
        self.poke()
        process.send(KAFKA, lambda: process.world.net.send(KAFKA, process.machine, self._reply(asked_at)))

    def _reply(self, asked_at: float) -> Callable[[], None]:
        end = self._log.end
        return lambda: self._process.enter(self._confirmed, asked_at, end)

    def _confirmed(self, asked_at: float, end: int) -> None:
        if self._offset < end or self not in self._log.followers:
            self.poke()
            return
        self.contact_at = max(asked_at, self.contact_at or 0.0)
        self._on_contact()


class Changelog:
    """A changelog partition, with all of its past: the truth that answers are held against."""

    def __init__(self, world: World, spec: StoreSpec, partition: int) -> None:
        self._world = world
        self.spec, self.partition = spec, partition
        self.end = 0
        self._records: list[ChangelogRecord] = []
        self._ends: list[tuple[float, int]] = [(0.0, 0)]
        self._of_key: dict[bytes, list[ChangelogRecord]] = {}
        self.watchers: list[Callable[[], bool]] = []
        self.first_batch_end: int | None = None
        """The end after the partition's part of its store's first batch; None before."""

    @property
    def task(self) -> TaskId:
        return TaskId(self.spec.sub_topology, self.partition)

    def append(self, entries: Sequence[tuple[bytes, bytes | None]], batch_id: int) -> None:
        """Commit a transaction of a batch; its marker takes an offset."""
        wall_ms = int(self._world.time() * 1000)
        for key, value in entries:
            record = ChangelogRecord(key, value, wall_ms, self.end, batch_id)
            self._records.append(record)
            self._of_key.setdefault(key, []).append(record)
            self.end += 1
        self.end += 1
        self._ends.append((self._world.now, self.end))
        self.watchers = [watcher for watcher in self.watchers if watcher()]

    def read(self, position: int, limit: int) -> tuple[Sequence[ChangelogRecord], int]:
        """Return records from a position on, and the position after them."""
        at = bisect_left(self._records, position, key=lambda record: record.offset)
        found = self._records[at : at + limit]
        return found, (found[-1].offset + 1 if at + limit < len(self._records) else self.end)

    def end_at(self, time: float) -> int:
        """Return the end as it was at a time."""
        return self._ends[bisect_right(self._ends, (time, self.end)) - 1][1]

    def record_at(self, key: bytes, position: int) -> ChangelogRecord | None:
        """Return a key's last record in the state that a position stands for; None if it has none."""
        history = self._of_key.get(key, [])
        at = bisect_left(history, position, key=lambda record: record.offset)
        return history[at - 1] if at else None

    def value_at(self, key: bytes, position: int) -> bytes | None:
        """Return a key's value in the state that a position stands for."""
        record = self.record_at(key, position)
        return None if record is None else record.value

    def state_at(self, position: int) -> list[ChangelogRecord]:
        """Return each key's last record in the state that a position stands for."""
        return [record for key in self._of_key if (record := self.record_at(key, position)) is not None]

    def values_between(self, key: bytes, position: int, until: int) -> list[bytes | None]:
        """Return the values that a key had in the states from one position to another."""
        later = [record.value for record in self._of_key.get(key, []) if position <= record.offset < until]
        return [self.value_at(key, position), *later]

    @property
    def records(self) -> Sequence[ChangelogRecord]:
        """Return all that was ever written, in order."""
        return self._records

    @property
    def keys(self) -> list[bytes]:
        """Return every key that was ever written."""
        return list(self._of_key)


class FencedByKafka(Exception):
    """A newer producer has the transactional id."""


class Kafka:
    """The cluster: both control topics, the changelogs, and who may write the assignment."""

    def __init__(self, world: World) -> None:
        self.assignments, self.members = ControlLog(world), ControlLog(world)
        self.changelogs: dict[tuple[str, int], Changelog] = {}
        self.producer_epoch = 0

    def init_transactions(self) -> int:
        """Fence every earlier producer; return the new one's epoch."""
        self.producer_epoch += 1
        return self.producer_epoch

    def commit(self, producer_epoch: int, records: Sequence[tuple[bytes, bytes | None]], topic: ControlLog) -> None:
        """Commit a transaction of the controllers'.

        Raises:
            FencedByKafka: the producer is not the newest.

        """
        if producer_epoch != self.producer_epoch:
            raise FencedByKafka
        topic.append(records)
