"""Listeners: plug-ins that are told of state changes, restores and standby updates, as Kafka Streams' are.

A listener has the methods of one or more of the protocols below. It is given to the node by whoever builds it, or found
by the entry points of the group `statehouse.listeners` (each names a class or function, called without arguments).

What a listener does never delays or fails a restore. Each has a thread and a bounded queue of its own: events arrive in
order, those beyond the bound are dropped and counted, exceptions are logged and counted. Batches may take only part of
the queue, so that what is dropped first is never a start or an end.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib.metadata import entry_points
from typing import Any, Protocol, TypeAlias, runtime_checkable

import structlog

from query_service.lifecycle import NodeState, TaskState
from statehouse.topology import HeldId

log = structlog.get_logger(__name__)

GROUP = "statehouse.listeners"

_QUEUED_EVENTS_MAX = 10_000
_QUEUED_BATCHES_MAX = 5_000
_COMPLAINT_INTERVAL_S = 10.0


@dataclass(frozen=True, slots=True)
class StorePartition:
    """A store's partition and the changelog partition it is read from."""

    store: str
    topic: str
    partition: int


class SuspendReason(StrEnum):
    """Why a standby is no longer kept up to date as one (KIP-988)."""

    MIGRATED = "migrated"
    """The node no longer has the task, or its task failed."""
    PROMOTED = "promoted"
    """It became the active."""


@runtime_checkable
class StateListener(Protocol):
    """Told of every change of state, of the node and of its tasks."""

    def on_node_state(self, old: NodeState, new: NodeState) -> None:
        """Take a change of the node's state."""

    def on_task_state(self, task: HeldId, old: TaskState, new: TaskState) -> None:
        """Take a change of a task's state."""


@runtime_checkable
class RestoreListener(Protocol):
    """Told how stores are restored from their changelogs (Kafka Streams' StateRestoreListener)."""

    def on_restore_start(self, where: StorePartition, start_offset: int, end_offset: int, *, full: bool) -> None:
        """Take a beginning: `end_offset` as of now; `full`: an empty store, from the start of the log."""

    def on_batch_restored(self, where: StorePartition, batch_end_offset: int, records: int) -> None:
        """Take a batch: the next offset needed, and how many records it had."""

    def on_restore_end(self, where: StorePartition, total: int) -> None:
        """Take the end: how many records were restored."""

    def on_restore_suspended(self, where: StorePartition, total: int) -> None:
        """Take an end before the end of the log: the task was closed or failed after `total` records."""


@runtime_checkable
class StandbyUpdateListener(Protocol):
    """Told how restored stores that aren't active follow their changelogs (KIP-988)."""

    def on_update_start(self, where: StorePartition, start_offset: int) -> None:
        """Take a beginning."""

    def on_batch_loaded(
        self, where: StorePartition, batch_end_offset: int, records: int, end_offset: int | None
    ) -> None:
        """Take a batch; `end_offset` is the largest end known of the log, None if unknown."""

    def on_update_suspended(
        self, where: StorePartition, offset: int, end_offset: int | None, reason: SuspendReason
    ) -> None:
        """Take an end: the next offset needed, and the largest end known of the log."""


Listener: TypeAlias = StateListener | RestoreListener | StandbyUpdateListener

_PROTOCOLS = (StateListener, RestoreListener, StandbyUpdateListener)


