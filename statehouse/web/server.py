"""The server of the web process: one port, HTTP/1.1, with TLS if the settings have it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import structlog
import uvicorn
from sse_starlette.sse import AppStatus
from starlette.routing import BaseRoute

from statehouse.observability import logs
from statehouse.runtime.address_limits import AddressLimit
from statehouse.runtime.listening import cant_listen
from statehouse.runtime.stop_deadline import StopDeadline, end_threads
from statehouse.runtime.waiting import StopSignals, first_of, stop_signals
from statehouse.security.server_tls import RenewedTls, server_context
from statehouse.settings import TlsSettings, WebSettings
from statehouse.web.app import build_app
from statehouse.web.connection_limit import ServerSocket
from statehouse.web.connections import HEADERS_BYTES_MAX, Connection
from statehouse.web.gateway import Gateway
from statehouse.web.metrics import WebMetrics

log = structlog.get_logger(__name__)

IDLE_S: Final = 60
"""After this time without a request a connection is closed."""
STOP_GRACE_S: Final = 5
"""How long requests under way may go on when the server stops."""
_CLOSE_S: Final = 5
"""How long the rest may take. A router waits 15 s for its web process."""

ExtraRoutes = Callable[[Gateway], Sequence[BaseRoute]]
"""Makes an application's own paths."""
OnListen = Callable[[str], None]
"""Hears the address, host:port, once requests are answered; and an empty one when the server stops."""


class _Server(uvicorn.Server):
    """A server that `serve` stops: `run` handles the signals. `listens` is set once it answers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        self.listens.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


async def serve(
    settings: WebSettings,
    stop: asyncio.Event,
    extra: ExtraRoutes = lambda _gateway: (),
    on_listen: OnListen = lambda _address: None,
) -> None:
    """Serve until `stop` is set.

    Raises:
        ConfigurationError: the port is taken, or a file of the settings can't be used.

    """
    tls = None if settings.tls_certificate is None else RenewedTls(settings, _context)
    gateway = Gateway(settings)
    with _listening(settings, gateway.metrics) as listener:
        config = uvicorn.Config(
            build_app(gateway, extra(gateway)),
            http=partial(Connection, listener=listener),  # type: ignore[arg-type] # it makes one
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="error",  # a client that sends rubbish must not fill the log
            access_log=False,
            server_header=False,
            proxy_headers=False,  # a client that sends them says who it wants to be
            h11_max_incomplete_event_size=HEADERS_BYTES_MAX,
            timeout_keep_alive=IDLE_S,
            timeout_graceful_shutdown=STOP_GRACE_S,
            ssl_context_factory=None if tls is None else lambda _config, _default: _renewed(tls),
        )
        server = _Server(config)
        running = asyncio.ensure_future(server.serve([listener]))
        try:
            await first_of(running, server.listens)
            if running.done():
                running.result()
            address = f"{settings.bind_host}:{listener.getsockname()[1]}"
            log.info("http listens", address=address, router=settings.router)
            on_listen(address)
            await first_of(running, stop)
        finally:
            log.info("http stops")
            on_listen("")
            server.should_exit = AppStatus.should_exit = True  # the second ends streams of events
            bound = StopDeadline(STOP_GRACE_S + _CLOSE_S, lambda: "requests, and connections to the fleet")
            try:
                await running
            finally:
                bound.close()
                AppStatus.should_exit = False


def run(
    settings: WebSettings,
    extra: ExtraRoutes = lambda _gateway: (),
    *,
    on_listen: OnListen = lambda _address: None,
    also_stopped_by: Callable[[StopSignals], None] = lambda _stop: None,
) -> None:
    """Run a web process until SIGTERM or SIGINT, or until what is given to `also_stopped_by` asks for the end.

    Raises:
        ConfigurationError: as `serve`.

    """
    logs.configure(settings.log_level)

    async def main() -> None:
        stop = stop_signals()
        also_stopped_by(stop)
        try:
            await serve(settings, stop.asked, extra, on_listen)
        finally:
            await end_threads()

    asyncio.run(main())


def _listening(settings: WebSettings, metrics: WebMetrics) -> ServerSocket:
    host, port = settings.bind_host, settings.http_port or 0
    limit = AddressLimit(settings.max_connections, settings.max_connections_per_address)
    metrics.watch(limit)
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        return ServerSocket(address, family, limit, metrics.refused)
    except OSError as error:
        raise cant_listen(f"{host}:{port}", error, "--http-port") from error


def _context(settings: TlsSettings) -> ssl.SSLContext:
    context = server_context(settings)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _renewed(tls: RenewedTls[ssl.SSLContext]) -> ssl.SSLContext:
    """Return the context that connections begin with; each goes on with the newest files."""
    first = tls.made

    def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        tls.renew()
        if tls.made is not first:
            connection.context = tls.made

    first.sni_callback = choose
    return first
