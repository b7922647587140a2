"""Keeps and swaps the current routing table; lookups wait here for a newer one."""

from __future__ import annotations

import asyncio
import time

from router.fleet.table import RoutingTable
from statehouse.contract.epochs import is_newer
from statehouse.errors import LookupFailure, Reason
from statehouse.runtime.waiting import is_set_within


class CurrentTable:
    """Keeps the newest table. Lives on the event loop; readers take `current()` once per decision."""

    def __init__(self) -> None:
        self.table: RoutingTable | None = None
        """The newest table, None before the first."""
        self._changed = asyncio.Event()
        self._least_epoch = 0
        self.made_at: float | None = None
        """When the newest table was made, monotonic seconds; None before the first."""

    def current(self) -> RoutingTable:
        """Return the newest table.

        Raises:
            LookupFailure: ROUTING_NOT_READY, there is none yet.

        """
        if self.table is None:
            raise LookupFailure(
                Reason.ROUTING_NOT_READY,
                "this router has not read a complete assignment yet: it needs Kafka, and the processor to have "
                "started once",
            )
        return self.table

    def publish(self, table: RoutingTable) -> bool:
        """Swap the table in; return False for an older epoch, which never replaces a newer one."""
        if is_newer(self._least_epoch, table.epoch):
            return False
        self._least_epoch = table.epoch
        routes_alike = self.table is not None and table.routes_like(self.table)
        self.table, self.made_at = table, time.monotonic()
        if not routes_alike:
            self._changed.set()
            self._changed = asyncio.Event()
        return True

    def forget_epoch(self) -> None:
        """Take the next table whatever its epoch: the epochs of another log began anew."""
        self._least_epoch = 0

    async def changed_since(self, table: RoutingTable) -> RoutingTable:
        """Wait for a table that routes differently from this one; return it."""
        while (current := self.current()).routes_like(table):
            await self._changed.wait()
        return current

    async def wait_for_epoch(self, epoch: int, timeout_s: float) -> bool:
        """Wait until the table has this epoch or a newer one; False if that takes longer than `timeout_s`."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + timeout_s
        while self.table is None or is_newer(epoch, self.table.epoch):
            if not await is_set_within(self._changed, give_up_at - loop.time()):
                return False
        return True