class Listeners:
    """Passes events on to the listeners; itself one of every kind. Safe to call from any thread, and never blocks."""

    def __init__(self) -> None:
        self._threads: list[_ListenerThread] = []
        self._told: dict[type, list[_ListenerThread]] = {protocol: [] for protocol in _PROTOCOLS}

    def add(self, name: str, listener: Listener) -> None:
        """Have a listener told of what happens from now on. `name` stands for it in logs and metrics."""
        protocols = [protocol for protocol in _PROTOCOLS if isinstance(listener, protocol)]
        if not protocols:
            log.error("listener has all methods of none of the protocols", listener=name, type=type(listener).__name__)
            return
        thread = _ListenerThread(name, listener)
        self._threads.append(thread)
        for protocol in protocols:
            self._told[protocol].append(thread)

    def add_installed(self) -> None:
        """Add those of installed packages. One that can't be made is logged; the node goes on without it."""
        for entry_point in sorted(entry_points(group=GROUP)):
            try:
                self.add(entry_point.name, entry_point.load()())
            except Exception:
                log.exception("listener can't be loaded", listener=entry_point.name, value=entry_point.value)

    def dropped(self) -> Mapping[str, int]:
        """Return how many events each listener missed."""
        return {thread.name: thread.dropped for thread in self._threads}

    def failed(self) -> Mapping[str, int]:
        """Return how many events each listener raised at."""
        return {thread.name: thread.failed for thread in self._threads}

    def close(self, timeout_s: float) -> None:
        """Let the listeners take what is queued, for as long as this at most."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.end()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def on_node_state(self, old: NodeState, new: NodeState) -> None:
        """Tell."""
        self._tell(StateListener, "on_node_state", old, new)

    def on_task_state(self, task: HeldId, old: TaskState, new: TaskState) -> None:
        """Tell."""
        self._tell(StateListener, "on_task_state", task, old, new)

    def on_restore_start(self, where: StorePartition, start_offset: int, end_offset: int, *, full: bool) -> None:
        """Tell."""
        self._tell(RestoreListener, "on_restore_start", where, start_offset, end_offset, full=full)

    def on_batch_restored(self, where: StorePartition, batch_end_offset: int, records: int) -> None:
        """Tell."""
        self._tell(RestoreListener, "on_batch_restored", where, batch_end_offset, records, is_batch=True)

    def on_restore_end(self, where: StorePartition, total: int) -> None:
        """Tell."""
        self._tell(RestoreListener, "on_restore_end", where, total)

    def on_restore_suspended(self, where: StorePartition, total: int) -> None:
        """Tell."""
        self._tell(RestoreListener, "on_restore_suspended", where, total)

    def on_update_start(self, where: StorePartition, start_offset: int) -> None:
        """Tell."""
        self._tell(StandbyUpdateListener, "on_update_start", where, start_offset)

    def on_batch_loaded(
        self, where: StorePartition, batch_end_offset: int, records: int, end_offset: int | None
    ) -> None:
        """Tell."""
        self._tell(
            StandbyUpdateListener, "on_batch_loaded", where, batch_end_offset, records, end_offset, is_batch=True
        )

    def on_update_suspended(
        self, where: StorePartition, offset: int, end_offset: int | None, reason: SuspendReason
    ) -> None:
        """Tell."""
        self._tell(StandbyUpdateListener, "on_update_suspended", where, offset, end_offset, reason)

    def _tell(self, protocol: type, event: str, *arguments: object, is_batch: bool = False, **options: object) -> None:
        for thread in self._told[protocol]:
            thread.put(partial(getattr(thread.listener, event), *arguments, **options), is_batch=is_batch)


class _ListenerThread:
    """Calls one listener, event by event."""

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
        """Queue an event, or count it as dropped."""
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
        """End the thread once the queue is empty."""
        with self._changed:
            self._ending = True
            self._changed.notify()

    def join(self, timeout_s: float) -> None:
        """Wait for the end; a listener that hangs ends with the process."""
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
            except Exception as error:  # noqa: BLE001 - it is the plug-in's, whatever it is
                self._complain(event, error)

    def _complain(self, event: partial[Any], error: Exception) -> None:
        self.failed += 1
        now = time.monotonic()
        if now - self._failures_said >= _COMPLAINT_INTERVAL_S:
            self._failures_said = now
            method = event.func.__name__
            log.error("listener failed", listener=self.name, method=method, failures=self.failed, exc_info=error)
