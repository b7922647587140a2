"""Open scans: runs this node's reads of many entries, limits their number and ends them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from query_service.reads.moments import Admitted
from query_service.replicas.replica import StoreReplica
from query_service.states.lifecycle import StoreState
from query_service.stores.engine import StoreClosed
from query_service.stores.walk import Walk, WalkCancelled
from statehouse.errors import LookupFailure, Reason

T = TypeVar("T")


def gave_up(replica: StoreReplica) -> LookupFailure:
    """Return the failure of a read whose store was closed before it, or is to be closed."""
    return LookupFailure(
        Reason.PARTITION_NOT_OWNED,
        f"this node gave partition {replica.partition} of {replica.spec.name} up during the read",
        {"store": replica.spec.name, "partition": str(replica.partition)},
    )


class OpenScans:
    """Runs walks in its own threads, so that they never hold up the node's other work.

    `max_open` limits the walks, and is also the number of threads: an admitted walk starts immediately, none waits in
    a queue. `timeout_s` is how long a walk may take.
    """

    def __init__(self, *, max_open: int, timeout_s: float) -> None:
        self._max_open, self._timeout_s = max_open, timeout_s
        self._threads = ThreadPoolExecutor(max_open, thread_name_prefix="scan")
        self._walks: set[Walk] = set()

    @property
    def count(self) -> int:
        """How many walks are open."""
        return len(self._walks)

    @property
    def oldest_s(self) -> float:
        """How many seconds the oldest walk has been open; 0 if there is none."""
        now = time.monotonic()
        return max((now - walk.opened_at for walk in tuple(self._walks)), default=0.0)

    async def run(self, replicas: Sequence[StoreReplica], read: Callable[[Walk], T]) -> T:
        """Run `read` in a thread and return its result. Call this on the event loop; cancelling the call ends the walk.

        Args:
            replicas: the replicas that `read` reads. The walk ends when one of them is to be closed.
            read: the read; it gets the walk.

        Raises:
            LookupFailure: OVERLOADED, `max_open` walks are open; SCAN_TOO_LONG; PARTITION_NOT_OWNED, the node gave up
                the partition meanwhile; NODE_SHUTTING_DOWN.

        """
        if len(self._walks) >= self._max_open:
            raise LookupFailure(
                Reason.OVERLOADED,
                f"{self._max_open} scans are open on this node, which is the most",
                {"max_open_scans": str(self._max_open)},
            )
        walk = Walk(self._timeout_s, _is_one_closing(replicas))
        self._walks.add(walk)
        future = self._threads.submit(read, walk)
        # The walk counts as open until its thread has released the store, even if the caller leaves before.
        future.add_done_callback(lambda _: self._walks.discard(walk))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            walk.cancel()
            raise
        except WalkCancelled as error:
            raise LookupFailure(Reason.NODE_SHUTTING_DOWN, "the node stopped during the read") from error
        except StoreClosed as error:
            closing = (each for each in replicas if each.state is StoreState.CLOSING)
            raise gave_up(next(closing, replicas[0])) from error

    async def read(self, admitted: Admitted, read: Callable[[Walk], T]) -> T:
        """Run a read of one replica, of the batch that it was admitted for; raise as `run` does."""

        def of_moment(walk: Walk) -> T:
            with admitted.reading():
                return read(walk)

        return await self.run([admitted.replica], of_moment)

    def close(self) -> None:
        """Cancel all walks. Their threads end soon afterwards."""
        for walk in tuple(self._walks):
            walk.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _is_one_closing(replicas: Sequence[StoreReplica]) -> Callable[[], bool]:
    return lambda: any(replica.state is StoreState.CLOSING for replica in replicas)
