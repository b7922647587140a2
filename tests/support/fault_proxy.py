"""A TCP proxy on the loopback address that treats its connections as bad networks do.

    client ── upstream ──► proxy ── upstream ──► target
           ◄─ downstream ──       ◄─ downstream ──

It works on bytes that TCP has delivered, so it can't lose a packet. With `stall` bytes arrive late, as after a time in
which a network lost everything; with `blackhole` they never arrive. The names are Toxiproxy's.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial
from typing import Any, Final, Self

from statehouse.local.ports import LOOPBACK, free_port

# Per connection and direction this many chunks wait at most; then the sender's own TCP makes it wait.
_CHUNK_BYTES: Final = 64 * 1024
_CHUNKS_MAX: Final = 32
_CONNECTIONS_MAX: Final = 256
_CONTROL_TIMEOUT_S: Final = 10.0
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


class Direction(Enum):
    """Which way bytes go."""

    UPSTREAM = auto()
    DOWNSTREAM = auto()


BOTH: Final = (Direction.UPSTREAM, Direction.DOWNSTREAM)


@dataclass(frozen=True, slots=True)
class _Fate:
    """What becomes of the chunks of one direction."""

    is_stalled: bool = False
    is_lost: bool = False
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Chunk:
    data: bytes  # empty: the sender has no more
    arrived_at: float


class _Connection:
    """A client's connection and the one to the target that belongs to it."""

    def __init__(self, client: asyncio.StreamWriter, target: asyncio.StreamWriter) -> None:
        self.writers = (client, target)
        self.has_lost_bytes = False

    async def reset(self) -> None:
        for writer in self.writers:
            await _reset(writer)


class FaultProxy:
    """A proxy to one address; a context manager. Controls hold once they return, for old and new connections alike.

    `port` is the proxy's own, chosen if 0. `source`: the address that it connects from, if not the usual one.
    Controls raise TimeoutError if the proxy's thread doesn't answer.
    """

    def __init__(
        self, target_port: int, *, target_host: str = LOOPBACK, port: int = 0, source: str | None = None
    ) -> None:
        self._target = (target_host, target_port)
        self._source = None if source is None else (source, 0)
        self.port = port or free_port()
        self._fates = dict.fromkeys(BOTH, _Fate())
        self._changed = asyncio.Event()
        self._resets_new = False
        self.accepted = 0
        """How many connections there have been."""
        self._listener: socket.socket | None = None
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"fault-proxy-{self.port}", daemon=True)

    @property
    def address(self) -> str:
        """What clients connect to, host:port."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call(self._close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CONTROL_TIMEOUT_S)
            self._loop.close()

    def heal(self) -> None:
        """Pass everything on, what was stalled included. Connections that have lost bytes are reset."""
        self._call(self._heal())

    def stall(self, *directions: Direction) -> None:
        """Accept bytes (a bounded number) and deliver none until healed."""
        self._call(self._decide(directions, is_stalled=True))

    def blackhole(self, *directions: Direction) -> None:
        """Accept bytes and drop them; neither end learns of it."""
        self._call(self._decide(directions, is_lost=True))

    def delay(self, delay_s: float, *directions: Direction) -> None:
        """Deliver each chunk this much later, in order."""
        self._call(self._decide(directions, delay_s=delay_s))

    def refuse(self) -> None:
        """Listen no longer: new connections are refused, open ones live on."""
        self._call(self._refuse())

    def reset(self, *, new: bool = False) -> None:
        """Reset (RST) all open connections; with `new`, later ones too until healed."""
        self._call(self._reset_all(new=new))

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_CONTROL_TIMEOUT_S)

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server((LOOPBACK, self.port), backlog=_CONNECTIONS_MAX)
            self._listener.setblocking(False)
            self._loop.add_reader(self._listener, self._accept, self._listener)

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    async def _decide(self, directions: tuple[Direction, ...], **changes: Any) -> None:
        assert directions, "say which direction"
        for direction in directions:
            self._fates[direction] = replace(self._fates[direction], **changes)
        self._tell()

    async def _heal(self) -> None:
        for connection in [each for each in self._connections if each.has_lost_bytes]:
            await connection.reset()
        self._fates = dict.fromkeys(BOTH, _Fate())
        self._resets_new = False
        self._tell()
        await self._listen()

    async def _reset_all(self, *, new: bool) -> None:
        self._resets_new = new
        for connection in list(self._connections):
            await connection.reset()

    async def _close(self) -> None:
        await self._refuse()
        for task in self._tasks:
            task.cancel()
        # Each closes its sockets before it ends.
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _tell(self) -> None:
        """Wake every chunk that waits."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _accept(self, listener: socket.socket) -> None:
        try:
            plug, _ = listener.accept()
        except OSError:
            return  # the client has left already
        plug.setblocking(False)
        self.accepted += 1
        task = self._loop.create_task(self._serve(plug))
        self._tasks.add(task)
        task.add_done_callback(partial(self._served, plug))

    def _served(self, plug: socket.socket, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        plug.close()

    async def _serve(self, plug: socket.socket) -> None:
        if self._resets_new or len(self._connections) >= _CONNECTIONS_MAX:
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            return
        reader, writer = await asyncio.open_connection(sock=plug, limit=_CHUNK_BYTES)
        try:
            await self._connect(reader, writer)
        except* (OSError, asyncio.CancelledError):
            pass  # one end is gone, or the proxy closes
        finally:
            await _reset(writer)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target_reader, target_writer = await asyncio.open_connection(
            *self._target, limit=_CHUNK_BYTES, local_addr=self._source
        )
        connection = _Connection(writer, target_writer)
        self._connections.add(connection)
        try:
            # A reset ends both ways; a half-close only its own.
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._carry(connection, Direction.UPSTREAM, reader, target_writer))
                ways.create_task(self._carry(connection, Direction.DOWNSTREAM, target_reader, writer))
            writer.close()
            await writer.wait_closed()
        finally:
            self._connections.remove(connection)
            await _reset(target_writer)

    async def _carry(
        self, connection: _Connection, way: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        chunks: asyncio.Queue[_Chunk] = asyncio.Queue(_CHUNKS_MAX)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._take(reader, chunks))
            group.create_task(self._deliver(connection, way, chunks, writer))

    async def _take(self, reader: asyncio.StreamReader, chunks: asyncio.Queue[_Chunk]) -> None:
        while True:
            data = await reader.read(_CHUNK_BYTES)
            await chunks.put(_Chunk(data, self._loop.time()))
            if not data:
                return

    async def _deliver(
        self, connection: _Connection, way: Direction, chunks: asyncio.Queue[_Chunk], writer: asyncio.StreamWriter
    ) -> None:
        while True:
            chunk = await chunks.get()
            fate = await self._due(way, chunk)
            if fate.is_lost:
                connection.has_lost_bytes = True
            elif chunk.data:
                writer.write(chunk.data)
                await writer.drain()
            elif writer.can_write_eof():
                writer.write_eof()
            if not chunk.data:
                return

    async def _due(self, way: Direction, chunk: _Chunk) -> _Fate:
        """Wait until a chunk's time has come; return what is to become of it."""
        while True:
            fate = self._fates[way]
            wait_s = None if fate.is_stalled else chunk.arrived_at + fate.delay_s - self._loop.time()
            if wait_s is not None and wait_s <= 0:
                return fate
            changed = self._changed
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await changed.wait()


async def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST: what is under way is thrown away, and the other end learns of it."""
    if not writer.transport.is_closing():
        plug: socket.socket = writer.get_extra_info("socket")
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()
