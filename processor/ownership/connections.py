"""Connections of the acting controller to active nodes: whether their addresses refuse further ones.

There is one connection to each, over which nothing is sent. It ends with the node's process; a node also closes it
after a while, as nothing comes. Then the address is tried again, often at first. What that means, `refusals` decides.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, Final, Protocol

from processor.ownership.machine.refusals import NodeAddress, Seen, Sighting
from statehouse.runtime.background import as_error
from statehouse.runtime.backoff import Backoff, BackoffPolicy

_QUICK_S: Final = 0.05
_QUICK_MAX: Final = 20
"""After so many refusals in a row the address is tried less often, as the controller didn't act on them."""
_STEADY_S: Final = 0.25
_LEISURE: Final = BackoffPolicy("connect_to_node", first_s=0.2, longest_s=1.0)
_BRIEF_S: Final = 1.0
_BRIEF_MAX: Final = 5
"""If so many connections in a row end within this time, they are turned away: they must not be made again and again.

Fewer may be those that the kernel took for a process that ends.
"""
_CONNECTS_WITHIN_S: Final = 1.0
_STOPS_WITHIN_S: Final = 5.0
_CHUNK: Final = 65_536

Place = tuple[str, int]
"""Host and port."""


class OpenConnection(Protocol):
    """A connection that was accepted. `place`: of the other end, which is an address even if a name was given."""

    place: Place

    async def ended(self) -> None:
        """Wait until the other end closes it, or it breaks."""

    def close(self) -> None:
        """Close our end."""


Dial = Callable[[Place], Awaitable[OpenConnection]]
"""Connects. Raises ConnectionRefusedError; ConnectionResetError if it was broken off before it was known whose it is;
another OSError or a TimeoutError if nobody knows who listens there.
"""


async def watch(node: NodeAddress, dial: Dial, note: Callable[[Sighting], None], clock: Callable[[], float]) -> None:
    """Hold a connection to a node, and tell of each attempt to make one, until cancelled."""
    named = place = (node.host, node.port)
    leisure, failures, briefs, was_open = Backoff(_LEISURE), 0, 0, False
    while True:
        pause_s: float | None = None
        try:
            connection = await dial(place)
        except (ConnectionRefusedError, ConnectionResetError) as error:
            # A process that ends breaks off what has connected meanwhile, and then it refuses.
            is_refused = isinstance(error, ConnectionRefusedError)
            note(Sighting(node, Seen.REFUSED if is_refused else Seen.NOTHING, clock()))
            failures += 1
            if was_open:
                pause_s = _QUICK_S if failures < _QUICK_MAX else _STEADY_S
        except (OSError, TimeoutError):
            note(Sighting(node, Seen.NOTHING, clock()))
        else:
            opened_at = clock()
            leisure.succeeded()
            # A name may stand for another address by now: only what has accepted connections can refuse them.
            place, failures, was_open = connection.place, 0, True
            try:
                note(Sighting(node, Seen.ACCEPTED, opened_at))
                await connection.ended()
            finally:
                connection.close()
            briefs = briefs + 1 if clock() - opened_at < _BRIEF_S else 0
            if briefs:
                await asyncio.sleep(_QUICK_S if briefs < _BRIEF_MAX else _BRIEF_S)
            continue
        if pause_s is None:
            place, was_open, pause_s = named, False, leisure.failed()
        await asyncio.sleep(pause_s)


class Watches:
    """The watches of several nodes. Lives on an event loop; `start` begins a task there."""

    def __init__(
        self,
        dial: Dial,
        note: Callable[[Sighting], None],
        clock: Callable[[], float],
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        """Watch nobody yet. `note` hears of each attempt to connect."""
        self._dial, self._note, self._clock, self._start = dial, note, clock, start
        self._watched: dict[NodeAddress, asyncio.Task[None]] = {}

    def follow(self, nodes: Collection[NodeAddress]) -> list[asyncio.Task[None]]:
        """Watch these nodes and no others. Returns the tasks that end by that."""
        left = [self._watched.pop(node) for node in self._watched.keys() - set(nodes)]
        for task in left:
            task.cancel()
        for node in sorted(set(nodes) - self._watched.keys()):
            self._watched[node] = self._start(watch(node, self._dial, self._note, self._clock))
        return left


class NodeConnections:
    """A thread that holds the connections.

    `note` hears on it of each attempt to make one; `on_broken` once, if the thread fails.
    """

    def __init__(self, name: str, note: Callable[[Sighting], None], on_broken: Callable[[Exception], None]) -> None:
        """Prepare; `start` begins. `name` is for the thread."""
        self._on_broken = on_broken
        self._loop = asyncio.new_event_loop()
        self._watches = Watches(_dialled, note, time.monotonic, self._started)
        self._nodes: frozenset[NodeAddress] = frozenset()
        self._thread = threading.Thread(target=self._run, name=f"ownership-connections-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def follow(self, nodes: frozenset[NodeAddress]) -> None:
        """Hold connections to these nodes and no others."""
        if nodes != self._nodes:
            self._nodes = nodes
            self._loop.call_soon_threadsafe(self._watches.follow, nodes)

    def stop(self) -> None:
        """Close all connections, and end the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_STOPS_WITHIN_S)

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            if left := self._watches.follow(()):
                self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _started(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_broken(as_error(error))


class _TcpConnection:
    """A TCP connection. What comes over it is thrown away: a server may speak first."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, place: Place) -> None:
        self._reader, self._writer, self.place = reader, writer, place

    async def ended(self) -> None:
        try:
            while await self._reader.read(_CHUNK):
                pass
        except OSError:  # reset
            pass

    def close(self) -> None:
        self._writer.transport.abort()


async def _dialled(place: Place) -> OpenConnection:
    async with asyncio.timeout(_CONNECTS_WITHIN_S):
        reader, writer = await asyncio.open_connection(*place)
    peer = writer.get_extra_info("peername")
    if peer is None:
        writer.transport.abort()
        raise ConnectionResetError("the other end has broken the connection off")
    host, port, *_ = peer
    return _TcpConnection(reader, writer, (host, port))
