"""The built-in listener that writes the node's log."""

from __future__ import annotations

import structlog

from query_service.lifecycle import NodeState, TaskState
from query_service.listeners import StorePartition
from statehouse.topology import HeldId

log = structlog.get_logger(__name__)


class LogListener:
    """Writes state changes, and where restores begin and end. Batches are for the progress listener."""

    def on_node_state(self, old: NodeState, new: NodeState) -> None:
        """Take a change of the node's state."""
        log.info("state changed", old=old.value, new=new.value)

    def on_task_state(self, task: HeldId, old: TaskState, new: TaskState) -> None:
        """Take a change of a task's state."""
        log.debug("task state changed", task=str(task), old=old.value, new=new.value)

    def on_restore_start(self, where: StorePartition, start_offset: int, end_offset: int, *, full: bool) -> None:
        """Take a beginning."""
        log.info(
            "restore started",
            store=where.store,
            partition=where.partition,
            from_offset=start_offset,
            to_offset=end_offset,
            full=full,
        )

    def on_batch_restored(self, where: StorePartition, batch_end_offset: int, records: int) -> None:
        """Take a batch."""

    def on_restore_end(self, where: StorePartition, total: int) -> None:
        """Take the end."""
        log.info("store restored", store=where.store, partition=where.partition, records=total)

    def on_restore_suspended(self, where: StorePartition, total: int) -> None:
        """Take an end before the end of the log."""
        log.info("restore suspended", store=where.store, partition=where.partition, records=total)
