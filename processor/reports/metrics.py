"""The processor's Prometheus metrics; the driver fills them from the counts that its tasks send."""

from __future__ import annotations

from collections import Counter as Totals
from collections import defaultdict

from prometheus_client import Counter, Gauge, Histogram

from processor.ownership.metrics import ControllerMetrics
from processor.reports.progress import BatchProgress
from processor.sink.counts import BYTES, EARLY, RETRIED, SAVED, SKIPPED, Counts
from processor.sink.protocol import WRITES_CAUSE
from processor.states.metrics import StateMetrics
from statehouse.observability.denials import SecurityMetrics
from statehouse.observability.metrics import count_pauses, new_registry

_BATCH_BUCKETS_S = (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)


class ProcessorMetrics:
    """Metrics by query, in their own registry, so that one process can have several.

    Attributes:
        dead_letters: number of records that each query has refused so far, by reason.
        late_rows: number of rows that each query has dropped so far, because the watermark had passed them.
        states: the states of the processor, its queries and its controller.
        controller: what the controller of this process does.

    """

    def __init__(self) -> None:
        self.registry = new_registry()
        self.security = SecurityMetrics(self.registry, "statehouse_processor")
        self.states = StateMetrics(self.registry)
        self.controller = ControllerMetrics(self.registry)
        self.dead_letters: defaultdict[str, Totals[str]] = defaultdict(Totals)
        self.late_rows: Totals[str] = Totals()

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"statehouse_processor_{name}", meaning, ("query", *labels), registry=self.registry)

        def gauge(name: str, meaning: str, *labels: str) -> Gauge:
            return Gauge(f"statehouse_processor_{name}", meaning, ("query", *labels), registry=self.registry)

        def seconds(name: str, meaning: str) -> Histogram:
            name = f"statehouse_processor_{name}_seconds"
            return Histogram(name, meaning, ("query",), buckets=_BATCH_BUCKETS_S, registry=self.registry)

        self._records = counter(
            "changelog_records", "Records committed to a store's changelog, or to an output topic.", "output", "kind"
        )
        saved = "Rows not written, because a later one of the same key replaced them in the record cache."
        early = "Rows that left the record cache before the end of their batch, because it was full."
        self._of_outputs = {
            BYTES: counter("changelog_bytes", "Keys and values of these records.", "output"),
            SAVED: counter("record_cache_saved_records", saved, "output"),
            EARLY: counter("record_cache_early_records", early, "output"),
        }
        self._dead_letters = counter(
            "dead_letters", "Records refused and kept in the dead-letter topic, by reason.", "reason"
        )
        self._skipped = counter(
            "skipped_partitions", "Changelog partitions of replayed batches that had been committed before."
        )
        self._batch_id = gauge("batch_id", "Newest committed micro-batch.")
        self._batch_s = seconds("batch", "Time from a batch's start of writing to its commit record.")
        self.paused = count_pauses("processor", self.registry)
        # From Spark's progress reports.
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
        self._trigger_s = seconds("trigger", "Time of a whole batch.")

    def progress(self, batch: BatchProgress) -> None:
        """Record Spark's progress report of a batch."""
        self._rows.labels(batch.query).inc(batch.input_rows)
        self._rate.labels(batch.query).set(batch.input_rows_per_s)
        for name, topic in batch.topics.items():
            self._offsets.labels(batch.query, name).inc(topic.read)
            self._lag.labels(batch.query, name).set(topic.left)
        self._state_rows.labels(batch.query).set(batch.state_rows)
        self._state_bytes.labels(batch.query).set(batch.state_bytes)
        self._late.labels(batch.query).inc(batch.late_rows)
        self.late_rows[batch.query] += batch.late_rows
        for partition, size in batch.buffers.items():
            self._buffer_records.labels(batch.query, partition).set(size.records)
            self._buffer_bytes.labels(batch.query, partition).set(size.bytes)
        if batch.watermark_ms is not None:
            self._watermark.labels(batch.query).set(batch.watermark_ms / 1000)
        self._trigger_s.labels(batch.query).observe(batch.duration_s)

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
                    self.paused(WRITES_CAUSE)
            else:
                self._dead_letters.labels(query, kind).inc(number)
                self.dead_letters[query][kind] += number
        self._batch_id.labels(query).set(batch_id)
        self._batch_s.labels(query).observe(took_s)
