"""Cleanup: which folders of the state directory no task needs any more. No I/O, no clock.

A node keeps the state of a task that it no longer holds for a while, and reports it. If the task comes back, the node
restores only what changed meanwhile (Kafka Streams' `state.cleanup.delay.ms`).
"""

from __future__ import annotations

from collections.abc import Collection

from statehouse.contract.topology import AnyTaskId


class IdleFolders:
    """Knows how long each folder has been idle.

    The time counts from when this process first saw the folder idle, on a monotonic clock. So a folder that an earlier
    process left is kept for a whole delay more. The wall clock of a machine that was just started can't be trusted with
    the folder's age, and removing the folder too early costs a restore.
    """

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._idle_since_s: dict[AnyTaskId, float] = {}

    def due(self, on_disk: Collection[AnyTaskId], in_use: Collection[AnyTaskId], now_s: float) -> list[AnyTaskId]:
        """Return the folders that have been idle for the delay.

        Args:
            on_disk: the tasks and global stores that have a folder.
            in_use: those whose folder is not idle.
            now_s: monotonic clock, in seconds.

        """
        self._idle_since_s = {each: self._idle_since_s.get(each, now_s) for each in on_disk if each not in in_use}
        return [each for each, since_s in self._idle_since_s.items() if now_s - since_s >= self._delay_s]
