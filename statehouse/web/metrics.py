"""What a web process counts: it serves this at /metrics, on its one port."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, generate_latest

from statehouse.observability.denials import SecurityMetrics
from statehouse.observability.metrics import new_registry
from statehouse.web.connection_limit import Bound, ConnectionLimit

ROUTERS: Final = "statehouse_router"
"""Denials are counted as its router's are: who watches that sees both."""


class WebMetrics:
    """The metrics of a web process.

    Attributes:
        security: denials, and files of the rules.

    """

    def __init__(self) -> None:
        self._registry = new_registry()
        self.security = SecurityMetrics(self._registry, ROUTERS)
        self._connections = Gauge("statehouse_http_connections", "Connections that are open", registry=self._registry)
        self._refused = Counter(
            "statehouse_http_refused_connections",
            "Connections that were closed at once",
            ("bound",),
            registry=self._registry,
        )
        for bound in Bound:
            self._refused.labels(bound)

    def watch(self, limit: ConnectionLimit) -> None:
        """Show how many connections are open."""
        self._connections.set_function(lambda: limit.taken)

    def refused(self, bound: Bound) -> None:
        """Count a connection that was closed at once."""
        self._refused.labels(bound).inc()

    def text(self) -> bytes:
        """Return all of them, in Prometheus' text form."""
        return generate_latest(self._registry)
