"""Heartbeats: the node says its state and its replicas, and a process next to it writes them to the members topic."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from query_service.heartbeat_process import ENDED, FLUSH_S, FrameKind, HeartbeatOptions, HeartbeatProcess, frame
from statehouse.contract.membership import Member, encode_member
from statehouse.errors import StatehouseError
from statehouse.runtime.waiting import is_set_within

log = structlog.get_logger(__name__)

_WAITING_MAX_BYTES: Final = 4 * 2**20
_END_S: Final = 2.0


class HeartbeatsEnded(StatehouseError):
    """The process that writes the heartbeats has ended on its own: the fleet would take the node for dead."""


class Heartbeats:
    """Says a heartbeat at every interval, and immediately when something has changed. Lives on the event loop.

    Args:
        process: what writes them.
        options: what and where it writes.
        member: returns the node's heartbeat, None while the node must be silent.
        on_failure: called for each heartbeat that didn't reach Kafka.
        clock: seconds that only grow.

    """

    def __init__(
        self,
        process: HeartbeatProcess,
        options: HeartbeatOptions,
        member: Callable[[], Member | None],
        on_failure: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._process, self._options, self._member = process, options, member
        self._on_failure, self._failed = on_failure, 0
        self._clock, self._arrived_at = clock, clock()
        self._due, self._answered = asyncio.Event(), asyncio.Event()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def failing_s(self) -> float | None:
        """Seconds since a heartbeat last reached Kafka, or since the start, if the newest one failed; else None."""
        return self._clock() - self._arrived_at if self._failed else None

    async def start(self) -> None:
        """Tell the process what and where to write."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._process.socket)
        self._say(frame(FrameKind.BEGIN, self._options.to_json().encode()))

    def due(self) -> None:
        """Write the next heartbeat immediately."""
        self._due.set()

    async def write(self, within_s: float) -> None:
        """Write the next heartbeat immediately, and wait for so many seconds at most until Kafka has it."""
        self._answered.clear()
        self._due.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._answered.wait()

    def stops(self, seconds: float, left: str) -> None:
        """Say that the node stops, may take so many seconds, and what it has left to do. Beyond that it is killed."""
        self._say(frame(FrameKind.STOPS, json.dumps({"seconds": seconds, "left": left}).encode()))

    async def write_forever(self) -> None:
        """Write until cancelled. Call this once all members that existed at the start are known."""
        while True:
            self._due.clear()
            member = self._member()
            self._say(
                frame(FrameKind.SILENT) if member is None else frame(FrameKind.HEARTBEAT, encode_member(member)[1])
            )
            await is_set_within(self._due, self._options.interval_s)

    async def hear_forever(self) -> None:
        """Count the heartbeats that fail, until cancelled.

        Raises:
            HeartbeatsEnded: the process has ended on its own.

        """
        while (line := await self._heard()) is not None:
            self._note(line)
        raise HeartbeatsEnded("the process that writes the heartbeats has ended: the log may say why")

    async def end(self, *, leaves: bool) -> None:
        """Write no more heartbeats. A node that `leaves` writes a tombstone."""
        self._say(frame(FrameKind.END, b"leaves" if leaves else b""))
        try:
            async with asyncio.timeout(FLUSH_S + _END_S):
                while await self._heard() not in {ENDED, None}:
                    pass
        except TimeoutError:
            log.warning("the last heartbeats may not have been written")

    async def close(self) -> None:
        """End the process."""
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None
        await asyncio.to_thread(self._process.close)

    def _say(self, said: bytes) -> None:
        if self._writer is None:
            return
        if self._writer.transport.get_write_buffer_size() + len(said) > _WAITING_MAX_BYTES:
            self._note("the process that writes them takes none")
            return
        self._writer.write(said)

    async def _heard(self) -> str | None:
        """Return the next line of the process, None if it has ended."""
        if self._reader is None:
            return None
        try:
            line = await self._reader.readline()
        except ConnectionError:
            return None
        return line.decode(errors="replace").rstrip("\n") if line else None

    def _note(self, error: str) -> None:
        """Count a heartbeat that failed, and log the first one and when they arrive again; "" is no error."""
        self._answered.set()
        if not error:
            if self._failed:
                log.info("heartbeats reach Kafka again", failed=self._failed)
            self._failed, self._arrived_at = 0, self._clock()
            return
        self._failed += 1
        self._on_failure()
        if self._failed == 1:
            log.warning("heartbeat not written: a node that is silent for long loses its tasks", error=error)
