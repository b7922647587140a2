"""What the router counts. Labels are few: stores and reasons are bounded by the assignment and by the contract."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from statehouse.observability.metrics import new_registry
from statehouse.topology import Role

_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class RouterMetrics:
    """The router's own registry and what is in it.

    statehouse_router_lookups_total{store, outcome, role}: outcome is OK or a reason; role is what the routing
        table says the answering node is, empty where none answered.
    statehouse_router_attempts_total{reason}: calls to nodes, OK or the reason they failed with; of a watch, the reason
        that made it go on elsewhere.
    statehouse_router_lookup_duration_seconds: from receipt to answer.
    statehouse_router_open_watches: how many callers watch.
    """

    def __init__(self) -> None:
        self.registry = new_registry()
        self._lookups = Counter(
            "statehouse_router_lookups",
            "Lookups by outcome and by the answering node's role",
            ("store", "outcome", "role"),
            registry=self.registry,
        )
        self._attempts = Counter(
            "statehouse_router_attempts", "Calls to nodes by their outcome", ("reason",), registry=self.registry
        )
        self._duration = Histogram(
            "statehouse_router_lookup_duration_seconds",
            "Time from receipt to answer",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.open_watches = Gauge("statehouse_router_open_watches", "Watches that are open", registry=self.registry)
        # Finding a labelled child takes longer than counting in it.
        self._lookup_children: dict[tuple[str, str, Role | None], Counter] = {}
        self._attempt_children: dict[str, Counter] = {}

    def lookup(self, store: str, outcome: str, role: Role | None, seconds: float | None = None) -> None:
        """Count a lookup. `store` must be one of the assignment's, or empty."""
        labels = (store, outcome, role)
        child = self._lookup_children.get(labels)
        if child is None:
            child = self._lookups.labels(store, outcome, "" if role is None else role.name)
            self._lookup_children[labels] = child
        child.inc()
        if seconds is not None:
            self._duration.observe(seconds)

    def attempt(self, reason: str) -> None:
        """Count a call to a node."""
        child = self._attempt_children.get(reason)
        if child is None:
            child = self._attempt_children[reason] = self._attempts.labels(reason)
        child.inc()
