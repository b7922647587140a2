"""Feeds of tails: bring records that the data plane has read into a replica's tail, while somebody watches.

The data plane keeps the latest records of each changelog that it follows, as many as a tail has. Reports tell of
positions only, as each record would cost time here. While a replica is watched, each report has the records asked for
that the tail lacks, and one answer is waited for at a time. So what comes is bounded, however much is written: of a
burst there is what the data plane still has, and watches read the rest from the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import structlog

from query_service.dataplane.engine import KeptRecords
from query_service.replicas.tail import Tail
from query_service.replicas.wakeup import Wakeup
from statehouse.errors import StatehouseError
from statehouse.runtime.background import BackgroundWork
from statehouse.runtime.clocks import process_clock

log = structlog.get_logger(__name__)

# A record takes the event loop some 2 us, and lookups wait meanwhile.
_RECORDS_A_TURN: Final = 1_000


class TailFeed:
    """Feeds the tail of one replica. Lives on the event loop.

    `_at_once_from` is the offset from which on rule 3 of `tail` holds up to the position. `_fed_to` is a position whose
    records the tail has, as far as they were kept; None while nobody watches.
    """

    def __init__(
        self, tail: Tail, advanced: Wakeup, latest: Callable[[int, int], Awaitable[KeptRecords]], position: int
    ) -> None:
        """`advanced`: is poked after each report. `latest`: as `DataPlaneEngine` has it."""
        self._tail, self._advanced, self._latest = tail, advanced, latest
        self._position = self._at_once_from = position
        self._fed_to: int | None = None
        self._watches = 0
        self._turn = asyncio.Lock()
        self._work, self._is_at_work = BackgroundWork(), False

    def reached(self, position: int, *, at_once: bool) -> None:
        """Note what was reported. `at_once`: whether rule 3 holds for the records before this position."""
        self._position = position
        if not at_once:
            self._at_once_from = position
        if not self._watches:
            self._advanced.poke()
        elif not self._is_at_work:
            self._is_at_work = True
            self._work.start(self._keep_up(), "feed of a tail")

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Feed the tail for as long as the context lasts. It begins once the tail has all that is kept."""
        self._watches += 1
        try:
            await self._feed()
            yield
        finally:
            self._watches -= 1
            if not self._watches:
                self._fed_to = None
                self._tail.restart(self._position)

    async def _keep_up(self) -> None:
        """Feed the tail until it has the newest position, and then wake who waits: a wake-up delays the next one."""
        try:
            while self._watches and self._fed_to != self._position:
                await self._feed()
                self._advanced.poke()
        finally:
            self._is_at_work = False
            self._advanced.poke()

    async def _feed(self) -> None:
        """Return when the tail has the present position, or nobody watches."""
        goal = self._position
        async with self._turn:
            while self._watches and (self._fed_to is None or self._fed_to < goal):
                await self._extend()

    async def _extend(self) -> None:
        before, position = self._fed_to, self._position
        try:
            found = await self._latest(0 if before is None else self._tail.end, _RECORDS_A_TURN)
        except StatehouseError as error:
            log.warning("the latest records can't be had; watches read the changelog", error=str(error))
            found = KeptRecords(position, position, ())
        if not self._watches or self._fed_to != before:
            return  # those who watched have left meanwhile, and the tail was dropped
        if found.start != self._tail.end:
            self._tail.restart(found.start)
        self._tail.extend(found.records, found.end, process_clock().now_ms(), at_once_from=self._at_once_from)
        self._fed_to = position if len(found.records) < _RECORDS_A_TURN else found.end
