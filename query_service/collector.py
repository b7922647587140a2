"""Metrics that are read at each scrape: positions, sizes and freshness of replicas, and RocksDB's statistics."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

import structlog
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from query_service.control_topics import ControlTopics
from query_service.heartbeats import Heartbeats
from query_service.replicas.replica import TaskReplica
from query_service.replicas.tasks import TaskManager
from query_service.states.lifecycle import StoreState
from query_service.states.ownership import NodeOwnership
from query_service.stores.base import StateStore
from query_service.stores.resources import StoreResources
from query_service.stores.statistics import NODE_STATISTICS, STORE_STATISTICS
from query_service.telemetry.listeners import Listeners
from query_service.telemetry.metrics import READ_BUCKETS_S, NodeMetrics, WriteKind
from query_service.wiring import ReadHandlers
from statehouse.contract.membership import NodeState, TaskState
from statehouse.observability.histograms import exposed
from statehouse.observability.proxy_sums import newest

log = structlog.get_logger(__name__)

_PREFIX = "statehouse_node"
_REPLICA = ("store", "role")
_NODE: Mapping[str, str] = {
    "dormant_tasks": "Tasks not assigned to the node whose state it still keeps on disk",
    "open_scans": "Reads of many entries that are under way",
    "oldest_scan_seconds": "For how long the oldest of them has been open, 0 without any",
    "open_watches": "Watches that are open",
    "position_waits": "Requests that wait for a position",
    "disk_reads": "Lookups whose keys are not in memory and are being read from the disk",
    "epoch": "Newest assignment epoch known, 0 before",
    "kafka_silence_seconds": "Time since the assignment topic was last read",
    "heartbeats_failing_seconds": "Time since a heartbeat last reached Kafka if the newest one failed, else 0",
}
_REPLICAS: Mapping[str, str] = {
    "partitions": "Replicas of the store's partitions",
    "position": "Next offsets needed, summed over partitions",
    "not_built_partitions": "Partitions into whose store nothing has been committed yet",
    "lag_records": "Records not yet applied, an upper bound, summed over partitions whose lag is known",
    "lag_unknown": "Partitions whose lag is not known",
    "staleness_unknown": "Partitions that have not yet confirmed being at the end of their log",
    "topic_changed": "Partitions that refuse lookups, as their topic is not what the store needs",
    "restore_remaining_records": "What restores have yet to read, in offsets, summed over restoring partitions",
    "restore_remaining_bytes": "What restores have yet to fetch of other nodes' files, summed over partitions",
    "open_iterators": "Reads of ranges that hold the store open",
    **{name: meaning[0].upper() + meaning[1:] for name, meaning in STORE_STATISTICS.items()},
    "lag_records_max": "Largest lag of a partition",
    "staleness_seconds_max": "Longest time since a partition last confirmed being at the end of its log",
}
_WRITES: Mapping[WriteKind, str] = {
    WriteKind.PUT: "puts",
    WriteKind.DELETE: "deletes",
    WriteKind.FLUSH: "flushes",
}


class NodeCollector(Collector):
    """Collects the state of a node at the moment of the scrape (a Prometheus collector).

    What it reads of the node's parts is safe to read from any thread.
    """

    def __init__(
        self,
        metrics: NodeMetrics,
        listeners: Listeners,
        resources: StoreResources,
        ownership: NodeOwnership,
        tasks: TaskManager,
        control: ControlTopics,
        heartbeats: Heartbeats,
        reads: ReadHandlers,
        sums: Callable[[], bytes],
    ) -> None:
        """`sums()` returns what the program in front of the node last said of itself, as `ProxyCollector` takes it."""
        self._metrics, self._listeners, self._resources = metrics, listeners, resources
        self._ownership, self._tasks, self._control = ownership, tasks, control
        self._heartbeats, self._reads, self._sums = heartbeats, reads, sums

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering the collector does not collect."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read everything once."""
        yield from self._node()
        yield from self._replicas()
        yield from self._processor()
        yield from self._read_times()
        yield from self._writes()
        yield from self._listeners.metrics("node")
        yield from _statistics("rocksdb", NODE_STATISTICS, self._resources.statistics())
        if (sums := newest(self._sums)) is not None and sums.stores:
            known = {name: meaning for name, meaning in NODE_STATISTICS.items() if name in sums.stores}
            yield from _statistics("pebble", known, sums.stores)

    def _node(self) -> Iterator[Metric]:
        present = self._ownership.state
        state = GaugeMetricFamily(f"{_PREFIX}_state", "1 for the state the node is in", labels=("state",))
        for each in NodeState:
            state.add_metric((each.value,), each is present)
        yield state
        tasks = GaugeMetricFamily(f"{_PREFIX}_tasks", "Tasks on the node by state", labels=("state",))
        counts = Counter(task.state for task in self._held())
        for task_state in TaskState:
            tasks.add_metric((task_state.value,), counts[task_state])
        yield tasks
        reads = self._reads
        values = {
            "dormant_tasks": self._tasks.dormant_tasks(),
            "open_scans": reads.open_scans.count,
            "oldest_scan_seconds": reads.open_scans.oldest_s,
            "open_watches": reads.watches.streams.open,
            "position_waits": reads.waits.count,
            "disk_reads": reads.lookups.disk_reads,
            "epoch": self._ownership.epoch,
            "kafka_silence_seconds": self._control.silence_s,
            "heartbeats_failing_seconds": self._heartbeats.failing_s or 0.0,
        }
        for name, meaning in _NODE.items():
            yield GaugeMetricFamily(f"{_PREFIX}_{name}", meaning, values[name])

    def _held(self) -> list[TaskReplica]:
        return list(self._tasks.replicas.values())

    def _replicas(self) -> Iterator[Metric]:
        found: defaultdict[tuple[str, str], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
        now = time.monotonic()
        for task in self._held():
            for store in list(task.stores.values()):
                values = found[store.spec.name, task.role.name]
                lag, staleness_ms = store.lag(now), store.staleness_ms(now)
                values["partitions"] += 1
                values["position"] += store.position
                values["not_built_partitions"] += not self._reads.admission.is_built(store)
                values["lag_records"] += lag or 0
                values["lag_unknown"] += lag is None
                values["topic_changed"] += bool(store.topic_change)
                values["staleness_unknown"] += staleness_ms is None
                values["restore_remaining_bytes"] += 0  # it is open
                is_restoring = store.state is StoreState.RESTORING
                values["restore_remaining_records"] += max(0, store.restored_to - store.position) if is_restoring else 0
                for name, value in _of_store(store.store).items():
                    values[name] += value
                if lag is not None:
                    values["lag_records_max"] = max(values["lag_records_max"], lag)
                if staleness_ms is not None:
                    values["staleness_seconds_max"] = max(values["staleness_seconds_max"], staleness_ms / 1000)
            for transfer in list(task.transfers.values()):
                found[transfer.store, task.role.name]["restore_remaining_bytes"] += transfer.missing
        for name, meaning in _REPLICAS.items():
            family = GaugeMetricFamily(f"{_PREFIX}_{name}", meaning, labels=_REPLICA)
            for labels, values in found.items():
                if name in values:
                    family.add_metric(labels, values[name])
            yield family

    def _processor(self) -> Iterator[Metric]:
        """Yield what the processor last reported for the stores of this node's replicas."""
        age = GaugeMetricFamily(
            f"{_PREFIX}_processor_age_seconds",
            "Time since the processor last reported for the store's query",
            labels=("store",),
        )
        backlog = GaugeMetricFamily(
            f"{_PREFIX}_input_backlog_records",
            "Records of the query's sources that the processor had not processed then, an upper bound",
            labels=("store",),
        )
        now = time.monotonic()
        for name in sorted({store.spec.name for task in self._held() for store in list(task.stores.values())}):
            if (report := self._control.reports.latest.get(name)) is not None:
                age.add_metric((name,), report.age_ms(now) / 1000)
                if report.input_backlog is not None:
                    backlog.add_metric((name,), report.input_backlog)
        yield age
        yield backlog

    def _read_times(self) -> Iterator[Metric]:
        durations = HistogramMetricFamily(
            f"{_PREFIX}_read_duration_seconds", "Time of a read in the node", labels=(*_REPLICA, "query")
        )
        read = CounterMetricFamily(f"{_PREFIX}_read_bytes", "Bytes that reads found", labels=(*_REPLICA, "query"))
        for replica in self._metrics.replicas():
            for query, histogram in replica.reads.items():
                if any(histogram.buckets):
                    labels = (replica.store, replica.role.name, query.value)
                    durations.add_metric(labels, exposed(READ_BUCKETS_S, histogram.buckets), histogram.seconds)
                    read.add_metric(labels, histogram.bytes)
        yield durations
        yield read

    def _writes(self) -> Iterator[Metric]:
        now = time.monotonic()
        replicas = self._metrics.replicas()
        for kind, meaning in _WRITES.items():
            seconds = CounterMetricFamily(f"{_PREFIX}_{kind}_seconds", f"Time of {meaning}", labels=_REPLICA)
            longest = GaugeMetricFamily(
                f"{_PREFIX}_{kind}_seconds_max", f"Longest of {meaning} in the last minute", labels=_REPLICA
            )
            for replica in replicas:
                labels = (replica.store, replica.role.name)
                seconds.add_metric(labels, replica.writes.seconds[kind])
                if (longest_s := replica.writes.longest(kind, now)) is not None:
                    longest.add_metric(labels, longest_s)
            yield seconds
            yield longest
        flushes = CounterMetricFamily(f"{_PREFIX}_flushes", "Checkpoints written into the store", labels=_REPLICA)
        for replica in replicas:
            flushes.add_metric((replica.store, replica.role.name), replica.writes.flushes)
        yield flushes


def _of_store(store: StateStore) -> Mapping[str, int]:
    """Return a store's statistics. A custom store may fail here, and that must not fail the scrape."""
    try:
        return {"open_iterators": store.open_views(), **store.statistics()}
    except Exception as error:  # noqa: BLE001 - as above
        log.debug("a store's statistics can't be had", error=str(error))
        return {}


def _statistics(part: str, meanings: Mapping[str, str], values: Mapping[str, int]) -> Iterator[Metric]:
    for name, meaning in meanings.items():
        kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
        yield kind(f"{_PREFIX}_{part}_{name}", meaning[0].upper() + meaning[1:], values.get(name, 0))
