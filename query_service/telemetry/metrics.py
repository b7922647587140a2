"""Prometheus counters that a node increments as events happen. `collector.py` has the values read at each scrape.

Labels are bounded: the stores of the assignment, roles, and the enums of this package. docs/metrics.md has the list.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from enum import StrEnum
from functools import cache

from prometheus_client import Counter

from query_service.states.faults import Fault, FaultOutcome
from query_service.stores.base import Applied, ChangelogRecord
from query_service.telemetry.windowed import WindowedMaximum
from statehouse.contract.membership import NodeState, TaskState
from statehouse.contract.topology import AnyTaskId, Role
from statehouse.observability.denials import SecurityMetrics
from statehouse.observability.metrics import count_pauses, new_registry

READ_BUCKETS_S = (0.000_05, 0.000_2, 0.001, 0.005, 0.025, 0.1, 1.0)


class ReadKind(StrEnum):
    """Kinds of reads that are counted apart, because their costs differ."""

    GET = "get"
    GET_AS_OF = "get_as_of"
    GET_HISTORY = "get_history"
    ALL = "all"
    RANGE = "range"
    PREFIX = "prefix"
    FETCH_WINDOWS = "fetch_windows"
    SCAN_WINDOWS = "scan_windows"
    FETCH_SESSIONS = "fetch_sessions"
    SCAN_SESSIONS = "scan_sessions"
    COUNT = "count"
    CUSTOM = "custom"


class ReadHistogram:
    """A histogram of reads and their bytes, for one thread. A read costs a quarter of what Prometheus' own takes."""

    __slots__ = ("buckets", "bytes", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(READ_BUCKETS_S) + 1)
        self.seconds = 0.0
        self.bytes = 0

    def add(self, started: float, size: int, reads: int = 1) -> None:
        """Count reads that ran one after the other.

        Args:
            started: `time.perf_counter()` when the first read began.
            size: number of bytes that all the reads found.
            reads: number of reads. Each counts as having taken an equal part of the time.

        """
        seconds = time.perf_counter() - started
        self.buckets[bisect_left(READ_BUCKETS_S, seconds / reads)] += reads
        self.seconds += seconds
        self.bytes += size

    def add_counted(self, buckets: Sequence[int], seconds: float, size: int) -> None:
        """Take reads that were counted elsewhere, in the same buckets."""
        self.buckets = [mine + more for mine, more in zip(self.buckets, buckets, strict=True)]
        self.seconds += seconds
        self.bytes += size


class WriteKind(StrEnum):
    """Kinds of writes whose times are measured separately."""

    PUT = "put"
    DELETE = "delete"
    FLUSH = "flush"


