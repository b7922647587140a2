"""The processor's Prometheus metrics; the driver fills them from the counts that its tasks send."""

from __future__ import annotations

from collections import Counter as Totals
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from processor.lifecycle import ApplicationState, ControllerState, QueryState
from processor.listeners import ProcessorListeners
from processor.ownership.figures import OwnershipFigures
from processor.query_progress import BatchProgress
from processor.sink.counts import BYTES, EARLY, RETRIED, SAVED, SKIPPED, Counts
from processor.sink.protocol import WRITES
from processor.states import ProcessorStates
from statehouse.observability.denials import SecurityMetrics
from statehouse.observability.metrics import count_pauses, new_registry
from statehouse.observability.unreadable_records import UnreadableRecords

_PLAN_BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_BATCH_BUCKETS_S = (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)

_FLEET: Mapping[str, tuple[str, Callable[[OwnershipFigures], float]]] = {
    "epoch": ("Epoch of the assignment in force.", lambda figures: figures.epoch),
    "live_nodes": ("Nodes whose sessions last.", lambda figures: figures.live_nodes),
    "damped_nodes": ("Nodes that get nothing new, because they don't stay.", lambda figures: figures.damped_nodes),
    "tasks": ("Tasks that there should be.", lambda figures: figures.tasks),
    "moves": ("Tasks whose next active is being built.", lambda figures: figures.placed.moves),
    "unplaced_tasks": ("Tasks without an active.", lambda figures: figures.placed.unplaced),
    "under_replicated_tasks": ("Tasks with too few copies.", lambda figures: figures.under_replicated),
    "kafka_silence_seconds": ("For how long Kafka is out of contact.", lambda figures: figures.kafka_silence_s),
}


class ProcessorMetrics:
    """Metrics by query, in their own registry, so that one process can have several.

    Attributes:
        dead_letters: number of records that each query has refused so far.
        unreadable: the records of control topics that the ownership controller of this process has skipped.
        ownership: what the acting controller of this process last said of its fleet.

    """

    def __init__(self) -> None:
        self.registry = new_registry()
        self.security = SecurityMetrics(self.registry, "statehouse_processor")
        self.unreadable = UnreadableRecords(self.registry, "statehouse_processor")
        self.dead_letters: Totals[str] = Totals()
        self._records = Counter(
            "statehouse_processor_changelog_records",
            "Records committed to a store's changelog, or to an output topic.",
            ("query", "output", "kind"),
            registry=self.registry,
        )
        self._bytes = Counter(
            "statehouse_processor_changelog_bytes",
            "Keys and values of these records.",
            ("query", "output"),
            registry=self.registry,
        )
        self._saved = Counter(
            "statehouse_processor_record_cache_saved_records",
            "Rows not written, because a later one of the same key replaced them in the record cache.",
            ("query", "output"),
            registry=self.registry,
        )
        self._early = Counter(
            "statehouse_processor_record_cache_early_records",
            "Rows that left the record cache before the end of their batch, because it was full.",
            ("query", "output"),
            registry=self.registry,
        )
        self._dead_letters = Counter(
            "statehouse_processor_dead_letters",
            "Records refused and kept in the dead-letter topic, by reason.",
            ("query", "reason"),
            registry=self.registry,
        )
        self._of_outputs = {BYTES: self._bytes, SAVED: self._saved, EARLY: self._early}
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
            "Attempts to restart a query that died.",
            ("query",),
            registry=self.registry,
        )
        self._rebalances = Counter(
            "statehouse_processor_rebalances",
            "Assignments published that changed tasks.",
            registry=self.registry,
        )
        self._plans = Counter(
            "statehouse_processor_controller_plans",
            "Plans of the ownership controller, by whether an assignment changes.",
            ("outcome",),
            registry=self.registry,
        )
        self._plan_s = Histogram(
            "statehouse_processor_controller_plan_seconds",
            "Time of a plan.",
            buckets=_PLAN_BUCKETS_S,
            registry=self.registry,
        )
        self.ownership = OwnershipCollector()
        self.registry.register(self.ownership)
        self._state_changes = Counter(
            "statehouse_processor_state_changes",
            "Changes of the application's state.",
            ("from", "to"),
            registry=self.registry,
        )
        self._query_state_changes = Counter(
            "statehouse_processor_query_state_changes",
            "Changes of queries' states.",
            ("query", "from", "to"),
            registry=self.registry,
        )
        self._controller_state_changes = Counter(
            "statehouse_processor_controller_state_changes",
            "Changes of the ownership controller's state.",
            ("from", "to"),
            registry=self.registry,
        )
        self.paused = count_pauses("processor", self.registry)
        self._progress = _ProgressMetrics(self.registry)

    def watch(self, states: ProcessorStates, listeners: ProcessorListeners) -> None:
        """Show these states, and what becomes of the listeners' events, at each scrape."""
        self.registry.register(_StateCollector(states, listeners))

    def on_application_state(self, old: ApplicationState, new: ApplicationState) -> None:
        """Count a change of the application's state."""
        self._state_changes.labels(old.value, new.value).inc()

    def on_query_state(self, query: str, old: QueryState, new: QueryState) -> None:
        """Count a change of a query's state."""
        # The series is there before the first restart: a rate doesn't see the value that a series begins with.
        self._restarts.labels(query)
        self._query_state_changes.labels(query, old.value, new.value).inc()

    def on_controller_state(self, old: ControllerState, new: ControllerState) -> None:
        """Count a change of the controller's state."""
        self._controller_state_changes.labels(old.value, new.value).inc()

    def rebalanced(self) -> None:
        """Count an assignment that changed tasks."""
        self._rebalances.inc()

    def planned(self, took_s: float, *, changes: bool) -> None:
        """Count a plan that took so many seconds."""
        self._plans.labels("changed" if changes else "unchanged").inc()
        self._plan_s.observe(took_s)

    def progress(self, batch: BatchProgress) -> None:
        """Record Spark's progress report of a batch."""
        self._progress.take(batch)

    def restarted(self, query: str) -> None:
        """Count a restart of a query that died."""
        self._restarts.labels(query).inc()

    def batch(self, query: str, batch_id: int, counts: Counts, took_s: float) -> None:
        """Record the counts of a committed batch."""
        for (output, kind), number in counts.items():
            if kind in self._of_outputs:
                self._of_outputs[kind].labels(query, output).inc(number)
            elif output:
                self._records.labels(query, output, kind).inc(number)
            elif kind == SKIPPED:
                self._skipped.labels(query).inc(number)
            elif kind == RETRIED:
                for _ in range(number):
                    self.paused(WRITES.cause)
            else:
                self._dead_letters.labels(query, kind).inc(number)
                self.dead_letters[query] += number
        self._batch_id.labels(query).set(batch_id)
        self._batch_s.labels(query).observe(took_s)


