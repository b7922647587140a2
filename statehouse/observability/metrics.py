"""Metrics: registries and the port they are served on, the same in every process."""

from __future__ import annotations

import threading
from wsgiref.simple_server import WSGIServer

import prometheus_client
from prometheus_client import CollectorRegistry, Counter

from statehouse.backoff import OnPause
from statehouse.errors import ConfigurationError


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


class MetricsServer:
    """Serves a registry at `/metrics`, on a thread of its own."""

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        """Bind; port 0 takes a free one.

        Raises:
            ConfigurationError: the port can't be bound.

        """
        try:
            served: tuple[WSGIServer, threading.Thread] = prometheus_client.start_http_server(port, host, registry)
        except OSError as error:
            raise ConfigurationError(
                f"can't serve metrics on {host}:{port}: {error}; choose another --metrics-port"
            ) from error
        self._server, self._thread = served
        self.port = int(self._server.server_port)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
