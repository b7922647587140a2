"""Replicas: the stores of a task on this node, the position of each, and how fresh it is."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Final, TypeVar

import structlog

from query_service.dataplane.engine import KeptRecords
from query_service.disk.directory import TaskDirectory, store_folder
from query_service.replicas.exact_ranges import ExactRanges
from query_service.replicas.placement import PlacementCheck
from query_service.replicas.tail import READ_AT_ONCE_S, Compaction, Tail
from query_service.replicas.tail_feed import TailFeed
from query_service.replicas.transfers import Transfer
from query_service.replicas.wakeup import Wakeup
from query_service.states.checkpoint import Checkpoint
from query_service.states.confirmation import Confirmation, KnownEnd
from query_service.states.faults import Fault, TaskFault
from query_service.states.lifecycle import StoreState, can_follow, next_state
from query_service.states.task_events import NodeTask
from query_service.stores.base import Applied, ChangelogRecord, StateStore
from query_service.stores.engine import KeepsMoments, MomentGone
from query_service.stores.engine_store import EngineStore
from query_service.stores.kept_moments import keeps_moments
from query_service.stores.walk import Walk
from query_service.telemetry.metrics import ReplicaMetrics
from statehouse.contract.batch_cuts import is_state_of
from statehouse.contract.committed_moments import Chosen
from statehouse.contract.membership import GlobalReport, ReplicaReport, StorePosition, TaskState
from statehouse.contract.moments import NONE
from statehouse.contract.partitioning import partition_for
from statehouse.contract.placement import log_number
from statehouse.contract.topology import AnyTaskId, Role, StoreSpec
from statehouse.kafka.partitioner import Partitioner
from statehouse.runtime.clocks import process_clock

log = structlog.get_logger(__name__)

T = TypeVar("T")

_MISPLACED_LOG_S = 60.0
"""A replica warns of misplaced records immediately, and then at most this often: a topic may consist of them."""

_READ_ON = frozenset({StoreState.RESTORED, StoreState.FOLLOWING})
_BATCH: Final = attrgetter("batch")


class LogLost(TaskFault):
    """The changelog no longer has the records that the replica needs next, or may not have."""

    fault = Fault.LOG_TRUNCATED


@dataclass(frozen=True, slots=True)
class Progress:
    """What the data plane has read of a log and written to a store.

    `position` is the next offset that the store needs, `records_end` the one after its newest record. The other numbers
    are of the records since the position before: those with a value and tombstones; bytes of their keys and values; for
    how long they were written. `first_misplaced`: the offset of the first of the misplaced ones, and where it should
    be.
    """

    position: int
    records_end: int
    puts: int = 0
    deletes: int = 0
    size: int = 0
    took_s: float = 0.0
    late: int = 0
    expired_segments: int = 0
    stream_time_ms: int = -1
    unreadable: int = 0
    misplaced: int = 0
    first_misplaced: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class LastEnd:
    """What a replica knows of the end of its log, on the monotonic clock, in seconds.

    Attributes:
        offset: the last known end.
        holds_until: until when it tells the lag; None: for ever.
        at_end: when the replica was last known to have all of its log; None: it never was.

    """

    offset: int
    holds_until: float | None
    at_end: float | None


class StoreReplica:
    """A store's replica of one changelog partition.

    One replication thread at a time writes (`apply`, `reach`). Any thread reads, saves, notes an end, or finds that the
    log is lost. The position is raised only after the data is written. So a reader that takes the position first, and
    reads then, never claims a later position than it sees. The confirmation is an immutable value, swapped as a whole.
    """

    def __init__(
        self,
        spec: StoreSpec,
        partition: int,
        store: StateStore,
        checkpoint: Checkpoint,
        metrics: ReplicaMetrics,
        *,
        tail: Tail | None = None,
        tombstones_kept_ms: int | None = None,
        since_ms: int | None = None,
        restored_to: int | None = None,
        restored_in_full: bool = False,
        log_start: int = 0,
        ends_valid_s: float | None = None,
        partition_of: Partitioner = partition_for,
        on_misplaced: Callable[[], None] = lambda: None,
        pinned: Callable[[], AbstractContextManager[int]] | None = None,
        latest: Callable[[int, int], Awaitable[KeptRecords]] | None = None,
    ) -> None:
        """Make a replica of an open store.

        Args:
            spec: the store's specification.
            partition: number of the changelog partition.
            store: the open store.
            checkpoint: position of the store's state.
            metrics: the counters of the store in the task's role; replaced when the role changes.
            tail: an empty tail at the checkpoint's position; None keeps no records for watches.
            tombstones_kept_ms: how long the log surely keeps a tombstone; None means for ever.
            since_ms: wall clock when an ephemeral store began, empty, to follow its updates.
            restored_to: end of the log when the store was opened; None if nothing is restored.
            restored_in_full: whether the store is empty and is restored from the start of the log.
            log_start: first offset of the log when the store was opened.
            ends_valid_s: how long after its request a known end tells the lag; None means for ever.
            partition_of: does what `partition_for` does.
            on_misplaced: called on the writing thread when the first misplaced record is found, and now and then after.
            pinned: has this thread read the store as it is now, and yields its position; None: nobody else writes.
            latest: as `DataPlaneEngine` has it; None: nobody else writes.

        """
        self.spec = spec
        self.partition = partition
        self.store = store
        self.metrics = metrics
        self.tail = tail or Tail(0, Compaction(None), checkpoint.position)
        self.advanced = Wakeup()
        self.since_ms = since_ms
        self.position = checkpoint.position
        self.skipped = 0
        self.late = 0
        self.restored_from = checkpoint.position
        self.restored_to = checkpoint.position if restored_to is None else restored_to
        self.restored_in_full = restored_in_full
        self.restored_records = 0
        self.restored_by = ""  # what its state came from: disk, log, or peer and a node's name
        self.passed_over: tuple[str, ...] = ()  # what it did not come from, and why
        self.topic_change = ""  # how its topic differs from what the store needs
        self.lookups = 0  # written by the event loop only
        self.is_built = False  # once it is, it stays so: see `reads.first_batch`
        # The data plane would walk over all entries to count them.
        had = store.approximate_count() if checkpoint.records_end is None else checkpoint.records_end
        self.had_records = had > 0
        """Whether its log had records when it was opened, as far as the restore has got."""
        self.state = StoreState.RESTORING
        self.loss: LogLost | None = None  # why it is LOST
        self.on_lost: Callable[[], object] = lambda: None  # called when it becomes so, on any thread
        self.on_end_known: Callable[[], object] = lambda: None  # called when `last_end` has changed, on any thread
        self._tombstones_kept_ms = tombstones_kept_ms
        self._ends_valid_s = ends_valid_s
        if checkpoint.records_end is None:  # an earlier version wrote it: where the newest record is isn't known
            checkpoint = replace(checkpoint, batch=NONE, records_end=checkpoint.position)
        self._checkpoint = checkpoint
        self._moments: KeepsMoments | None = None
        if isinstance(store, EngineStore) and keeps_moments(spec):
            self._moments = store.moments
        self._exact = ExactRanges(log_start)
        self._placement = PlacementCheck(spec, partition, partition_of)
        self._on_misplaced, self._misplaced_logged_at = on_misplaced, -math.inf
        # It may be newer than the checkpoint. The next checkpoint saves it, and its position has then reached that end.
        self._confirmation = Confirmation(checkpoint.at_end_ms)
        self._pinned = pinned
        self._feed = None if latest is None else TailFeed(self.tail, self.advanced, latest, checkpoint.position)
        self._swap_lock = threading.Lock()  # held for a few instructions only, as the event loop takes it too
        self._write_lock = threading.Lock()  # held while the store writes; the event loop doesn't wait for it

    @property
    def task_id(self) -> AnyTaskId:
        """The task or global store that holds this partition."""
        return self.spec.task_id(self.partition)

    @property
    def folder(self) -> str:
        """Name of its folder, within the folder of its task."""
        return store_folder(self.spec, self.partition)

    @property
    def is_elsewhere(self) -> bool:
        """Whether its entries are in the data plane, so that each read of them has to wait."""
        return self._pinned is not None

    @property
    def keeps_moments(self) -> bool:
        """Whether it can show the store as it was at the end of a batch."""
        return self._moments is not None

    @property
    def oldest_batch(self) -> int | None:
        """The oldest batch that it can show, though some after it may not be kept; None if there is none.

        Where none is kept any more, the present state is the one of its newest record's batch.
        """
        if self._moments is None or self.state not in _READ_ON:
            return None
        kept, present = self._moments.oldest_kept(), self._checkpoint
        if kept is None and present.batch == NONE and _records_end(present) > 0:
            return None
        # Before all records it is the state of every batch that wrote none.
        return max(0, present.batch if kept is None else kept)

    @property
    def topic_partition(self) -> tuple[str, int]:
        """Changelog topic and partition."""
        return self.spec.changelog_topic, self.partition

    @property
    def topic_id(self) -> str:
        """The broker's id of the topic that the state was built from."""
        return self._checkpoint.topic_id

    @property
    def misplaced(self) -> int | None:
        """How many of the records it has read stand elsewhere than the partitioner puts them; None if not checked."""
        return self._checkpoint.misplaced

    @property
    def end_offset(self) -> int | None:
        """The last known end offset, or the position if that is larger; None if no end is known yet."""
        end = self._confirmation.newest
        return None if end is None else max(end.offset, self.position)

    @property
    def is_at_known_end(self) -> bool:
        """Whether the replica has reached the last known end; at first that is the end when the store was opened."""
        end = self._confirmation.newest
        return self.position >= (self.restored_to if end is None else end.offset)

    def to(self, state: StoreState) -> None:
        """Change the state.

        Raises:
            LogLost: the replica is lost: reading further can't make it right.
            InvalidTransition: the replica can't go from its present state to `state`.

        """
        with self._swap_lock:
            if self.loss is not None and not can_follow(self.state, state):
                raise self.loss
            self.state = next_state(self.state, state)

    def lose(self, loss: LogLost) -> None:
        """Mark the replica as lost; the thread that reads for it then fails it. Safe to call from any thread."""
        with self._swap_lock:
            if not can_follow(self.state, StoreState.LOST):
                return
            self.state, self.loss = StoreState.LOST, loss
        self.on_lost()

    def lag(self, now: float) -> int | None:
        """Return an upper bound on the number of records not yet applied, None if unknown.

        Measured against the last known end. If that end is older than `ends_valid_s` the lag is unknown, as any number
        of records may have come after it. `now`: monotonic clock, in seconds.
        """
        end = self._confirmation.newest
        if end is None or (self._ends_valid_s is not None and now - end.asked_at > self._ends_valid_s):
            return None
        return max(0, end.offset - self.position)

    def staleness_ms(self, now: float) -> int | None:
        """Return the milliseconds since this replica was last confirmed to be at the end, None if it never was."""
        at_end = self._confirm().at_end
        return None if at_end is None else max(0, int((now - at_end) * 1000))

    def last_end(self) -> LastEnd | None:
        """Return what is known of the end of the log; None if nothing is."""
        known = self._confirmation
        if (end := known.newest) is None:
            return None
        holds_until = None if self._ends_valid_s is None else end.asked_at + self._ends_valid_s
        return LastEnd(end.offset, holds_until, known.at_end)

    def note_end(self, offset: int, asked_at: float, wall_ms: int) -> None:
        """Note the end of the log as the broker named it.

        Args:
            offset: the end offset.
            asked_at: when the broker was asked, on the monotonic clock, in seconds.
            wall_ms: the same on the wall clock, in milliseconds.

        """
        with self._swap_lock:
            self._confirmation = self._confirmation.told(KnownEnd(offset, asked_at, wall_ms))
        self._confirm()
        self.on_end_known()

    def apply(self, records: Sequence[ChangelogRecord], position: int) -> Sequence[tuple[int, str]]:
        """Write records in offset order and move to `position`. Return (index, reason) of each unreadable record."""
        self._confirm()
        at_once = self._was_just_at_end()
        misplaced = self._placement.misplaced(records)
        with self._write_lock:
            before = self._checkpoint
            began = time.monotonic()
            applied = self._write(records, position, len(misplaced))
            took_s = time.monotonic() - began
        self._move(before, position, at_once=at_once)
        self.late += applied.late
        is_restoring = self.state is StoreState.RESTORING
        self.had_records = self.had_records or (bool(records) and records[0].offset < self.restored_to)
        self.metrics.applied(records, applied, took_s, restoring=is_restoring)
        if is_restoring:
            self.restored_records += len(records) - len(applied.unreadable)
        if misplaced:
            self._note_misplaced(len(misplaced), misplaced[0].offset, misplaced[0].expected)
        self._extend_tail(records, position, at_once=at_once)
        return applied.unreadable

    def _write(self, records: Sequence[ChangelogRecord], position: int, misplaced: int) -> Applied:
        """Write records, and keep what is there before the first one of each batch; a restore only writes."""
        if self._moments is None or self.state not in _READ_ON:
            return self._write_part(records, position, misplaced)
        written = Applied(stream_time_ms=self._checkpoint.stream_time_ms)
        begin = 0
        for batch, grouped in groupby(records, _BATCH):
            part = list(grouped)
            before = self._checkpoint
            if batch != before.batch:
                self._moments.keep(before.batch, _records_end(before), part[0].offset)
            end = begin + len(part)
            applied = self._write_part(part, position if end == len(records) else part[-1].offset + 1, misplaced)
            misplaced = 0
            written.unreadable += [(begin + index, reason) for index, reason in applied.unreadable]
            written.late += applied.late
            written.expired_segments += applied.expired_segments
            written.stream_time_ms = applied.stream_time_ms
            begin = end
        return written if records else self._write_part((), position, misplaced)

    def _write_part(self, records: Sequence[ChangelogRecord], position: int, misplaced: int) -> Applied:
        checkpoint = self._checkpoint_at(position)
        if records:
            checkpoint = replace(checkpoint, batch=records[-1].batch, records_end=records[-1].offset + 1)
        if misplaced:
            checkpoint = replace(checkpoint, misplaced=(checkpoint.misplaced or 0) + misplaced)
        applied = self.store.apply(records, checkpoint)
        self._checkpoint = replace(checkpoint, stream_time_ms=applied.stream_time_ms)
        return applied

    def _move(self, before: Checkpoint, position: int, *, at_once: bool) -> None:
        """Raise the position, which a checkpoint had. `at_once` is what `_was_just_at_end` said."""
        is_whole = at_once or self.tail.compaction.lag_ms is None
        self._exact.moved(_records_end(before), before.position, position, at_once=is_whole and self.state in _READ_ON)
        self.position = position

    def advanced_to(self, progress: Progress) -> None:
        """Note what the data plane has read and written. Only the event loop calls this, and nobody calls `apply`."""
        assert self._feed is not None  # noqa: S101 - a defect of the caller's
        self._confirm()
        at_once = self.state in _READ_ON and self._was_just_at_end()
        with self._swap_lock:  # a save may wait for the data plane, whose answer the event loop brings
            before = self._checkpoint
            checkpoint = replace(
                self._checkpoint_at(progress.position),
                stream_time_ms=progress.stream_time_ms,
                records_end=progress.records_end,
                # Only the data plane knows the newest record's.
                batch=before.batch if progress.records_end == before.records_end else NONE,
            )
            if progress.misplaced:
                checkpoint = replace(checkpoint, misplaced=(checkpoint.misplaced or 0) + progress.misplaced)
            self._checkpoint = checkpoint
        self._move(before, progress.position, at_once=at_once)
        self.late += progress.late
        records = progress.puts + progress.deletes
        is_restoring = self.state is StoreState.RESTORING
        self.had_records = self.had_records or (records > 0 and before.position < self.restored_to)
        if records:
            self.metrics.wrote(progress.puts, progress.deletes, progress.size, progress.took_s, restoring=is_restoring)
            self.metrics.dropped(progress.late, progress.expired_segments)
        if is_restoring:
            self.restored_records += records - progress.unreadable
        if progress.first_misplaced is not None:
            self._note_misplaced(progress.misplaced, *progress.first_misplaced)
        self._feed.reached(progress.position, at_once=at_once)

    def watched(self) -> AbstractAsyncContextManager[None]:
        """Have the tail extended as the log is read, for as long as the context lasts. For the event loop."""
        return nullcontext() if self._feed is None else self._feed.watched()

    def present_checkpoint(self) -> Checkpoint:
        """Return the checkpoint of the present position."""
        return self._checkpoint

    def _note_misplaced(self, count: int, offset: int, expected: int) -> None:
        """Count and log records that stand elsewhere than the partitioner puts their keys: the first, and how many."""
        self.metrics.misplaced.inc(count)
        now = time.monotonic()
        if now - self._misplaced_logged_at < _MISPLACED_LOG_S:
            return
        self._misplaced_logged_at = now
        self._on_misplaced()
        # The producers of a global store's topic choose the partitions as they like, and lookups ask all of them.
        warn = log.info if self.spec.is_global else log.warning
        warn(
            "misplaced record: its writer's partitioner is not murmur2; lookups of this store ask all partitions",
            store=self.spec.name,
            topic=self.spec.changelog_topic,
            partition=self.partition,
            offset=offset,
            expected_partition=expected,
            misplaced_records=self.misplaced,
        )

    def at_rest(self, walk: Walk, read: Callable[[], T]) -> tuple[T, int]:
        """Begin a read between two writes. Return the result of `read`, and the exact position of the state it read.

        The writer waits only until the store has its view and begins the walk, not until the walk ends.
        """
        if self._pinned is not None:
            with self._pinned() as position:
                return read(), position
        with ExitStack() as locked:
            locked.enter_context(self._write_lock)
            position = self._checkpoint.position
            walk.on_begin = locked.close
            return read(), position

    def is_exact(self, end: int, following: Callable[[], int | None] = lambda: None) -> bool:
        """Whether the state at a batch's end, which it has reached, was all that the log then had.

        `following` returns the end of the next batch with another one, None if none is known.
        """
        if self.loss is not None:
            return False
        if self._exact.holds(end, following):
            return True
        self._confirm()
        if self.state is StoreState.RESTORING or not self._was_just_at_end():
            return False
        present = self._checkpoint
        self._exact.found_at_end(_records_end(present), present.position)
        return self._exact.holds(end, following)

    @contextmanager
    def at(self, chosen: Chosen) -> Iterator[None]:
        """Have this thread's reads of the store be as of a batch. It may wait for a write.

        Raises:
            MomentGone: the batch is not kept, or not any more. A read within the context may raise it, too.
            StoreClosed: the store is closed.

        """
        if self._moments is None:
            raise MomentGone(f"store {self.spec.name} keeps no batches")
        with ExitStack() as shown:
            try:
                shown.enter_context(self._moments.moment(chosen.batch_id, chosen.end))
            except MomentGone:
                # The newest one is kept as soon as somebody reads it, as it may be the newest for long.
                with self._write_lock:
                    present = self._checkpoint
                    records_end = _records_end(present)
                    if not is_state_of(present.batch, records_end, present.position, chosen.batch_id, chosen.end):
                        raise
                    self._moments.keep(present.batch, records_end, present.position)
                    shown.enter_context(self._moments.moment(chosen.batch_id, chosen.end))
            yield

    def note_skipped(self, offset: int, reason: str) -> None:
        """Count and log a record that was skipped."""
        self.skipped += 1
        self.metrics.skipped()
        log.warning(
            "unreadable record skipped",
            topic=self.spec.changelog_topic,
            partition=self.partition,
            offset=offset,
            reason=reason,
        )

    def reach(self, position: int) -> None:
        """Move over offsets that hold no records (markers, aborted batches, compacted ranges)."""
        if position > self.position:
            at_once = self._was_just_at_end()
            with self._write_lock:
                before = self._checkpoint
                self._checkpoint = self._checkpoint_at(position)
            self._move(before, position, at_once=at_once)
            self._extend_tail((), position, at_once=at_once)

    def _checkpoint_at(self, position: int) -> Checkpoint:
        return replace(self._checkpoint, position=position, at_end_ms=self._confirmation.at_end_ms)

    def _was_just_at_end(self) -> bool:
        """Whether the records after the present position were read immediately (rule 3 in `tail`).

        Ask before the position moves. Afterwards the records themselves may confirm the end, and the answer is wrong.
        """
        at_end = self._confirmation.at_end
        return at_end is not None and time.monotonic() - at_end <= READ_AT_ONCE_S

    def _extend_tail(self, records: Sequence[ChangelogRecord], position: int, *, at_once: bool) -> None:
        """Keep the records read after the restore. A restore reads a log that may have been compacted."""
        if self.state in _READ_ON:
            at_once_from = self.tail.end if at_once else position
            self.tail.extend(records, position, monotonic_and_wall_ms()[1], at_once_from=at_once_from)
        else:
            self.tail.restart(position)
        self.advanced.poke()

    def save_checkpoint(self) -> Checkpoint:
        """Write the checkpoint into the store and return it."""
        self._confirm()
        with self._write_lock:
            with self._swap_lock:
                self._checkpoint = checkpoint = self._checkpoint_at(self._checkpoint.position)
            if not _is_saved(checkpoint, self.store.checkpoint()):
                began = time.monotonic()
                self.store.apply((), checkpoint)
                ended = time.monotonic()
                self.metrics.writes.flushed(ended - began, ended)
            return checkpoint

    def outran_retention(self) -> LogLost | None:
        """Return the error if tombstones may have left the log before they were read, otherwise None.

        The log surely had all tombstones if the replica reaches the end within their retention, counted from when the
        state was last complete. The rule is the same for a long restore and for a replica that fell behind.
        """
        behind_ms = monotonic_and_wall_ms()[1] - self._confirmation.at_end_ms
        if self._tombstones_kept_ms is None or behind_ms <= self._tombstones_kept_ms:
            return None
        return LogLost(
            f"it took {behind_ms} ms to get to the end of {self.spec.changelog_topic} and tombstones are surely kept "
            f"for {self._tombstones_kept_ms} ms only: deleted keys could come back (raise delete.retention.ms)",
            Fault.CHECKPOINT_TOO_OLD,
        )

    def _confirm(self) -> Confirmation:
        """Confirm what the position proves, and return the confirmation.

        Never waits for a write, as the event loop calls it too.
        """
        if (known := self._confirmation).at(self.position) is known:
            return known
        with self._swap_lock:
            known = self._confirmation
            following = known.at(self.position)
            loss = self.outran_retention() if following.position != known.position else None
            if loss is None:
                self._confirmation = known = following
        if loss is not None:
            self.lose(loss)
        self.on_end_known()
        return known


