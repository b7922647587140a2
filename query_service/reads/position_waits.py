"""Waits for positions: if the caller has seen more than this replica has, the read waits until the replica has it too.

So it does for the batch that it is to be of.

Nothing polls: replication wakes the waiting reads. After a wait everything is checked again, as for a new request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from query_service.replicas.replica import StoreReplica, TaskReplica
from statehouse.contract.membership import TaskState
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.deadline import Deadline, RequestTimes
from statehouse.runtime.held_bytes import HasSize, HeldBytes

T = TypeVar("T")


class ReplicaBehind(LookupFailure):
    """The replica may answer once `is_reached` holds. `wait_ms` bounds the wait for it; None: the read's deadline."""

    def __init__(
        self,
        failure: LookupFailure,
        task: TaskReplica,
        replica: StoreReplica,
        is_reached: Callable[[], bool],
        wait_ms: int | None = None,
    ) -> None:
        """Take over the failure that there is without a wait."""
        super().__init__(failure.reason, failure.message, failure.metadata)
        self.replica, self.wait_ms = replica, wait_ms
        self._task, self._role, self._is_reached = task, task.role, is_reached

    def is_over(self) -> bool:
        """Whether the replica may answer now, or its task's state or role has changed."""
        return self._is_reached() or self._task.state is not TaskState.RUNNING or self._task.role is not self._role


class PositionNotReached(ReplicaBehind):
    """The replica may answer once it has reached a position of the bound."""

    def __init__(self, message: str, task: TaskReplica, replica: StoreReplica, position: int, wanted: int) -> None:
        """Describe what the replica lacks: it is at `position`, the bound asks for `wanted`."""
        details = {
            "task": str(task.task),
            "store": replica.spec.name,
            "partition": str(replica.partition),
            "position": str(position),
            "wanted": str(wanted),
        }
        failure = LookupFailure(Reason.POSITION_NOT_REACHED, message, details)
        super().__init__(failure, task, replica, lambda: replica.position >= wanted)


class PositionWaits:
    """The waiting requests, at most `max_waits` at once, and bounded in what is kept of them. For the event loop only.

    `times`: how long requests may take.
    """

    def __init__(self, times: RequestTimes, *, max_waits: int) -> None:
        self._max_waits, self.times = max_waits, times
        self._open: set[asyncio.Timeout] = set()
        self._requests = HeldBytes("reads that wait for a position on this node")
        self._stopping = False

    @property
    def count(self) -> int:
        """How many requests wait."""
        return len(self._open)

    async def patiently(
        self, request: HasSize, attempt: Callable[[], Awaitable[T]], behind: ReplicaBehind, deadline: Deadline
    ) -> T:
        """Repeat an attempt for a request that failed with `behind`, each time after a wait, and return its result.

        Raises:
            LookupFailure: POSITION_NOT_REACHED or MOMENT_NOT_REACHED, the deadline is reached; OVERLOADED, too many
                requests wait, or too large ones; NODE_SHUTTING_DOWN; or another failure of the attempt.

        """
        if behind.wait_ms is not None:
            deadline = Deadline(min(deadline.at, Deadline.after(behind.wait_ms / 1000).at))
        with self._requests.hold(request.ByteSize()):
            while True:
                is_last = not await self._changed(behind, deadline)
                try:
                    return await attempt()
                except ReplicaBehind as again:
                    if is_last:
                        raise
                    behind = again

    def stop(self) -> None:
        """End all waits, and refuse new ones."""
        self._stopping = True
        for wait in self._open:
            wait.reschedule(asyncio.get_running_loop().time())

    async def _changed(self, behind: ReplicaBehind, deadline: Deadline) -> bool:
        """Wait until another attempt is worth it; False if the deadline comes first."""
        self._refuse_when_stopping()
        if len(self._open) >= self._max_waits:
            raise LookupFailure(
                Reason.OVERLOADED,
                f"{self._max_waits} requests wait for a position on this node, which is the most",
                {"max_position_waits": str(self._max_waits)},
            )
        with behind.replica.advanced.waiter(behind.is_over) as over:
            try:
                async with asyncio.timeout_at(deadline.at) as wait:
                    self._open.add(wait)
                    if not behind.is_over():
                        await over.wait()
            except TimeoutError:
                self._refuse_when_stopping()
            finally:
                self._open.discard(wait)
        return behind.is_over()

    def _refuse_when_stopping(self) -> None:
        if self._stopping:
            raise LookupFailure(Reason.NODE_SHUTTING_DOWN, "the node stops, and has not reached the position")