class OwnershipCollector(Collector):
    """Shows how the fleet stands by the controller of this process, and nothing while another one acts."""

    def __init__(self) -> None:
        self._figures: OwnershipFigures | None = None

    def take(self, figures: OwnershipFigures | None) -> None:
        """Take what the controller says; None while it doesn't act. Any thread may call it."""
        self._figures = figures

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering the collector does not collect."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read everything once."""
        figures = self._figures
        for name, (meaning, value_in) in _FLEET.items():
            family = _gauge(f"controller_{name}", meaning)
            if figures is not None:
                family.add_metric((), value_in(figures))
            yield family


class _StateCollector(Collector):
    """Reads the states at each scrape."""

    def __init__(self, states: ProcessorStates, listeners: ProcessorListeners) -> None:
        self._states, self._listeners = states, listeners

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering the collector does not collect."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read everything once."""
        application = _gauge("state", "1 for the state that the application is in", "state")
        for state in ApplicationState:
            application.add_metric((state.value,), state is self._states.application)
        yield application
        queries = _gauge("query_state", "1 for the state that the query is in", "query", "state")
        for query, present in self._states.queries.items():
            for query_state in QueryState:
                queries.add_metric((query, query_state.value), query_state is present)
        yield queries
        controller = _gauge("controller_state", "1 for the state that the ownership controller is in", "state")
        for controller_state in ControllerState:
            controller.add_metric((controller_state.value,), controller_state is self._states.controller)
        yield controller
        yield from self._listeners.metrics("processor")


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"statehouse_processor_{name}", meaning, labels=labels)


class _ProgressMetrics:
    """Metrics from Spark's progress reports, by query."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"statehouse_processor_{name}", meaning, ("query", *labels), registry=registry)

        def gauge(name: str, meaning: str, *labels: str) -> Gauge:
            return Gauge(f"statehouse_processor_{name}", meaning, ("query", *labels), registry=registry)

        self._rows = counter("input_rows", "Rows read from all sources.")
        self._offsets = counter("input_offsets", "Offsets that batches advanced by.", "topic")
        self._rate = gauge("input_rows_per_second", "Rows read from all sources since the previous batch.")
        self._lag = gauge("commit_lag_offsets", "Offsets of a source topic beyond the batch when it began.", "topic")
        self._state_rows = gauge("state_rows", "Rows in the query's state.")
        self._state_bytes = gauge("state_bytes", "Memory of the query's state stores.")
        self._late = counter("late_rows", "Rows dropped because the watermark had passed them.")
        self._watermark = gauge("watermark_seconds", "Event time up to which rows are late.")
        self._buffer_records = gauge(
            "suppress_buffer_records", "Records that a suppress buffer holds back.", "partition"
        )
        self._buffer_bytes = gauge("suppress_buffer_bytes", "Keys and rows of these records.", "partition")
        self._trigger_s = Histogram(
            "statehouse_processor_trigger_seconds",
            "Time of a whole batch.",
            ("query",),
            buckets=_BATCH_BUCKETS_S,
            registry=registry,
        )

    def take(self, batch: BatchProgress) -> None:
        """Record a batch."""
        self._rows.labels(batch.query).inc(batch.input_rows)
        self._rate.labels(batch.query).set(batch.input_rows_per_s)
        for name, topic in batch.topics.items():
            self._offsets.labels(batch.query, name).inc(topic.read)
            self._lag.labels(batch.query, name).set(topic.left)
        self._state_rows.labels(batch.query).set(batch.state_rows)
        self._state_bytes.labels(batch.query).set(batch.state_bytes)
        self._late.labels(batch.query).inc(batch.late_rows)
        for partition, size in batch.buffers.items():
            self._buffer_records.labels(batch.query, partition).set(size.records)
            self._buffer_bytes.labels(batch.query, partition).set(size.bytes)
        if batch.watermark_ms is not None:
            self._watermark.labels(batch.query).set(batch.watermark_ms / 1000)
        self._trigger_s.labels(batch.query).observe(batch.duration_s)
