"""Listeners: plug-ins that the node calls at state changes, restores and standby updates, as Kafka Streams does.

A listener has all methods of one or more of the protocols below. The program that builds the node passes listeners to
it. Installed packages add listeners by entry points of the group `statehouse.listeners`; each names a class or function
that is called without arguments and returns a listener.

A listener never delays or fails a restore. Each listener has its own thread and its own bounded queue. Events arrive in
order. Events beyond the bound are dropped and counted; exceptions are logged and counted. Batches may fill only a part
of the queue, so that batches are dropped before any start or end is.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from importlib.metadata import entry_points
from typing import Any, Protocol, TypeAlias, runtime_checkable

import structlog

from query_service.telemetry.events import StorePartition, SuspendReason
from statehouse.membership import NodeState, TaskState
from statehouse.topology import AnyTaskId

log = structlog.get_logger(__name__)

GROUP = "statehouse.listeners"

_QUEUED_EVENTS_MAX = 10_000
_QUEUED_BATCHES_MAX = 5_000
_COMPLAINT_INTERVAL_S = 10.0


@runtime_checkable
class StateListener(Protocol):
    """Called at every change of the node's state and of its tasks' states (Kafka Streams' StateListener)."""

    def on_node_state(self, old: NodeState, new: NodeState) -> None:
        """Called when the node's state has changed.

        Args:
            old: the state before.
            new: the state now.

        """

    def on_task_state(self, task: AnyTaskId, old: TaskState, new: TaskState) -> None:
        """Called when the state of a task or of a global store has changed.

        Args:
            task: the task or the global store.
            old: the state before.
            new: the state now.

        """


@runtime_checkable
class RestoreListener(Protocol):
    """Called as stores are restored from their changelogs (Kafka Streams' StateRestoreListener)."""

    def on_restore_start(self, where: StorePartition, start_offset: int, end_offset: int, *, full: bool) -> None:
        """Called when a restore starts.

        Args:
            where: the partition.
            start_offset: the first offset that the restore needs.
            end_offset: the end of the log at this moment.
            full: whether the store is empty and is restored from the start of the log.

        """

    def on_batch_restored(self, where: StorePartition, batch_end_offset: int, records: int) -> None:
        """Called when a batch has been restored.

        Args:
            where: the partition.
            batch_end_offset: the next offset that the restore needs.
            records: number of records in the batch.

        """

    def on_restore_end(self, where: StorePartition, total: int) -> None:
        """Called when a restore has reached the end of the log.

        Args:
            where: the partition.
            total: number of records restored.

        """

    def on_restore_suspended(self, where: StorePartition, total: int) -> None:
        """Called when a restore stops before the end of the log, because the task was closed or failed.

        Args:
            where: the partition.
            total: number of records restored so far.

        """


@runtime_checkable
class StandbyUpdateListener(Protocol):
    """Called as restored stores that aren't active follow their changelogs (KIP-988)."""

    def on_update_start(self, where: StorePartition, start_offset: int) -> None:
        """Called when a store starts to follow its changelog as a standby.

        Args:
            where: the partition.
            start_offset: the next offset that the store needs.

        """

    def on_batch_loaded(
        self, where: StorePartition, batch_end_offset: int, records: int, end_offset: int | None
    ) -> None:
        """Called when a standby has applied a batch.

        Args:
            where: the partition.
            batch_end_offset: the next offset that the store needs.
            records: number of records in the batch.
            end_offset: the largest known end of the log, None if unknown.

        """

    def on_update_suspended(
        self, where: StorePartition, offset: int, end_offset: int | None, reason: SuspendReason
    ) -> None:
        """Called when a store stops following its changelog as a standby.

        Args:
            where: the partition.
            offset: the next offset that the store needs.
            end_offset: the largest known end of the log, None if unknown.
            reason: why it stops.

        """


Listener: TypeAlias = StateListener | RestoreListener | StandbyUpdateListener

_PROTOCOLS = (StateListener, RestoreListener, StandbyUpdateListener)


class Listeners:
    """Passes events on to the listeners, and has every listener method itself. Never blocks; safe from any thread."""

    def __init__(self) -> None:
        self._threads: list[_ListenerThread] = []
        self._told: dict[type, list[_ListenerThread]] = {protocol: [] for protocol in _PROTOCOLS}

    def add(self, name: str, listener: Listener) -> None:
        """Add a listener. It gets the events from now on; logs and metrics show it as `name`."""
        protocols = [protocol for protocol in _PROTOCOLS if isinstance(listener, protocol)]
        if not protocols:
            log.error("listener ignored: it implements no protocol", listener=name, type=type(listener).__name__)
            return
        thread = _ListenerThread(name, listener)
        self._threads.append(thread)
        for protocol in protocols:
            self._told[protocol].append(thread)

    def add_installed(self) -> None:
        """Add the listeners of installed packages. If one can't be made, log it and go on without it."""
        for entry_point in sorted(entry_points(group=GROUP)):
            try:
                self.add(entry_point.name, entry_point.load()())
            except Exception:
                log.exception("listener can't be loaded", listener=entry_point.name, value=entry_point.value)

    def dropped(self) -> Mapping[str, int]:
        """Return how many events were dropped, by name of listener."""
        return {thread.name: thread.dropped for thread in self._threads}

    def failed(self) -> Mapping[str, int]:
        """Return how many calls raised an exception, by name of listener."""
        return {thread.name: thread.failed for thread in self._threads}

    def close(self, timeout_s: float) -> None:
        """Wait until the listeners have taken the queued events, but at most `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.end()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def on_node_state(self, old: NodeState, new: NodeState) -> None:
        """Pass the event on."""
        self._tell(StateListener, "on_node_state", old, new)

    def on_task_state(self, task: AnyTaskId, old: TaskState, new: TaskState) -> None:
        """Pass the event on."""
        self._tell(StateListener, "on_task_state", task, old, new)

    def on_restore_start(self, where: StorePartition, start_offset: int, end_offset: int, *, full: bool) -> None:
        """Pass the event on."""
        self._tell(RestoreListener, "on_restore_start", where, start_offset, end_offset, full=full)

    def on_batch_restored(self, where: StorePartition, batch_end_offset: int, records: int) -> None:
        """Pass the event on."""
        self._tell(RestoreListener, "on_batch_restored", where, batch_end_offset, records, is_batch=True)

    def on_restore_end(self, where: StorePartition, total: int) -> None:
        """Pass the event on."""
        self._tell(RestoreListener, "on_restore_end", where, total)

    def on_restore_suspended(self, where: StorePartition, total: int) -> None:
        """Pass the event on."""
        self._tell(RestoreListener, "on_restore_suspended", where, total)

    def on_update_start(self, where: StorePartition, start_offset: int) -> None:
        """Pass the event on."""
        self._tell(StandbyUpdateListener, "on_update_start", where, start_offset)

    def on_batch_loaded(
        self, where: StorePartition, batch_end_offset: int, records: int, end_offset: int | None
    ) -> None:
        """Pass the event on."""
        self._tell(
            StandbyUpdateListener, "on_batch_loaded", where, batch_end_offset, records, end_offset, is_batch=True
        )

    def on_update_suspended(
        self, where: StorePartition, offset: int, end_offset: int | None, reason: SuspendReason
    ) -> None:
        """Pass the event on."""
        self._tell(StandbyUpdateListener, "on_update_suspended", where, offset, end_offset, reason)

    def _tell(self, protocol: type, event: str, *arguments: object, is_batch: bool = False, **options: object) -> None:
        for thread in self._told[protocol]:
            thread.put(partial(getattr(thread.listener, event), *arguments, **options), is_batch=is_batch)


class _ListenerThread:
    """Calls one listener, one event at a time."""

    def __init__(self, name: str, listener: Listener) -> None:
        self.name, self.listener = name, listener
        self.dropped = self.failed = 0
        self._events: deque[partial[Any]] = deque()
        self._changed = threading.Condition()
        self._ending = False
        self._drops_said = self._failures_said = -_COMPLAINT_INTERVAL_S
        self._thread = threading.Thread(target=self._run, name=f"listener-{name}", daemon=True)
        self._thread.start()

    def put(self, event: partial[Any], *, is_batch: bool) -> None:
        """Queue an event, or count it as dropped if the queue is full."""
        with self._changed:
            if len(self._events) < (_QUEUED_BATCHES_MAX if is_batch else _QUEUED_EVENTS_MAX):
                self._events.append(event)
                self._changed.notify()
                return
            self.dropped += 1
            now = time.monotonic()
            if now - self._drops_said < _COMPLAINT_INTERVAL_S:
                return
            self._drops_said = now
        log.warning("listener is too slow, events are dropped", listener=self.name, dropped=self.dropped)

    def end(self) -> None:
        """Make the thread end once the queue is empty."""
        with self._changed:
            self._ending = True
            self._changed.notify()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end. If its listener hangs, the thread ends with the process."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._events or self._ending)
                if not self._events:
                    return
                event = self._events.popleft()
            try:
                event()
            except Exception as error:  # noqa: BLE001 - a plug-in may raise anything
                self._complain(event, error)

    def _complain(self, event: partial[Any], error: Exception) -> None:
        self.failed += 1
        now = time.monotonic()
        if now - self._failures_said >= _COMPLAINT_INTERVAL_S:
            self._failures_said = now
            method = event.func.__name__
            log.error("listener failed", listener=self.name, method=method, failures=self.failed, exc_info=error)
