"""Replicas: a task's stores on this node, how far each has got, and how fresh that is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TypeVar

import structlog

from query_service.checkpoint import Checkpoint
from query_service.disk import TaskDirectory, store_folder
from query_service.faults import Fault, TaskFault
from query_service.lifecycle import TaskState, next_task_state
from query_service.listeners import StateListener
from query_service.metrics import ReplicaMetrics
from query_service.stores.base import Record, StateStore
from query_service.stores.walk import Walk
from query_service.tail import READ_AT_ONCE_S, Compaction, Tail
from query_service.wakeup import Wakeup
from statehouse.membership import GlobalReport, ReplicaReport, StorePosition
from statehouse.topology import HeldId, Role, StoreSpec

log = structlog.get_logger(__name__)

T = TypeVar("T")


class LogLost(TaskFault):
    """The changelog no longer has what the replica needs to read on."""

    fault = Fault.LOG_TRUNCATED


class StoreReplica:
    """A store's replica of one changelog partition.

    One replication thread at a time writes (`apply`, `reach`); any thread reads or saves. Single attribute writes are
    atomic, and the position is raised only after the data is in, so a reader that takes the position first
    never claims more than it then sees.
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
        ends_hold_s: float | None = None,
    ) -> None:
        """Take an open store.

        `metrics`: the counters of the store in the task's role; replaced when that changes.
        `tail`: an empty one, at the checkpoint's position; None keeps nothing for watches.
        `tombstones_kept_ms`: how long after their writing the log surely holds tombstones; None is for ever.
        `since_ms`: when an ephemeral store began, empty, to follow its updates.
        `restored_to`: the log's end when the store was opened; None where nothing is restored.
        `restored_in_full`: the store is empty, and is restored from the start of the log.
        `ends_hold_s`: how long after it was asked for an end tells the lag; None is for ever.
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
        self.restored = False  # it has reached the end of the log once
        self.following = False  # the follower reads on for it
        self.restored_from = checkpoint.position
        self.restored_to = checkpoint.position if restored_to is None else restored_to
        self.restored_in_full = restored_in_full
        self.restored_records = 0
        self.closing = False  # the store waits for the reads under way to end
        self.lost: LogLost | None = None  # why the state can't be mended by reading on; its reader then fails it
        self._tombstones_kept_ms = tombstones_kept_ms
        self._ends_hold_s = ends_hold_s
        self._confirmed_position: int | None = None
        self._checkpoint = checkpoint
        # Newer than the checkpoint's, and saved with the next one: that one's position is not behind the end meant.
        self._at_end_ms = checkpoint.at_end_ms
        self._write_lock = threading.Lock()
        self._end: tuple[int, float, int] | None = None  # offset, monotonic s and wall ms when it was asked for
        # An older end: with a steady lag the newest one is never reached before the next is known.
        self._awaited: tuple[int, float, int] | None = None
        self._at_end: float | None = None

    @property
    def held_as(self) -> HeldId:
        """The task, or the copy of a global store, that it is part of."""
        return self.spec.held_as(self.partition)

    @property
    def folder(self) -> str:
        """Name of its folder in the task's."""
        return store_folder(self.spec, self.partition)

    @property
    def topic_partition(self) -> tuple[str, int]:
        """Changelog topic and partition."""
        return self.spec.changelog_topic, self.partition

    @property
    def topic_id(self) -> str:
        """Id of the topic that the state is of."""
        return self._checkpoint.topic_id

    @property
    def end_offset(self) -> int | None:
        """Largest end offset known, None if the broker has not been asked yet."""
        return None if self._end is None else max(self._end[0], self.position)

    @property
    def is_at_known_end(self) -> bool:
        """Whether all is there that the log held when its end was last asked for."""
        asked = self._end
        return self.position >= (self.restored_to if asked is None else asked[0])

    def lag(self, now: float) -> int | None:
        """Upper bound on the records not yet applied, None if unknown.

        It is of the end that was asked for last. Behind an end of long ago there may be any number of records, also for
        a replica that has reached it.
        """
        end = self._end
        if end is None or (self._ends_hold_s is not None and now - end[1] > self._ends_hold_s):
            return None
        return max(0, end[0] - self.position)

    def staleness_ms(self, now: float) -> int | None:
        """Milliseconds since this replica last confirmed being at the end, None if it never has."""
        self._confirm()
        return None if self._at_end is None else max(0, int((now - self._at_end) * 1000))

    def note_end(self, offset: int, asked_at: float, wall_ms: int) -> None:
        """Take the partition's end as it was at `asked_at` (monotonic, seconds)."""
        self._end = (offset, asked_at, wall_ms)
        self._awaited = self._awaited or self._end
        self._confirm()

    def apply(self, records: Sequence[Record], position: int) -> Sequence[tuple[int, str]]:
        """Write records in offset order and move to `position`; return (index, reason) of the unreadable ones."""
        self._confirm()
        at_once = self._was_just_at_end()
        with self._write_lock:
            checkpoint = self._checkpoint_at(position)
            applied = self.store.apply(records, checkpoint)
            self._checkpoint = replace(checkpoint, stream_time_ms=applied.stream_time_ms)
        self.position = position
        self.late += applied.late
        self.metrics.applied(records, applied, restoring=not self.restored)
        if not self.restored:
            self.restored_records += len(records) - len(applied.unreadable)
        self._extend_tail(records, position, at_once=at_once)
        return applied.unreadable

    def at_rest(self, walk: Walk, read: Callable[[], T]) -> tuple[T, int]:
        """Begin a read between two writes; return what `read` found and the position that it is exactly of.

        The writer waits until the store has its view and begins to walk it, not for the walk.
        """
        with ExitStack() as held:
            held.enter_context(self._write_lock)
            position = self._checkpoint.position
            walk.on_begin = held.close
            return read(), position

    def note_skipped(self, offset: int, reason: str) -> None:
        """Count and log a record that was passed over."""
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
                self._checkpoint = self._checkpoint_at(position)
            self.position = position
            self._extend_tail((), position, at_once=at_once)

    def _checkpoint_at(self, position: int) -> Checkpoint:
        return replace(self._checkpoint, position=position, at_end_ms=self._at_end_ms)

    def _was_just_at_end(self) -> bool:
        """Whether what was read after the present position was read at once (see `tail`).

        To be asked before the position moves: from then on it may be what was read that the end is confirmed with.
        """
        return self._at_end is not None and time.monotonic() - self._at_end <= READ_AT_ONCE_S

    def _extend_tail(self, records: Sequence[Record], position: int, *, at_once: bool) -> None:
        """Keep what is read since the end was reached once; a restore reads a log that may have been compacted."""
        if self.restored:
            self.tail.extend(records, position, monotonic_and_wall_ms()[1], at_once=at_once)
        else:
            self.tail.restart(position)
        self.advanced.poke()

    def save_checkpoint(self) -> Checkpoint:
        """Write the place into the store and return it."""
        self._confirm()
        with self._write_lock:
            self._checkpoint = self._checkpoint_at(self._checkpoint.position)
            if self.store.checkpoint() != self._checkpoint:
                self.store.apply((), self._checkpoint)
            return self._checkpoint

    def outran_retention(self) -> LogLost | None:
        """Return why tombstones may have left the log before they were read, None if they can't have.

        A log read to its end within their retention, counted from when the state was last complete, had them all.
        That holds for a restore that takes long as for a replica that fell behind.
        """
        behind_ms = monotonic_and_wall_ms()[1] - self._at_end_ms
        if self._tombstones_kept_ms is None or behind_ms <= self._tombstones_kept_ms:
            return None
        return LogLost(
            f"it took {behind_ms} ms to get to the end of {self.spec.changelog_topic} and tombstones are surely kept "
            f"for {self._tombstones_kept_ms} ms only: deleted keys could come back (raise delete.retention.ms)",
            Fault.CHECKPOINT_TOO_OLD,
        )

    def _confirm(self) -> None:
        """Being at an end that the broker named confirms the moment it was asked for.

        Waits for nothing: the event loop asks, too.
        """
        position, newest = self.position, self._end
        end = newest if newest is not None and position >= newest[0] else self._awaited
        if end is None or position < end[0]:
            return
        self._awaited = newest  # reached at once if it is this one
        if self._at_end is not None and self._at_end >= end[1]:
            return
        if position != self._confirmed_position and (loss := self.outran_retention()) is not None:
            self.lost = loss
            return
        self._confirmed_position = position
        self._at_end, self._at_end_ms = end[1], end[2]


