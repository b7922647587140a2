"""The built-in listener that writes the node's log."""

from __future__ import annotations

import structlog

from query_service.telemetry.events import StorePartition
from statehouse.contract.membership import NodeState, TaskState
from statehouse.contract.topology import AnyTaskId

log = structlog.get_logger(__name__)


class LogListener:
    """Logs state changes, and the start and end of each restore. The progress listener shows the batches."""

    def on_node_state(self, old: NodeState, new: NodeState) -> None:
        """Log a change of the node's state."""
        log.info("state changed", old=old.value, new=new.value)

    def on_task_state(self, task: AnyTaskId, old: TaskState, new: TaskState) -> None:
        """Log a change of a task's state."""
        log.debug("task state changed", task=str(task), old=old.value, new=new.value)

    def on_restore_start(self, where: StorePartition, start_offset: int, end_offset: int, *, full: bool) -> None:
        """Log the start of a restore."""
        log.info(
            "restore started",
            store=where.store,
            partition=where.partition,
            from_offset=start_offset,
            to_offset=end_offset,
            full=full,
        )

    def on_batch_restored(self, where: StorePartition, batch_end_offset: int, records: int) -> None:
        """Log nothing."""

    def on_restore_end(self, where: StorePartition, total: int) -> None:
        """Log the end of a restore."""
        log.info("store restored", store=where.store, partition=where.partition, records=total)

    def on_restore_suspended(self, where: StorePartition, total: int) -> None:
        """Log that a restore stopped before the end of the log."""
        log.info("restore suspended", store=where.store, partition=where.partition, records=total)
