"""Calls the listeners about each store's replica, in order, whichever threads the events come from."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from query_service.replicas.replica import StoreReplica
from query_service.telemetry.events import StorePartition, SuspendReason
from query_service.telemetry.listeners import Listeners


@dataclass(slots=True)
class _Progress:
    is_standby: bool
    records: int = 0


class ReplicaEvents:
    """Reports each replica from its restore to its end. A restored active has no events to report."""

    def __init__(self, listeners: Listeners) -> None:
        self._listeners = listeners
        self._progress: dict[StoreReplica, _Progress] = {}
        self._lock = threading.Lock()

    def restoring(self, replica: StoreReplica) -> None:
        """Report the start of a restore. Call this before anything is read."""
        with self._lock:
            self._progress[replica] = _Progress(is_standby=False)
            self._listeners.on_restore_start(
                _where(replica), replica.restored_from, replica.restored_to, full=replica.restored_in_full
            )

    def batch(self, replica: StoreReplica, records: int) -> None:
        """Report an applied batch. The replication threads call this."""
        with self._lock:
            progress = self._progress.get(replica)
            if progress is None:
                return
            progress.records += records
            if progress.is_standby:
                self._listeners.on_batch_loaded(_where(replica), replica.position, records, replica.end_offset)
            else:
                self._listeners.on_batch_restored(_where(replica), replica.position, records)

    def restored(self, replica: StoreReplica, *, as_standby: bool) -> None:
        """Report the end of a restore. From now on a standby's updates are reported."""
        with self._lock:
            progress = self._progress.pop(replica)
            self._listeners.on_restore_end(_where(replica), progress.records)
            if as_standby:
                self._begin_standby(replica)

    def role_changed(self, replica: StoreReplica, *, as_standby: bool) -> None:
        """Report that a replica's role has changed, if it has been restored."""
        with self._lock:
            progress = self._progress.get(replica)
            if progress is None and as_standby:
                self._begin_standby(replica)
            elif progress is not None and progress.is_standby and not as_standby:
                self._end_standby(replica, SuspendReason.PROMOTED)

    def ended(self, replica: StoreReplica) -> None:
        """Report that no thread reads for a replica any more: its task was closed, or failed."""
        with self._lock:
            progress = self._progress.get(replica)
            if progress is None:
                return
            if progress.is_standby:
                self._end_standby(replica, SuspendReason.MIGRATED)
            else:
                del self._progress[replica]
                self._listeners.on_restore_suspended(_where(replica), progress.records)

    def _begin_standby(self, replica: StoreReplica) -> None:
        self._progress[replica] = _Progress(is_standby=True)
        self._listeners.on_update_start(_where(replica), replica.position)

    def _end_standby(self, replica: StoreReplica, reason: SuspendReason) -> None:
        del self._progress[replica]
        self._listeners.on_update_suspended(_where(replica), replica.position, replica.end_offset, reason)


def _where(replica: StoreReplica) -> StorePartition:
    return StorePartition(replica.spec.name, replica.spec.changelog_topic, replica.partition)
