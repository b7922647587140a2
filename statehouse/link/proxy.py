"""The proxy in front of a gRPC server: a process of its own, in Go, that speaks HTTP/2 (its source is in `dataplane/`).

Most of a lookup's cost is grpcio's work for the call; the proxy needs a fraction of that. It passes
lookups to this process over a link, and everything else as gRPC over a Unix socket. A router's proxy sends plain
lookups to nodes on its own, by a snapshot of what the router has decided. When this process ends, in whatever
way, the proxy ends, too; and this process does not go on without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog

from statehouse.errors import ConfigurationError, StatehouseError
from statehouse.link.link import VERSION, BeginningCheck, FromProxy, Link, LinkHandler, ToProxy, first_frame
from statehouse.link.socket_folder import SocketFolder
from statehouse.runtime.listening import cant_listen
from statehouse.settings import ServerSettings

log = structlog.get_logger(__name__)

PROGRAM: Final = "statehouse-proxy"
AUTO: Final = "auto"
NONE: Final = "none"
# Where wheels of a platform have it; neither a pure wheel nor a checkout has one there.
_PACKAGED: Final = Path(__file__).with_name(PROGRAM)
_LACKING: Final = (
    f"this package lacks {PROGRAM}, and there is none on the PATH: install the wheel of this platform, or build it by "
    f"`make tools` in a checkout; --proxy {NONE} says that none is wanted"
)
# A busy machine starts it in tens of milliseconds.
_START_S: Final = 10.0
_END_S: Final = 1.0


class ProxyEnded(StatehouseError):
    """The proxy has ended on its own: nobody can reach this process any more."""


def find_program(setting: str) -> str | None:
    """Return the proxy's path by the setting; None if there is to be no proxy.

    The package's own comes first: it is of the package's version.

    Raises:
        ConfigurationError: the setting names a program that does not exist.

    """
    if setting == NONE:
        return None
    if setting == AUTO and os.access(_PACKAGED, os.X_OK):
        return str(_PACKAGED)
    found = shutil.which(PROGRAM if setting == AUTO else setting)
    if found is None and setting != AUTO:
        raise ConfigurationError(f"there is no program {setting}: set --proxy to {PROGRAM}'s path, {AUTO} or {NONE}")
    return found


def proxy_for(
    settings: ServerSettings,
    bind: str,
    on_broken: Callable[[Exception], None],
    *,
    share_port: bool = False,
    is_traced: bool = False,
    server_name: str = "",
) -> Proxy | None:
    """Start the proxy that the settings ask for, if any.

    `is_traced`: this process makes spans. `server_name`: that the certificates of the servers it calls must have;
    empty: the host that is called.

    Raises:
        ConfigurationError: it can't be started, can't listen there, or can't use the files for TLS.

    """
    program = find_program(settings.proxy)
    if program is None and settings.proxy == AUTO:
        log.warning("calls are served by grpcio, which takes more processor time", remedy=_LACKING)
    else:
        log.info("calls are served", by=program or "grpcio")
    if program is None:
        return None
    bounds = ProxyLimits(
        settings.max_message_bytes,
        settings.max_connections,
        settings.max_connections_per_address or 0,
        settings.max_held_bytes,
    )
    tls = _tls_of(settings, server_name)
    return Proxy(program, bind, on_broken, bounds, share_port=share_port, is_traced=is_traced, tls=tls)


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """What a proxy takes.

    The largest message; how many connections, of all callers and of one address (0: as many as are left for others);
    the bytes of large requests under way.
    """

    max_message_bytes: int
    max_connections: int
    max_connections_per_address: int
    max_held_bytes: int

    def options(self) -> list[str]:
        """Return them for the program."""
        return [
            f"-max-message-bytes={self.max_message_bytes}",
            f"-max-connections={self.max_connections}",
            f"-max-connections-per-address={self.max_connections_per_address}",
            f"-max-request-bytes-held={self.max_held_bytes}",
        ]


@dataclass(frozen=True, slots=True)
class ProxyTls:
    """How a proxy encrypts, as the settings have it. It reads the files, and reads them anew when they change."""

    certificate: Path
    key: Path
    ca: Path | None
    callers: str
    max_connection_age_ms: int
    server_name: str = ""

    def options(self) -> list[str]:
        """Return it for the program."""
        return [
            f"-tls-certificate={self.certificate}",
            f"-tls-key={self.key}",
            *([] if self.ca is None else [f"-tls-ca={self.ca}"]),
            f"-tls-callers={self.callers}",
            f"-tls-server-name={self.server_name}",
            f"-max-connection-age={self.max_connection_age_ms}ms",
        ]


def _tls_of(settings: ServerSettings, server_name: str) -> ProxyTls | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return ProxyTls(
        settings.tls_certificate.expanduser(),
        settings.tls_key.expanduser(),
        None if settings.tls_ca is None else settings.tls_ca.expanduser(),
        settings.callers_certificates,
        settings.max_connection_age_ms,
        server_name,
    )


class DataPlane(Protocol):
    """The part of a node that gives orders about stores."""

    def connect(self, link: Link) -> None:
        """Send orders over a link."""

    def take_answer(self, number: int, content: bytes) -> None:
        """Take what came of an order."""

    def take_report(self, content: bytes) -> None:
        """Take a report about a store."""

    def take_sums(self, content: bytes) -> None:
        """Take what was answered from stores."""

    def lost(self) -> None:
        """Learn that the program is gone."""


class Proxy:
    """One proxy, from its start to its end. Lives on the event loop.

    Bind the gRPC server behind it to `target`; the proxy listens on `port`. `on_broken(error)` is called if the proxy
    ends on its own.
    """

    def __init__(
        self,
        program: str,
        bind: str,
        on_broken: Callable[[Exception], None],
        bounds: ProxyLimits,
        *,
        share_port: bool,
        is_traced: bool = False,
        tls: ProxyTls | None = None,
    ) -> None:
        """Start the proxy. It binds the port, but accepts no calls yet.

        `is_traced`: this process makes spans, and so the proxy passes on what callers say of their traces.

        Raises:
            ConfigurationError: it can't be started, can't listen there, or can't use the files for TLS.

        """
        self._on_broken = on_broken
        self._is_ending = self._is_serving = False
        self._plane: DataPlane | None = None
        self._lost = asyncio.Event()
        self._folder = SocketFolder()
        self.target = f"unix:{self._folder.path}"
        options = [f"-listen={bind}", f"-server={self.target}", *bounds.options()]
        if tls is not None:
            options += tls.options()
        if share_port:
            options.append("-share-port")
        if is_traced:
            options.append("-traced")
        self._socket, its_socket = socket.socketpair()
        try:
            with its_socket:
                # It needs nothing of our environment, in which there may be secrets.
                self._process = subprocess.Popen([program, *options], stdin=its_socket.fileno(), env={})
        except OSError as error:
            self._socket.close()
            self._folder.close()
            raise ConfigurationError(f"{program} can't be run: {error}") from error
        try:
            self._socket.settimeout(_START_S)
            kind, self.port, content = first_frame(self._socket.recv)
        except (OSError, EOFError, ValueError) as error:
            self._end()
            raise ConfigurationError(
                f"{program} does not say where it listens: is it {PROGRAM}, built with this package? Build it again"
            ) from error
        if kind is not FromProxy.LISTENING or content != VERSION:
            self._end()
            raise _cant_serve(program, bind, kind, content)

    @property
    def sums(self) -> bytes:
        """What the proxy last said of itself: serialized ProxySums, empty before the first. Safe from any thread."""
        return self.link.proxy_sums if self._is_serving else b""

    @property
    def pid(self) -> int:
        """The proxy's process id."""
        return self._process.pid

    async def serve(self, handlers: Mapping[str, LinkHandler], check_beginning: BeginningCheck) -> None:
        """Let the proxy accept calls. Start the server behind it first. The arguments are as for `Link`."""
        self._socket.setblocking(False)
        _, self.link = await asyncio.get_running_loop().create_unix_connection(
            lambda: Link(handlers, check_beginning, self._on_lost), sock=self._socket
        )
        self.link.send(ToProxy.SERVE, 0, VERSION)
        self._is_serving = True

    def connect(self, plane: DataPlane) -> None:
        """Have orders about stores go to the proxy, and what comes of them back. After `serve`."""
        self.link.on_order_ended, self.link.on_report = plane.take_answer, plane.take_report
        self.link.on_serving_sums = plane.take_sums
        self._plane = plane
        plane.connect(self.link)

    async def stop(self, grace_s: float) -> None:
        """Let the proxy refuse new calls, and end those under way, or wait for them for `grace_s` seconds.

        It ends with them, or if it holds stores, with `close`.
        """
        self._is_ending = True
        self.link.send(ToProxy.STOP)
        ended = self._lost if self._plane is None else self.link.calls_ended
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await ended.wait()
        if self._plane is None:
            await self.close()

    async def close(self) -> None:
        """End the proxy. What it holds is to be closed before. A second call does nothing."""
        self.link.close()
        await asyncio.to_thread(self._end)

    def _on_lost(self) -> None:
        self._lost.set()
        if self._plane is not None:
            self._plane.lost()
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
        self._folder.close()


def _cant_serve(program: str, bind: str, kind: FromProxy, content: bytes) -> ConfigurationError:
    """Return the error for a proxy that has not begun to listen, or is another's."""
    if kind is FromProxy.CANT_LISTEN:
        return cant_listen(bind, content.decode(errors="replace"))
    if kind is FromProxy.CANT_ENCRYPT:
        return ConfigurationError(f"TLS files can't be used: {content.decode(errors='replace')}")
    return ConfigurationError(f"{program} is of another version than this package: build it again")
