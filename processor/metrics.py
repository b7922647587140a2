"""The processor's metrics, in Prometheus' form; filled by the driver from the counts its tasks send."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from processor.sink.tasks import SKIPPED, Counts
from statehouse.observability.metrics import new_registry

_BATCH_BUCKETS_S = (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)


class ProcessorMetrics:
    """Counters by query; a registry of its own, so that several can live in one process."""

    def __init__(self) -> None:
        self.registry = new_registry()
        self._records = Counter(
            "statehouse_processor_changelog_records",
            "Records committed to a store's changelog, or to an output topic.",
            ("query", "output", "kind"),
            registry=self.registry,
        )
        self._dead_letters = Counter(
            "statehouse_processor_dead_letters",
            "Records refused and kept in the dead-letter topic, by reason.",
            ("query", "reason"),
            registry=self.registry,
        )
        self._skipped = Counter(
            "statehouse_processor_skipped_partitions",
            "Changelog partitions of replayed batches that had been committed before.",
            ("query",),
            registry=self.registry,
        )
        self._batch_id = Gauge(
            "statehouse_processor_batch_id", "Newest committed micro-batch.", ("query",), registry=self.registry
        )
        self._batch_s = Histogram(
            "statehouse_processor_batch_seconds",
            "Time from a batch's start of writing to its commit record.",
            ("query",),
            buckets=_BATCH_BUCKETS_S,
            registry=self.registry,
        )
        self._restarts = Counter(
            "statehouse_processor_query_restarts",
            "Starts of a query after it had died.",
            ("query",),
            registry=self.registry,
        )

    def restarted(self, query: str) -> None:
        """Count another start of a query that had died."""
        self._restarts.labels(query).inc()

    def batch(self, query: str, batch_id: int, counts: Counts, took_s: float) -> None:
        """Take a committed batch's counts."""
        for (output, kind), number in counts.items():
            if output:
                self._records.labels(query, output, kind).inc(number)
            elif kind == SKIPPED:
                self._skipped.labels(query).inc(number)
            else:
                self._dead_letters.labels(query, kind).inc(number)
        self._batch_id.labels(query).set(batch_id)
        self._batch_s.labels(query).observe(took_s)
