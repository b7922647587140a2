"""Metrics that are read at each scrape: the routing table, what is known of nodes, and for how long Kafka is silent."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from router.choice.candidates import Severity, Suspicion
from router.fleet.current_table import CurrentTable

_PREFIX = "statehouse_router"


class TableCollector(Collector):
    """Collects how well a router knows its fleet.

    `suspects`: nodes that are asked last, by instance id. `kafka_silence_s()`: seconds since assignment and heartbeats
    were last known to be read to their ends; None before the first time. Both are safe to read from any thread.
    """

    def __init__(
        self, tables: CurrentTable, suspects: Mapping[str, Suspicion], kafka_silence_s: Callable[[], float | None]
    ) -> None:
        self._tables, self._suspects, self._kafka_silence_s = tables, suspects, kafka_silence_s

    def show(
        self, tables: CurrentTable, suspects: Mapping[str, Suspicion], kafka_silence_s: Callable[[], float | None]
    ) -> None:
        """Collect of another fleet from now on: of another version of the application."""
        self._tables, self._suspects, self._kafka_silence_s = tables, suspects, kafka_silence_s

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering the collector does not collect."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read everything once."""
        table, made_at = self._tables.table, self._tables.made_at
        yield _gauge(
            "table_epoch", "Epoch of the routing table, 0 before the first", 0 if table is None else table.epoch
        )
        age_s = None if made_at is None else max(0.0, time.monotonic() - made_at)
        yield _gauge("table_age_seconds", "Time since the routing table was last made anew", age_s)
        yield _gauge("nodes", "Nodes in the routing table", 0 if table is None else len(table.nodes))
        suspected = GaugeMetricFamily(
            f"{_PREFIX}_suspected_nodes", "Nodes that are asked last for now", labels=("state",)
        )
        counts = Counter(each.severity for each in tuple(self._suspects.values()))
        for severity in Severity:
            suspected.add_metric((severity.name.lower(),), counts[severity])
        yield suspected
        yield _gauge(
            "kafka_silence_seconds", "Time since assignment and heartbeats were last read", self._kafka_silence_s()
        )


def _gauge(name: str, meaning: str, value: float | None) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"{_PREFIX}_{name}", meaning)
    if value is not None:
        family.add_metric((), value)
    return family
