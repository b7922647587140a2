"""The proxy in front of a gRPC server: a process of its own, in Go, that speaks HTTP/2 (its source is in `proxy/`).

Most of a lookup's cost is grpcio's work for the call; the proxy needs a fraction of that. It decides nothing: it passes
lookups to this process over a link, and everything else as gRPC over a Unix socket. When this process ends, in whatever
way, the proxy ends, too; and this process does not go on without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from statehouse.errors import ConfigurationError, StatehouseError
from statehouse.rpc.link import FromProxy, Link, LinkHandler, ToProxy, first_frame
from statehouse.rpc.listening import cant_listen
from statehouse.settings import ServerSettings

log = structlog.get_logger(__name__)

PROGRAM: Final = "statehouse-proxy"
AUTO: Final = "auto"
NONE: Final = "none"
# A busy machine starts it in tens of milliseconds.
_START_S: Final = 10.0
_END_S: Final = 1.0


class ProxyEnded(StatehouseError):
    """The proxy has ended by itself: nobody can reach this process any more."""


def find_program(setting: str) -> str | None:
    """Return the proxy's path by the setting; None if there is to be no proxy.

    Raises:
        ConfigurationError: the setting names a program that does not exist.

    """
    if setting == NONE:
        return None
    found = shutil.which(PROGRAM if setting == AUTO else setting)
    if found is None and setting != AUTO:
        raise ConfigurationError(f"there is no program {setting}: set --proxy to {PROGRAM}'s path, {AUTO} or {NONE}")
    return found


def proxy_for(
    settings: ServerSettings, bind: str, on_broken: Callable[[Exception], None], *, share_port: bool = False
) -> Proxy | None:
    """Start the proxy that the settings ask for, if any.

    Raises:
        ConfigurationError: it can't be started, or can't listen there.

    """
    program = find_program(settings.proxy)
    log.info("calls are served", by=program or "grpcio")
    if program is None:
        return None
    of_address = settings.max_connections_per_address or settings.max_connections
    bounds = ProxyLimits(settings.max_message_bytes, settings.max_connections, of_address)
    return Proxy(program, bind, on_broken, bounds, share_port=share_port)


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """What a proxy takes: the largest message, and how many connections, of all callers and of one address."""

    max_message_bytes: int
    max_connections: int = 10_000
    max_connections_per_address: int = 10_000


class Proxy:
    """One proxy, from its start to its end. Lives on the event loop.

    Bind the gRPC server behind it to `target`; the proxy listens on `port`. `on_broken(error)` is called if the proxy
    ends by itself.
    """

    def __init__(
        self,
        program: str,
        bind: str,
        on_broken: Callable[[Exception], None],
        bounds: ProxyLimits,
        *,
        share_port: bool,
    ) -> None:
        """Start the proxy. It binds the port, but accepts no calls yet.

        Raises:
            ConfigurationError: it can't be started, or can't listen there.

        """
        self._on_broken = on_broken
        self._is_ending = False
        self._lost = asyncio.Event()
        # In the abstract namespace (unix(7)): the address goes when the process ends, in whatever way.
        self.target = f"unix-abstract:statehouse-{os.getpid()}-{secrets.token_hex(8)}"
        options = [
            f"-listen={bind}",
            f"-server={self.target}",
            f"-max-message-bytes={bounds.max_message_bytes}",
            f"-max-connections={bounds.max_connections}",
            f"-max-connections-per-address={bounds.max_connections_per_address}",
        ]
        if share_port:
            options.append("-share-port")
        self._socket, its_socket = socket.socketpair()
        try:
            with its_socket:
                # It needs nothing of our environment, in which there may be secrets.
                self._process = subprocess.Popen([program, *options], stdin=its_socket.fileno(), env={})
        except OSError as error:
            self._socket.close()
            raise ConfigurationError(f"{program} can't be run: {error}") from error
        try:
            self._socket.settimeout(_START_S)
            kind, self.port, content = first_frame(self._socket.recv)
        except (OSError, EOFError) as error:
            self._end()
            raise ConfigurationError(f"{program} does not say where it listens: is it {PROGRAM}?") from error
        if kind is FromProxy.CANT_LISTEN:
            self._end()
            raise cant_listen(bind, content.decode(errors="replace"))

    @property
    def pid(self) -> int:
        """The proxy's process id."""
        return self._process.pid

    async def serve(self, handlers: Mapping[str, LinkHandler]) -> None:
        """Let the proxy accept calls. Start the server behind it first. `handlers`: as for `Link`."""
        self._socket.setblocking(False)
        _, self.link = await asyncio.get_running_loop().create_unix_connection(
            lambda: Link(handlers, self._on_lost), sock=self._socket
        )
        self.link.send(ToProxy.SERVE)

    async def stop(self, grace_s: float) -> None:
        """Let the proxy refuse new calls, and end after those under way, or after `grace_s` seconds."""
        self._is_ending = True
        self.link.send(ToProxy.STOP)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._lost.wait()
        self.link.close()
        await asyncio.to_thread(self._end)

    def _on_lost(self) -> None:
        self._lost.set()
        if not self._is_ending:
            self._on_broken(ProxyEnded(f"{PROGRAM} has ended by itself"))

    def _end(self) -> None:
        """End the process, if it has not ended."""
        self._socket.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