class WriteTimes:
    """How long a store's writes take, in seconds. Safe to use from any thread."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(WriteKind, 0.0)
        self.flushes = 0
        self._longest = {kind: WindowedMaximum() for kind in WriteKind}
        self._lock = threading.Lock()

    def wrote(self, puts: int, deletes: int, took_s: float, now_s: float) -> None:
        """Count a batch of records, which the store writes as one.

        Each record counts as having taken an equal part of the time. The longest put or delete is as long as the
        longest batch: a record is there once its batch is.
        """
        with self._lock:
            for kind, number in ((WriteKind.PUT, puts), (WriteKind.DELETE, deletes)):
                if number:
                    self.seconds[kind] += took_s * number / (puts + deletes)
                    self._longest[kind].add(took_s, now_s)

    def flushed(self, took_s: float, now_s: float) -> None:
        """Count a flush: the checkpoint was written into the store."""
        with self._lock:
            self.flushes += 1
            self.seconds[WriteKind.FLUSH] += took_s
            self._longest[WriteKind.FLUSH].add(took_s, now_s)

    def longest(self, kind: WriteKind, now_s: float) -> float | None:
        """Return the longest of the last minute, None without any."""
        with self._lock:
            return self._longest[kind].at(now_s)


class ReplicaMetrics:
    """The counters of a store in a role. All its replicas on the node share them.

    Only the event loop may use `reads`; any thread may use the others.
    """

    def __init__(self, metrics: NodeMetrics, store: str, role: Role) -> None:
        self.store, self.role = store, role
        self.reads = {query: ReadHistogram() for query in ReadKind}
        self.writes = WriteTimes()
        labels = (store, role.name)
        self._puts = metrics.puts.labels(*labels)
        self._deletes = metrics.deletes.labels(*labels)
        self._written_bytes = metrics.written_bytes.labels(*labels)
        self._restored = metrics.restored_records.labels(*labels)
        self._late = metrics.late_records.labels(*labels)
        self._expired_segments = metrics.expired_segments.labels(*labels)
        self._skipped = metrics.skipped_records.labels(*labels)
        self.misplaced = metrics.misplaced_records.labels(*labels)
        self._metrics = metrics

    def skipped(self) -> None:
        """Count an unreadable record."""
        self._skipped.inc()
        self._metrics.fault(Fault.UNREADABLE_RECORD, FaultOutcome.PASSED_OVER)

    def applied(self, records: Sequence[ChangelogRecord], applied: Applied, took_s: float, *, restoring: bool) -> None:
        """Count the records of an applied batch, and its time."""
        deletes = size = 0
        for record in records:
            value = record.value
            size += len(record.key)
            if value is None:
                deletes += 1
            else:
                size += len(value)
        self.wrote(len(records) - deletes, deletes, size, took_s, restoring=restoring)
        self.dropped(applied.late, applied.expired_segments)

    def wrote(self, puts: int, deletes: int, size: int, took_s: float, *, restoring: bool) -> None:
        """Count records that were written together: with a value and tombstones, bytes of keys and values, seconds."""
        self.writes.wrote(puts, deletes, took_s, time.monotonic())
        self._puts.inc(puts)
        self._deletes.inc(deletes)
        self._written_bytes.inc(size)
        if restoring:
            self._restored.inc(puts + deletes)

    def dropped(self, late: int, expired_segments: int) -> None:
        """Count records that were too old, and segments that have expired."""
        self._late.inc(late)
        self._expired_segments.inc(expired_segments)


class NodeMetrics:
    """The node's registry and its counters. It is a `StateListener`, and counts the changes of state."""

    def __init__(self) -> None:
        self.registry = new_registry()
        per_replica = ("store", "role")
        self.puts = self._counter("puts", "Changelog records with a value, written to the store", per_replica)
        self.deletes = self._counter("deletes", "Tombstones, written to the store", per_replica)
        self.written_bytes = self._counter("written_bytes", "Bytes of keys and values of written records", per_replica)
        self.restored_records = self._counter("restored_records", "Records written by restores", per_replica)
        self.late_records = self._counter("late_records", "Records older than the retention, dropped", per_replica)
        self.skipped_records = self._counter("skipped_records", "Unreadable records, passed over", per_replica)
        self.misplaced_records = self._counter(
            "misplaced_records", "Records read that stand elsewhere than the partitioner puts their keys", per_replica
        )
        self.expired_segments = self._counter("expired_segments", "Segments dropped by expiry", per_replica)
        self._faults = self._counter("faults", "What was found to be wrong, and its outcome", ("fault", "outcome"))
        self._full_restores = self._counter(
            "full_restores", "Partitions restored from the start of their changelog, by why", ("store", "fault")
        )
        self._opened = self._counter(
            "opened_stores", "Stores opened, by what their state came from: disk, peer or log", ("store", "source")
        )
        self.fetched_bytes = self._counter("fetched_bytes", "Bytes of files fetched from other nodes", ("store",))
        self.given_bytes = self._counter("given_bytes", "Bytes of files that other nodes began to read", ("store",))
        self._node_states = self._counter("state_changes", "Changes of the node's state", ("from", "to"))
        self._task_states = self._counter("task_state_changes", "Changes of tasks' states", ("from", "to"))
        self.rebalances = self._counter("rebalances", "Assignments that changed this node's tasks or their roles", ())
        self.cleaned_up = self._counter("cleaned_up_folders", "Folders of tasks or global stores removed as idle", ())
        calls = self._counter("calls", "gRPC calls by outcome: OK, or why they failed", ("method", "outcome"))
        self._calls = cache(calls.labels)  # finding a counter by its labels takes longer than counting
        self.heartbeat_failures = self._counter("heartbeat_failures", "Heartbeats that didn't reach Kafka", ())
        self._batch_failures = self._counter("batch_entry_failures", "Failed entries of BatchGet", ("reason",))
        self.paused = count_pauses("node", self.registry)
        self.security = SecurityMetrics(self.registry, "statehouse_node")
        self._replicas: dict[tuple[str, Role], ReplicaMetrics] = {}

    def _counter(self, name: str, meaning: str, labels: Sequence[str]) -> Counter:
        return Counter(f"statehouse_node_{name}", meaning, labels, registry=self.registry)

    def of(self, store: str, role: Role) -> ReplicaMetrics:
        """Return the counters of a store's replicas in a role. `store` must be a store of the assignment."""
        try:
            return self._replicas[store, role]
        except KeyError:
            return self._replicas.setdefault((store, role), ReplicaMetrics(self, store, role))

    def replicas(self) -> list[ReplicaMetrics]:
        """Return the counters that `of` has made. Safe to call from any thread."""
        return list(self._replicas.values())

    def fault(self, fault: Fault, outcome: FaultOutcome) -> None:
        """Count a fault."""
        self._faults.labels(fault.value, outcome.value).inc()

    def full_restore(self, store: str, fault: Fault) -> None:
        """Count a restore from the start of the log, and its fault unless there simply was no state."""
        self._full_restores.labels(store, fault.value).inc()
        if fault is not Fault.NO_STATE:
            self.fault(fault, FaultOutcome.STORE_WIPED)

    def opened(self, store: str, restored_by: str) -> None:
        """Count a store that was opened. `restored_by`: its first word is counted."""
        self._opened.labels(store, restored_by.partition(" ")[0]).inc()

    def call(self, method: str, outcome: str, count: int = 1) -> None:
        """Count gRPC calls."""
        self._calls(method, outcome).inc(count)

    def batch_entry_failed(self, reason: str) -> None:
        """Count an entry of a batch that failed with its own error."""
        self._batch_failures.labels(reason).inc()

    def on_node_state(self, old: NodeState, new: NodeState) -> None:
        """Count a change of the node's state."""
        self._node_states.labels(old.value, new.value).inc()

    def on_task_state(self, task: AnyTaskId, old: TaskState, new: TaskState) -> None:  # noqa: ARG002 - not a label
        """Count a change of a task's state."""
        self._task_states.labels(old.value, new.value).inc()
