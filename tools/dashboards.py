"""What the Grafana dashboards show: panels and their queries. `generate_dashboards.py` makes Grafana's JSON of it.

Queries are for one application: `$application` is chosen at the top of a dashboard.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

OF: Final = 'application="$application"'
RATE: Final = "$__rate_interval"


@dataclass(frozen=True, slots=True)
class Query:
    """A query in PromQL, and what its series are called: `{{label}}` stands for a label's value."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel. `unit`: as Grafana names it. `is_number`: it shows the newest values large, not their course."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    meaning: str = ""
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A dashboard: its id, title, and rows of panels, by their headings."""

    uid: str
    title: str
    rows: dict[str, tuple[Panel, ...]]


def _panel(title: str, *queries: Query, unit: str = "short", meaning: str = "", is_number: bool = False) -> Panel:
    return Panel(title, queries, unit, meaning, is_number)


def _query(expression: str, by: str, said: str) -> Query:
    """Return a query whose series are called by what is said, and by the labels in `by`."""
    labels = (f"{{{{{label}}}}}" for label in by.split(", ") if label)
    return Query(expression, " ".join(filter(None, (said, *labels))))


def _over(function: str, metric: str, by: str = "", said: str = "", where: str = "") -> Query:
    grouped = f" by ({by})" if by else ""
    return _query(f"{function}{grouped} (statehouse_{metric}{{{OF}{where}}})", by, said)


_sum: Final = partial(_over, "sum")
_max: Final = partial(_over, "max")
_min: Final = partial(_over, "min")


def _rate(metric: str, by: str, said: str = "", where: str = "") -> Query:
    return _query(f"sum by ({by}) (rate(statehouse_{metric}{{{OF}{where}}}[{RATE}]))", by, said)


def _quantile(share: float, metric: str, by: str, said: str = "") -> Query:
    buckets = f"rate(statehouse_{metric}_bucket{{{OF}}}[{RATE}])"
    return _query(f"histogram_quantile({share}, sum by ({by}, le) ({buckets}))", by, said or f"p{share * 100:g}")


_LOOKUPS: Final = _panel(
    "Lookups",
    _rate("router_lookups_total", "store"),
    unit="reqps",
    meaning="Lookups a second at all routers, those of the express way among them.",
)
_LOOKUP_TIMES: Final = _panel(
    "Time of a lookup",
    _quantile(0.5, "router_lookup_duration_seconds", "store"),
    _quantile(0.99, "router_lookup_duration_seconds", "store"),
    unit="s",
    meaning="From receipt at a router to its answer.",
)
_STALENESS: Final = _panel(
    "Staleness",
    _max("node_staleness_seconds_max", "store, role"),
    unit="s",
    meaning="Of the worst replica: the time since it last had all of its changelog.",
)
_AGE: Final = _panel(
    "Age of the data",
    _max("node_processor_age_seconds", "store"),
    unit="s",
    meaning="Time since the processor last reported for the store.",
)

FLEET: Final = Dashboard(
    "statehouse-fleet",
    "Statehouse: fleet",
    {
        "Is it well?": (
            _panel("Processes up", Query('sum by (job) (up{job=~"statehouse-.+"})', "{{job}}"), is_number=True),
            _panel(
                "Nodes that live",
                _max("processor_controller_live_nodes", said="live"),
                meaning="By the controller that acts.",
                is_number=True,
            ),
            _panel(
                "Tasks in trouble",
                _max("processor_controller_unplaced_tasks", said="without an active"),
                _max("processor_controller_under_replicated_tasks", said="too few copies"),
                _max("processor_controller_moves", said="moving"),
                _sum("node_tasks", said="stopped", where=',state="error"'),
                is_number=True,
            ),
            _panel(
                "Epochs",
                _max("processor_controller_epoch", said="in force"),
                _min("router_table_epoch", said="oldest at routers"),
                _min("node_epoch", said="oldest at nodes"),
                meaning="They are the same, but for moments.",
                is_number=True,
            ),
        ),
        "Lookups": (
            _LOOKUPS,
            _LOOKUP_TIMES,
            _panel(
                "Lookups that fail",
                _rate("router_lookups_total", "outcome", where=',outcome!="OK"'),
                unit="reqps",
                meaning="By reason (docs/errors.md).",
            ),
        ),
        "Data": (
            _STALENESS,
            _AGE,
            _panel(
                "Restores",
                _sum("node_restore_remaining_records", "store"),
                meaning="Offsets that restores have yet to read.",
            ),
        ),
    },
)

ROUTERS: Final = Dashboard(
    "statehouse-routers",
    "Statehouse: routers",
    {
        "Lookups": (
            _LOOKUPS,
            _LOOKUP_TIMES,
            _panel(
                "Under way",
                _sum("router_open_lookups", "instance"),
                _max("router_max_lookups", said="max_lookups"),
                _sum("router_held_lookups", "instance", said="held"),
            ),
            _panel(
                "Who answers",
                _rate("router_lookups_total", "role", where=',outcome="OK"'),
                _rate("router_express_lookups_total", "role", said="express"),
                unit="reqps",
                meaning="By the answering replica's role, and those of them that the proxy sent to a node by itself.",
            ),
        ),
        "Calls to nodes": (
            _panel(
                "Attempts",
                _rate("router_attempts_total", "reason"),
                unit="reqps",
                meaning="Calls to nodes by their outcome; each lookup of a shared call counts.",
            ),
            _panel(
                "Hedges and retries",
                _rate("router_hedges_total", "outcome", said="hedge"),
                _rate("router_suspicions_total", "state", said="node became"),
                unit="reqps",
            ),
            _panel("Nodes asked last", _sum("router_suspected_nodes", "state"), meaning="Summed over routers."),
        ),
        "What it knows": (
            _panel("Epoch of the table", _max("router_table_epoch", "instance")),
            _panel("Age of the table", _max("router_table_age_seconds", "instance"), unit="s"),
            _panel("Silence of Kafka", _max("router_kafka_silence_seconds", "instance"), unit="s"),
        ),
        "Proxy": (
            _panel(
                "Calls",
                _rate("router_proxy_calls_total", "way, code"),
                unit="reqps",
                meaning="By who answered: nodes (express), the router over the link, or the router by gRPC.",
            ),
            _panel(
                "Connections",
                _sum("router_proxy_connections", "instance"),
                _rate("router_proxy_refused_connections_total", "instance", said="refused/s"),
            ),
            _panel(
                "Queues",
                _sum("router_proxy_queued_calls", "kind", said="wait:"),
                _sum("router_proxy_calls_at_process", said="at the router"),
                _sum("router_proxy_express_lookups", said="at nodes, express"),
            ),
            _panel(
                "Express way",
                _min("router_proxy_express_open", "instance"),
                meaning="1 while the proxy may send lookups to nodes by itself.",
            ),
            _panel(
                "Memory of calls",
                _sum("router_proxy_held_bytes", "instance"),
                _max("router_proxy_held_bytes_max", said="most"),
                unit="bytes",
            ),
        ),
        "Copies": (
            _panel(
                "Compared partitions",
                _rate("router_verified_partitions_total", "outcome"),
                meaning="By a router with `verify_interval_ms`: whether replicas and changelog are equal.",
            ),
        ),
    },
)

NODES: Final = Dashboard(
    "statehouse-nodes",
    "Statehouse: nodes",
    {
        "State": (
            _panel("Nodes by state", _sum("node_state", "state")),
            _panel("Tasks by state", _sum("node_tasks", "state")),
            _panel("Partitions", _sum("node_partitions", "instance, role")),
            _panel(
                "Faults and moves",
                _rate("node_rebalances_total", "instance", said="assignments"),
                _rate("node_heartbeat_failures_total", "instance", said="heartbeats failed"),
            ),
        ),
        "Freshness": (
            _STALENESS,
            _panel("Lag", _max("node_lag_records_max", "store, role")),
            _AGE,
            _panel(
                "Silence of Kafka",
                _max("node_kafka_silence_seconds", "instance"),
                _max("node_heartbeats_failing_seconds", "instance", said="heartbeats"),
                unit="s",
            ),
        ),
        "Reads": (
            _panel("Calls", _rate("node_calls_total", "method, outcome"), unit="reqps"),
            _panel("Time of a read", _quantile(0.99, "node_read_duration_seconds", "store, query"), unit="s"),
            _panel(
                "Under way",
                _sum("node_disk_reads", "instance", said="disk"),
                _sum("node_open_scans", "instance", said="scans"),
                _sum("node_position_waits", "instance", said="wait for a position"),
                _sum("node_open_watches", "instance", said="watches"),
            ),
        ),
        "Writes": (
            _panel("Records", _rate("node_puts_total", "store, role"), unit="wps"),
            _panel("Restores", _sum("node_restore_remaining_records", "store, instance")),
            _panel(
                "Files of other nodes",
                _rate("node_fetched_bytes_total", "store", said="fetched:"),
                _rate("node_given_bytes_total", "store", said="given:"),
                unit="Bps",
            ),
            _panel("Files to fetch", _sum("node_restore_remaining_bytes", "store, instance"), unit="bytes"),
        ),
        "Memory and disk": (
            _panel(
                "Block cache",
                _sum("node_rocksdb_block_cache_bytes", "instance"),
                _max("node_rocksdb_block_cache_capacity_bytes", said="capacity"),
                unit="bytes",
            ),
            _panel("Files", _sum("node_sst_bytes", "store"), unit="bytes"),
            _panel(
                "Stalls",
                _rate("node_rocksdb_write_stall_microseconds_total", "instance"),
                unit="µs",
                meaning="Time a second that writes waited for flushes and compactions.",
            ),
        ),
        "Proxy": (
            _panel("Calls", _rate("node_proxy_calls_total", "way, code"), unit="reqps"),
            _panel("Connections", _sum("node_proxy_connections", "instance")),
            _panel("Queues", _sum("node_proxy_queued_calls", "instance, kind")),
        ),
    },
)

PROCESSOR: Final = Dashboard(
    "statehouse-processor",
    "Statehouse: processor and controller",
    {
        "Batches": (
            _panel("Rows in", _rate("processor_input_rows_total", "query"), unit="rowsps"),
            _panel(
                "Time of a batch",
                _quantile(0.5, "processor_trigger_seconds", "query"),
                _quantile(0.99, "processor_trigger_seconds", "query"),
                _quantile(0.5, "processor_batch_seconds", "query", said="writing, p50"),
                unit="s",
            ),
            _panel(
                "Backlog",
                _sum("processor_commit_lag_offsets", "query, topic"),
                meaning="Offsets of source topics that a batch left, when it began.",
            ),
            _panel("Records out", _rate("processor_changelog_records_total", "output, kind"), unit="wps"),
        ),
        "State": (
            _panel("Rows", _sum("processor_state_rows", "query")),
            _panel("Memory", _sum("processor_state_bytes", "query"), unit="bytes"),
            _panel("Application", _sum("processor_state", "state")),
        ),
        "Ownership controller": (
            _panel(
                "State",
                Query(
                    f"sum by (instance, state) (statehouse_processor_controller_state{{{OF}}}) > 0",
                    "{{instance}} {{state}}",
                ),
            ),
            _panel("Plans", _rate("processor_controller_plans_total", "outcome"), unit="ops"),
            _panel("Time of a plan", _quantile(0.99, "processor_controller_plan_seconds", "instance"), unit="s"),
            _panel(
                "Nodes",
                _max("processor_controller_live_nodes", said="live"),
                _max("processor_controller_damped_nodes", said="held back"),
            ),
            _panel(
                "Tasks",
                _max("processor_controller_tasks", said="all"),
                _max("processor_controller_moves", said="moving"),
                _max("processor_controller_unplaced_tasks", said="without an active"),
                _max("processor_controller_under_replicated_tasks", said="too few copies"),
            ),
            _panel("Silence of Kafka", _max("processor_controller_kafka_silence_seconds", "instance"), unit="s"),
        ),
    },
)
DASHBOARDS: Final = (FLEET, ROUTERS, NODES, PROCESSOR)
