"""What a client is connected by, made at its first use: on the event loop and in the process of that use.

gRPC's objects belong to the loop on which they are made, and to the process. So a client may be made anywhere, when a
module is imported, say, before there is a loop, or in a server's master process before it forks its workers.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

from statehouse.client.key_reads import KeyReads
from statehouse.client.moments import SeenMoments
from statehouse.client.routers import Routers, closed
from statehouse.errors import UsageError
from statehouse.rpc import forks

MakeConnected = Callable[[], tuple[Routers, KeyReads]]


@dataclass(frozen=True, slots=True, eq=False)
class _Connected:
    """Routers and lookups, and where they may be used."""

    router: Routers
    lookups: KeyReads
    loop: asyncio.AbstractEventLoop
    pid: int


class Connections:
    """The routers and lookups of a client and its sessions, and the moments that these have seen.

    `make` makes the first two, on the event loop that runs then.
    If that loop is closed, the next use connects anew, on the loop of that use.
    """

    def __init__(self, target: str, make: MakeConnected) -> None:
        self.target = target
        self._make = make
        self._connected: _Connected | None = None
        self.is_closed = False
        self.moments = SeenMoments()

    @property
    def router(self) -> Routers:
        """The routers.

        Raises:
            LookupFailure: the client was closed.
            UsageError: it can't be used here.

        """
        return self._here().router

    @property
    def lookups(self) -> KeyReads:
        """The reads of single keys; raises as `router`."""
        return self._here().lookups

    def __reduce__(self) -> tuple[object, ...]:
        """Refuse to be pickled, as a part of a session, say.

        Raises:
            TypeError: always.

        """
        raise TypeError("connections can't be pickled: pickle the client, or a session's token")

    async def close(self) -> None:
        """Close the connections; calls under way fail. In a forked process nothing of the other one's is touched.

        Raises:
            UsageError: they belong to another event loop, which isn't closed.

        """
        connected = self._connected
        if connected is not None and connected.pid == os.getpid() and not connected.loop.is_closed():
            if connected.loop is not asyncio.get_running_loop():
                raise _on_another_loop()
            if not self.is_closed:
                self.is_closed = True
                await connected.lookups.close()
                await connected.router.close()
                self._connected = None
        self.is_closed = True

    def _here(self) -> _Connected:
        connected, pid = self._connected, os.getpid()
        if connected is not None and connected.pid != pid and not self.is_closed:
            raise forks.forked(connected.pid)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise UsageError(
                "an AsyncClient works on a running event loop: call it in a coroutine, or use Client"
            ) from None
        if connected is not None and connected.loop is loop:
            return connected
        if self.is_closed:
            raise closed()
        if connected is not None and not connected.loop.is_closed():
            raise _on_another_loop()
        self._connected = connected = _Connected(*self._make(), loop, pid)
        return connected


def _on_another_loop() -> UsageError:
    return UsageError(
        "this AsyncClient is in use on another event loop, which isn't closed: make a client for each loop, or use "
        "Client, which threads may share"
    )
