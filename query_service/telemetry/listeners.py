"""Listeners: plug-ins that the node calls at state changes, restores and standby updates, as Kafka Streams does.

A listener has all methods of one or more of the protocols below. The program that builds the node passes listeners to
it. Installed packages add listeners by entry points of the group `statehouse.listeners`; each names a class or function
that is called without arguments and returns a listener.

A listener never delays or fails a restore (`statehouse/observability/listeners.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, runtime_checkable

from query_service.telemetry.events import StorePartition, SuspendReason
from statehouse.contract.membership import NodeState, TaskState
from statehouse.contract.topology import AnyTaskId
from statehouse.observability.listeners import ListenerThreads

GROUP = "statehouse.listeners"


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

P = ParamSpec("P")


def _passed_on(
    protocol: type, method: Callable[Concatenate[Any, P], None], *, is_batch: bool = False
) -> Callable[Concatenate[Listeners, P], None]:
    """Return a method that tells all listeners of a protocol what it is called with."""

    def pass_on(self: Listeners, /, *arguments: P.args, **options: P.kwargs) -> None:
        self.tell(protocol, method.__name__, *arguments, is_batch=is_batch, **options)

    return pass_on


class Listeners(ListenerThreads):
    """Passes events on to the node's listeners, and has every listener method itself. Safe from any thread."""

    def __init__(self) -> None:
        super().__init__(GROUP, (StateListener, RestoreListener, StandbyUpdateListener))

    on_node_state = _passed_on(StateListener, StateListener.on_node_state)
    on_task_state = _passed_on(StateListener, StateListener.on_task_state)
    on_restore_start = _passed_on(RestoreListener, RestoreListener.on_restore_start)
    on_batch_restored = _passed_on(RestoreListener, RestoreListener.on_batch_restored, is_batch=True)
    on_restore_end = _passed_on(RestoreListener, RestoreListener.on_restore_end)
    on_restore_suspended = _passed_on(RestoreListener, RestoreListener.on_restore_suspended)
    on_update_start = _passed_on(StandbyUpdateListener, StandbyUpdateListener.on_update_start)
    on_batch_loaded = _passed_on(StandbyUpdateListener, StandbyUpdateListener.on_batch_loaded, is_batch=True)
    on_update_suspended = _passed_on(StandbyUpdateListener, StandbyUpdateListener.on_update_suspended)
