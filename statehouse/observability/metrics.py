"""Metrics: registries and the port they are served on, the same in every process."""

from __future__ import annotations

import threading
from wsgiref.simple_server import WSGIServer

import prometheus_client
from prometheus_client import CollectorRegistry

from statehouse.errors import ConfigurationError


def new_registry() -> CollectorRegistry:
    """Return an empty registry, of a process or of one of several in it. Series tell no time of their creation."""
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
    return CollectorRegistry()


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