class TaskReplica:
    """A task, or a copy of a global store, on this node: its entry in the task machine, its folder and its stores.

    `stores` has the open stores by the names of their folders. A task has one partition of each store; a global store
    has all its partitions. `transfers` has, by the same names, what is fetched for stores that are not open yet.
    """

    def __init__(self, node_task: NodeTask, directory: TaskDirectory) -> None:
        self.node_task, self.directory = node_task, directory
        self.stores: dict[str, StoreReplica] = {}
        self.transfers: dict[str, Transfer] = {}

    @property
    def task(self) -> AnyTaskId:
        """The task, or the copy of a global store."""
        return self.node_task.task

    @property
    def role(self) -> Role:
        """The node's role in the newest assignment."""
        return self.node_task.role

    @property
    def state(self) -> TaskState:
        """What the task is doing."""
        return self.node_task.state

    @property
    def error(self) -> str:
        """Why the task is in the state ERROR; empty if it isn't."""
        return self.node_task.error

    def of(self, spec: StoreSpec, partition: int) -> StoreReplica | None:
        """Return the replica of a store partition, None if the partition is not open here."""
        return self.stores.get(store_folder(spec, partition))

    def report(self) -> ReplicaReport:
        """Return the heartbeat's report of a task."""
        return ReplicaReport(
            self.role, self.state, {store.spec.name: _reported(store) for store in self.stores.values()}
        )

    def global_report(self) -> GlobalReport:
        """Return the heartbeat's report of a copy of a global store."""
        return GlobalReport(self.state, {store.partition: _reported(store) for store in self.stores.values()})


def _records_end(checkpoint: Checkpoint) -> int:
    """Return the offset after the newest record of a state; a replica's checkpoint has it."""
    return 0 if checkpoint.records_end is None else checkpoint.records_end


def _is_saved(checkpoint: Checkpoint, saved: Checkpoint | None) -> bool:
    """Whether a store has a checkpoint. What its newest record is doesn't change without the position."""
    return (
        saved is not None and replace(saved, batch=checkpoint.batch, records_end=checkpoint.records_end) == checkpoint
    )


def _reported(store: StoreReplica) -> StorePosition:
    spec = store.spec
    log = log_number(store.topic_id, spec.partition_count) if spec.foreign and not spec.is_global else 0
    return StorePosition(store.position, store.end_offset, store.misplaced, store.topic_change, log)


def monotonic_and_wall_ms() -> tuple[float, int]:
    """Return the monotonic clock in seconds, and the process's time of day in milliseconds, which nobody can set."""
    return time.monotonic(), process_clock().now_ms()