class TaskReplica:
    """A task, or a copy of a global store, on this node: its stores, its role and its state.

    `partitions` are the store partitions in it. `stores` are those that are open, by the names of their folders: of a
    task each store's one partition, of a global store every partition.
    """

    def __init__(
        self,
        task: HeldId,
        role: Role,
        partitions: Sequence[tuple[StoreSpec, int]],
        directory: TaskDirectory,
        listener: StateListener,
    ) -> None:
        self._listener = listener
        self.task = task
        self.partitions = partitions
        self.role = role
        self.directory = directory
        self.state = TaskState.CREATED
        self.stores: dict[str, StoreReplica] = {}
        self.error = ""

    def to(self, state: TaskState, error: str = "") -> None:
        """Change the state.

        Raises:
            InvalidTransition: it can't follow the present one.

        """
        old, self.state = self.state, next_task_state(self.state, state)
        self.error = error
        self._listener.on_task_state(self.task, old, state)
        for store in self.stores.values():
            store.advanced.poke()  # whoever watches it must learn that it ends

    def is_in(self, *states: TaskState) -> bool:
        """Whether the state is one of these at this moment; it may change at every await."""
        return self.state in states

    def holds(self, partitions: Sequence[tuple[StoreSpec, int]]) -> bool:
        """Whether it was opened for these store partitions, as they are specified now."""
        mine, others = ([(spec.stored, number) for spec, number in each] for each in (self.partitions, partitions))
        return mine == others

    def of(self, spec: StoreSpec, partition: int) -> StoreReplica | None:
        """Return its replica of a store partition, None if that is not open."""
        return self.stores.get(store_folder(spec, partition))

    def report(self) -> ReplicaReport:
        """Return what the heartbeat says of a task."""
        return ReplicaReport(
            self.role, self.state.value, {store.spec.name: _reported(store) for store in self.stores.values()}
        )

    def global_report(self) -> GlobalReport:
        """Return what the heartbeat says of a copy of a global store."""
        return GlobalReport(self.state.value, {store.partition: _reported(store) for store in self.stores.values()})


def _reported(store: StoreReplica) -> StorePosition:
    return StorePosition(store.position, store.end_offset)


def monotonic_and_wall_ms() -> tuple[float, int]:
    """Return the monotonic clock in seconds, and the wall clock in milliseconds."""
    return time.monotonic(), int(time.time() * 1000)
