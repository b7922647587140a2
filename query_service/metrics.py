"""What a node counts, in Prometheus' form. Labels are bounded: stores, roles and the enums of this package."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from query_service.faults import Fault, Outcome


class NodeMetrics:
    """The node's own registry and what is in it; docs/metrics.md has the list."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._faults = Counter(
            "statehouse_node_faults",
            "What was found to be wrong with a disk, a log or the environment, and what became of it",
            ("fault", "outcome"),
            registry=self.registry,
        )
        self._full_restores = Counter(
            "statehouse_node_full_restores",
            "Stores' partitions restored from the start of their changelog, by why",
            ("store", "fault"),
            registry=self.registry,
        )

    def fault(self, fault: Fault, outcome: Outcome) -> None:
        """Count a fault."""
        self._faults.labels(fault.value, outcome.value).inc()

    def full_restore(self, store: str, fault: Fault) -> None:
        """Count a restore from the start of the log, and its fault unless there just was no state."""
        self._full_restores.labels(store, fault.value).inc()
        if fault is not Fault.NO_STATE:
            self.fault(fault, Outcome.STORE_WIPED)
