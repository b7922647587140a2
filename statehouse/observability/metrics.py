"""Metrics: registries and the port they are served on, the same in every process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import prometheus_client
import structlog
from prometheus_client import CollectorRegistry, Counter

from statehouse.errors import ConfigurationError, LookupFailure, Reason
from statehouse.observability.probes import NO_PROBES, WhyNot, answer
from statehouse.runtime.backoff import OnPause
from statehouse.runtime.request_target import in_origin_form
from statehouse.security.rights import HEALTH_CHECK, METRICS
from statehouse.security.server_tls import RenewedTls, server_context, shown_over
from statehouse.security.settings_gate import gate_for
from statehouse.security.shown import Shown
from statehouse.settings import ProcessSettings, TlsSettings

if TYPE_CHECKING:
    from statehouse.security.gate import Gate

log = structlog.get_logger(__name__)

_MOST_AT_ONCE: Final = 16
"""Connections. For a further one the oldest is closed that has not asked yet: idle ones must not keep out a probe."""
_TAKES_AT_MOST_S: Final = 10.0
"""A scrape that takes longer is cut off."""
METRICS_PATH: Final = "/metrics"
_PATHS: Final = (METRICS_PATH, f"{METRICS_PATH}/", "/")
_CERTIFICATE: Final = "statehouse.certificate"

WsgiApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def new_registry() -> CollectorRegistry:
    """Return an empty registry; a process may have several. Its metrics have no `_created` series."""
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    return CollectorRegistry()


def count_pauses(component: str, registry: CollectorRegistry) -> OnPause:
    """Return a function that counts the pauses before another try, by cause."""
    pauses = Counter(
        f"statehouse_{component}_backoffs",
        "Pauses before another try, by what had failed",
        ("cause",),
        registry=registry,
    )
    return lambda cause: pauses.labels(cause).inc()


def serve_metrics(
    registry: CollectorRegistry,
    settings: ProcessSettings,
    on_denied: Callable[[Reason], None],
    on_unusable: Callable[[], None] = lambda: None,
    probes: Mapping[str, WhyNot] = NO_PROBES,
) -> MetricsServer | None:
    """Serve a registry as a process' settings have it; None if they name no port.

    `on_denied` is called for each scrape that the rules deny. `on_unusable`: for each change of their files that can't
    be used, in a process that has no other gate which sees it. Both are called on threads of the server. `probes`: by
    their paths.

    Raises:
        ConfigurationError: as `MetricsServer`.

    """
    if settings.metrics_port is None:
        return None
    gate = gate_for(settings, on_denied, on_unusable)
    return MetricsServer(registry, settings.bind_host, settings.metrics_port, settings, gate, probes)


class MetricsServer:
    """Serves a registry at `/metrics`, and probes, on threads of its own; with TLS and to whom the rules allow it."""

    def __init__(
        self,
        registry: CollectorRegistry,
        host: str,
        port: int,
        security: TlsSettings,
        gate: Gate | None,
        probes: Mapping[str, WhyNot] = NO_PROBES,
    ) -> None:
        """Bind; port 0 takes a free one. `gate`: decides who may scrape; without one, everybody.

        Raises:
            ConfigurationError: the port can't be bound, or a file of `security` can't be used.

        """
        application = _with_probes(prometheus_client.make_wsgi_app(registry), probes)
        if gate is not None:
            application = _guarded(application, gate, probes.keys())
        tls = None if security.tls_certificate is None else RenewedTls(security, server_context)
        try:
            family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
            self._server = _Server(family, address, tls)
        except OSError as error:
            raise ConfigurationError(
                f"can't serve metrics on {host}:{port}: {error}; choose another --metrics-port"
            ) from error
        self._server.set_app(application)
        self.port = int(self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 4 * _MOST_AT_ONCE
    """Connections that come at the same time; beyond it they come again a second later, which is late for a probe."""

    def __init__(self, family: socket.AddressFamily, address: Any, tls: RenewedTls[ssl.SSLContext] | None) -> None:  # noqa: ANN401 - as the socket module has it
        self.address_family = family
        self._tls = tls
        self._lock = threading.Lock()
        self._has_asked: dict[socket.socket, bool] = {}
        """The connections that are open, the oldest first, and whether their request has come."""
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Take a connection; the handshake is made by the thread that answers, so that it can't hold up others."""
        taken, address = super().get_request()
        taken.settimeout(_TAKES_AT_MOST_S)
        if self._tls is None:
            return taken, address
        self._tls.renew()
        return self._tls.made.wrap_socket(taken, server_side=True, do_handshake_on_connect=False), address

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as wsgiref has it
        """Answer on a thread, if there is a place."""
        if not self._takes(request):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # there is no thread for it
            self._leaves(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as above
        """Answer, within the time: who sends a byte now and then must not keep a place."""
        late = threading.Timer(_TAKES_AT_MOST_S, _cut, (request,))
        late.daemon = True
        late.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            late.cancel()
            self._leaves(request)

    def asks(self, connection: socket.socket) -> None:
        """Note that a connection's request has come: it keeps its place."""
        with self._lock:
            if connection in self._has_asked:
                self._has_asked[connection] = True

    def _takes(self, connection: socket.socket) -> bool:
        """Give a connection a place, if need be the oldest's that has not asked; return whether it has one."""
        with self._lock:
            if len(self._has_asked) >= _MOST_AT_ONCE:
                idle = next((each for each, has_asked in self._has_asked.items() if not has_asked), None)
                if idle is None:
                    return False
                del self._has_asked[idle]
                _cut(idle)
            self._has_asked[connection] = False
            return True

    def _leaves(self, connection: socket.socket) -> None:
        with self._lock:
            self._has_asked.pop(connection, None)

    def handle_error(self, *_: object) -> None:
        """Log a defect; a caller without TLS or with a wrong certificate, or one who has left, is none."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            log.error("defect in the metrics server", exc_info=error)


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended on its own
        # Not the TLS socket's own way, which takes away what the thread that reads from it uses.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Handler(WSGIRequestHandler):
    server: _Server

    def parse_request(self) -> bool:
        """Read the request's head; its target may be a whole URL."""
        is_read = super().parse_request()
        if is_read:
            _, self.path = in_origin_form(self.path)
        return is_read

    def get_environ(self) -> dict[str, Any]:
        """Add what the caller has shown; the request has come."""
        self.server.asks(self.connection)
        environ = super().get_environ()
        if isinstance(self.connection, ssl.SSLSocket):
            environ[_CERTIFICATE] = shown_over(self.connection)
        return environ

    def address_string(self) -> str:
        """Return the caller's address as it is: looking its name up may take long."""
        return str(self.client_address[0])

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as wsgiref calls it
        """Log nothing."""


def _with_probes(application: WsgiApplication, probes: Mapping[str, WhyNot]) -> WsgiApplication:
    """Return the application with probes at paths of their own."""

    def with_probes(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        probe = probes.get(path)
        if probe is not None:
            found = answer(probe, start_response)
        elif path in _PATHS:
            found = application(environ, start_response)
        else:  # a probe of a path that isn't there must not succeed
            start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
            found = [f"there are: {', '.join([METRICS_PATH, *probes])}\n".encode()]
        return () if environ.get("REQUEST_METHOD") == "HEAD" else found

    return with_probes


def _guarded(application: WsgiApplication, gate: Gate, probes: Collection[str]) -> WsgiApplication:
    """Return the application behind a gate, which is used by one thread at a time. `probes`: their paths."""
    lock = threading.Lock()

    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        authorization = environ.get("HTTP_AUTHORIZATION", "")
        shown = Shown(environ.get(_CERTIFICATE, b""), authorization, environ.get("REMOTE_ADDR", ""))
        try:
            with lock:
                asyncio.run(gate.reload_if_changed())
                gate.admit(HEALTH_CHECK if environ.get("PATH_INFO") in probes else METRICS, None, shown)
        except LookupFailure as failure:
            is_unknown = failure.reason is Reason.UNAUTHENTICATED
            headers = [("Content-Type", "text/plain; charset=utf-8")]
            if is_unknown:
                headers.append(("WWW-Authenticate", "Bearer"))
            start_response("401 Unauthorized" if is_unknown else "403 Forbidden", headers)
            return [f"{failure}\n".encode()]
        return application(environ, start_response)

    return guarded
