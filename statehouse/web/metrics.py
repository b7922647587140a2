"""What a web process counts: it serves this at /metrics, on its one port."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from prometheus_client import Counter, Gauge, generate_latest

from statehouse.observability.denials import SecurityMetrics
from statehouse.observability.metrics import new_registry
from statehouse.runtime.address_limits import AddressLimit, Bound

ROUTERS: Final = "statehouse_router"
"""Denials are counted as its router's are: who watches that sees both."""


class BodyFailure(StrEnum):
    """Why a request's body did not come to its end."""

    LEFT = "left"
    LATE = "late"
    DISPLACED = "displaced"


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
        self._unfinished = Counter(
            "statehouse_http_unfinished_requests",
            "Requests whose body did not come to its end: the caller left, took too long, or others needed the place",
            ("why",),
            registry=self._registry,
        )
        for why in BodyFailure:
            self._unfinished.labels(why)

    def watch(self, limit: AddressLimit) -> None:
        """Show how many connections are open."""
        self._connections.set_function(lambda: limit.taken)

    def refused(self, bound: Bound) -> None:
        """Count a connection that was closed immediately."""
        self._refused.labels(bound).inc()

    def unfinished(self, why: BodyFailure) -> None:
        """Count a request whose body did not come to its end."""
        self._unfinished.labels(why).inc()

    def text(self) -> bytes:
        """Return all of them, in Prometheus' text form."""
        return generate_latest(self._registry)
