"""The reads of many entries that are under way on this node: how many there may be, and what ends them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from query_service.replica import StoreReplica
from query_service.stores.engine import StoreClosed
from query_service.stores.walk import Walk, WalkCancelled
from statehouse.errors import LookupFailure, Reason

T = TypeVar("T")


class OpenScans:
    """Runs walks in threads of its own, so that no number of them holds up the node's other work.

    `max_open` is the number of threads too: what is admitted runs at once, nothing queues.
    """

    def __init__(self, *, max_open: int, timeout_s: float) -> None:
        self._max_open, self._timeout_s = max_open, timeout_s
        self._threads = ThreadPoolExecutor(max_open, thread_name_prefix="scan")
        self._walks: set[Walk] = set()

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._walks)

    @property
    def oldest_s(self) -> float:
        """For how many seconds the oldest has been open; 0 without any."""
        now = time.monotonic()
        return max((now - walk.opened_at for walk in tuple(self._walks)), default=0.0)

    async def run(self, replicas: Sequence[StoreReplica], read: Callable[[Walk], T]) -> T:
        """Return what `read` finds in replicas; a call that is cancelled ends its walk. Belongs to the event loop.

        Raises:
            LookupFailure: OVERLOADED, as many are open as may be; SCAN_TOO_LONG; PARTITION_NOT_OWNED, the node gave
                the partition up meanwhile; NODE_SHUTTING_DOWN.

        """
        if len(self._walks) >= self._max_open:
            raise LookupFailure(
                Reason.OVERLOADED,
                f"{self._max_open} scans are open on this node, as many as max_open_scans admits",
                {"max_open_scans": str(self._max_open)},
            )
        walk = Walk(self._timeout_s, lambda: any(replica.closing for replica in replicas))
        self._walks.add(walk)
        future = self._threads.submit(read, walk)
        # The walk is open until its thread has let go of the store, whatever becomes of the caller before.
        future.add_done_callback(lambda _: self._walks.discard(walk))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            walk.cancel()
            raise
        except WalkCancelled as error:
            raise LookupFailure(Reason.NODE_SHUTTING_DOWN, "the node stopped during the read") from error
        except StoreClosed as error:
            replica = next((each for each in replicas if each.closing), replicas[0])
            raise LookupFailure(
                Reason.PARTITION_NOT_OWNED,
                f"this node gave partition {replica.partition} of {replica.spec.name} up during the read",
                {"store": replica.spec.name, "partition": str(replica.partition)},
            ) from error

    def close(self) -> None:
        """End all; their threads end soon after."""
        for walk in tuple(self._walks):
            walk.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
