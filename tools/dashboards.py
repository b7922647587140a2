"""What the Grafana dashboards show: panels and their queries. `generate_dashboards.py` makes Grafana's JSON of it.

Queries are for one application: `$application` is chosen at the top of a dashboard.
"""

from __future__ import annotations

from dataclasses import dataclass
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


def _rate(metric: str, by: str, where: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{{OF}{where}}}[{RATE}]))"


def _sum(metric: str, by: str = "", where: str = "") -> str:
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} ({metric}{{{OF}{where}}})"


def _max(metric: str, by: str = "", where: str = "") -> str:
    grouped = f" by ({by})" if by else ""
    return f"max{grouped} ({metric}{{{OF}{where}}})"


def _quantile(share: float, metric: str, by: str) -> str:
    return f"histogram_quantile({share}, sum by ({by}, le) (rate({metric}_bucket{{{OF}}}[{RATE}])))"


_LOOKUPS: Final = Panel(
    "Lookups",
    (Query(_rate("statehouse_router_lookups_total", "store"), "{{store}}"),),
    "reqps",
    "Lookups a second at all routers, those of the express way among them.",
)
_LOOKUP_TIMES: Final = Panel(
    "Time of a lookup",
    (
        Query(_quantile(0.5, "statehouse_router_lookup_duration_seconds", "store"), "p50 {{store}}"),
        Query(_quantile(0.99, "statehouse_router_lookup_duration_seconds", "store"), "p99 {{store}}"),
    ),
    "s",
    "From receipt at a router to its answer.",
)
_STALENESS: Final = Panel(
    "Staleness",
    (Query(_max("statehouse_node_staleness_seconds_max", "store, role"), "{{store}} {{role}}"),),
    "s",
    "Of the worst replica: the time since it last had all of its changelog.",
)
_AGE: Final = Panel(
    "Age of the data",
    (Query(_max("statehouse_node_processor_age_seconds", "store"), "{{store}}"),),
    "s",
    "Time since the processor last reported for the store.",
)

FLEET: Final = Dashboard(
    "statehouse-fleet",
    "Statehouse: fleet",
    {
        "Is it well?": (
            Panel("Processes up", (Query('sum by (job) (up{job=~"statehouse-.+"})', "{{job}}"),), is_number=True),
            Panel(
                "Nodes that live",
                (Query(_max("statehouse_processor_controller_live_nodes"), "live"),),
                meaning="By the controller that acts.",
                is_number=True,
            ),
            Panel(
                "Tasks in trouble",
                (
                    Query(_max("statehouse_processor_controller_unplaced_tasks"), "without an active"),
                    Query(_max("statehouse_processor_controller_under_replicated_tasks"), "too few copies"),
                    Query(_max("statehouse_processor_controller_moves"), "moving"),
                    Query(_sum("statehouse_node_tasks", where=',state="error"'), "stopped"),
                ),
                is_number=True,
            ),
            Panel(
                "Epochs",
                (
                    Query(_max("statehouse_processor_controller_epoch"), "in force"),
                    Query(f"min (statehouse_router_table_epoch{{{OF}}})", "oldest at routers"),
                    Query(f"min (statehouse_node_epoch{{{OF}}})", "oldest at nodes"),
                ),
                meaning="They are the same, but for moments.",
                is_number=True,
            ),
        ),
        "Lookups": (
            _LOOKUPS,
            _LOOKUP_TIMES,
            Panel(
                "Lookups that fail",
                (Query(_rate("statehouse_router_lookups_total", "outcome", ',outcome!="OK"'), "{{outcome}}"),),
                "reqps",
                "By reason (docs/errors.md).",
            ),
        ),
        "Data": (
            _STALENESS,
            _AGE,
            Panel(
                "Restores",
                (Query(_sum("statehouse_node_restore_remaining_records", "store"), "{{store}}"),),
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
            Panel(
                "Under way",
                (
                    Query(_sum("statehouse_router_open_lookups", "instance"), "{{instance}}"),
                    Query(_max("statehouse_router_max_lookups"), "max_lookups"),
                    Query(_sum("statehouse_router_held_lookups", "instance"), "held {{instance}}"),
                ),
            ),
            Panel(
                "Who answers",
                (
                    Query(_rate("statehouse_router_lookups_total", "role", ',outcome="OK"'), "{{role}}"),
                    Query(_rate("statehouse_router_express_lookups_total", "role"), "express {{role}}"),
                ),
                "reqps",
                "By the answering replica's role, and those of them that the proxy sent to a node by itself.",
            ),
        ),
        "Calls to nodes": (
            Panel(
                "Attempts",
                (Query(_rate("statehouse_router_attempts_total", "reason"), "{{reason}}"),),
                "reqps",
                "Calls to nodes by their outcome; each lookup of a shared call counts.",
            ),
            Panel(
                "Hedges and retries",
                (
                    Query(_rate("statehouse_router_hedges_total", "outcome"), "hedge {{outcome}}"),
                    Query(_rate("statehouse_router_suspicions_total", "state"), "node became {{state}}"),
                ),
                "reqps",
            ),
            Panel(
                "Nodes asked last",
                (Query(_sum("statehouse_router_suspected_nodes", "state"), "{{state}}"),),
                meaning="Summed over routers.",
            ),
        ),
        "What it knows": (
            Panel("Epoch of the table", (Query(_max("statehouse_router_table_epoch", "instance"), "{{instance}}"),)),
            Panel(
                "Age of the table",
                (Query(_max("statehouse_router_table_age_seconds", "instance"), "{{instance}}"),),
                "s",
            ),
            Panel(
                "Silence of Kafka",
                (Query(_max("statehouse_router_kafka_silence_seconds", "instance"), "{{instance}}"),),
                "s",
            ),
        ),
        "Proxy": (
            Panel(
                "Calls",
                (Query(_rate("statehouse_router_proxy_calls_total", "way, code"), "{{way}} {{code}}"),),
                "reqps",
                "By who answered: nodes (express), the router over the link, or the router by gRPC.",
            ),
            Panel(
                "Connections",
                (
                    Query(_sum("statehouse_router_proxy_connections", "instance"), "{{instance}}"),
                    Query(
                        _rate("statehouse_router_proxy_refused_connections_total", "instance"), "refused/s {{instance}}"
                    ),
                ),
            ),
            Panel(
                "Queues",
                (
                    Query(_sum("statehouse_router_proxy_queued_calls", "kind"), "wait: {{kind}}"),
                    Query(_sum("statehouse_router_proxy_calls_at_process"), "at the router"),
                    Query(_sum("statehouse_router_proxy_express_lookups"), "at nodes, express"),
                ),
            ),
            Panel(
                "Express way",
                (Query(f"min by (instance) (statehouse_router_proxy_express_open{{{OF}}})", "{{instance}}"),),
                meaning="1 while the proxy may send lookups to nodes by itself.",
            ),
            Panel(
                "Memory of calls",
                (
                    Query(_sum("statehouse_router_proxy_held_bytes", "instance"), "{{instance}}"),
                    Query(_max("statehouse_router_proxy_held_bytes_max"), "most"),
                ),
                "bytes",
            ),
        ),
    },
)

NODES: Final = Dashboard(
    "statehouse-nodes",
    "Statehouse: nodes",
    {
        "State": (
            Panel("Nodes by state", (Query(_sum("statehouse_node_state", "state"), "{{state}}"),)),
            Panel("Tasks by state", (Query(_sum("statehouse_node_tasks", "state"), "{{state}}"),)),
            Panel(
                "Partitions", (Query(_sum("statehouse_node_partitions", "instance, role"), "{{instance}} {{role}}"),)
            ),
            Panel(
                "Faults and moves",
                (
                    Query(_rate("statehouse_node_rebalances_total", "instance"), "assignments {{instance}}"),
                    Query(
                        _rate("statehouse_node_heartbeat_failures_total", "instance"), "heartbeats failed {{instance}}"
                    ),
                ),
            ),
        ),
        "Freshness": (
            _STALENESS,
            Panel("Lag", (Query(_max("statehouse_node_lag_records_max", "store, role"), "{{store}} {{role}}"),)),
            _AGE,
            Panel(
                "Silence of Kafka",
                (
                    Query(_max("statehouse_node_kafka_silence_seconds", "instance"), "{{instance}}"),
                    Query(_max("statehouse_node_heartbeats_failing_seconds", "instance"), "heartbeats {{instance}}"),
                ),
                "s",
            ),
        ),
        "Reads": (
            Panel(
                "Calls",
                (Query(_rate("statehouse_node_calls_total", "method, outcome"), "{{method}} {{outcome}}"),),
                "reqps",
            ),
            Panel(
                "Time of a read",
                (
                    Query(
                        _quantile(0.99, "statehouse_node_read_duration_seconds", "store, query"),
                        "p99 {{store}} {{query}}",
                    ),
                ),
                "s",
            ),
            Panel(
                "Under way",
                (
                    Query(_sum("statehouse_node_disk_reads", "instance"), "disk {{instance}}"),
                    Query(_sum("statehouse_node_open_scans", "instance"), "scans {{instance}}"),
                    Query(_sum("statehouse_node_position_waits", "instance"), "wait for a position {{instance}}"),
                    Query(_sum("statehouse_node_open_watches", "instance"), "watches {{instance}}"),
                ),
            ),
        ),
        "Writes": (
            Panel("Records", (Query(_rate("statehouse_node_puts_total", "store, role"), "{{store}} {{role}}"),), "wps"),
            Panel(
                "Restores",
                (
                    Query(
                        _sum("statehouse_node_restore_remaining_records", "store, instance"), "{{store}} {{instance}}"
                    ),
                ),
            ),
        ),
        "Memory and disk": (
            Panel(
                "Block cache",
                (
                    Query(_sum("statehouse_node_rocksdb_block_cache_bytes", "instance"), "{{instance}}"),
                    Query(_max("statehouse_node_rocksdb_block_cache_capacity_bytes"), "capacity"),
                ),
                "bytes",
            ),
            Panel("Files", (Query(_sum("statehouse_node_sst_bytes", "store"), "{{store}}"),), "bytes"),
            Panel(
                "Stalls",
                (Query(_rate("statehouse_node_rocksdb_write_stall_microseconds_total", "instance"), "{{instance}}"),),
                "µs",
                "Time a second that writes waited for flushes and compactions.",
            ),
        ),
        "Proxy": (
            Panel(
                "Calls", (Query(_rate("statehouse_node_proxy_calls_total", "way, code"), "{{way}} {{code}}"),), "reqps"
            ),
            Panel("Connections", (Query(_sum("statehouse_node_proxy_connections", "instance"), "{{instance}}"),)),
            Panel(
                "Queues",
                (Query(_sum("statehouse_node_proxy_queued_calls", "instance, kind"), "{{instance}} {{kind}}"),),
            ),
        ),
    },
)

PROCESSOR: Final = Dashboard(
    "statehouse-processor",
    "Statehouse: processor and controller",
    {
        "Batches": (
            Panel("Rows in", (Query(_rate("statehouse_processor_input_rows_total", "query"), "{{query}}"),), "rowsps"),
            Panel(
                "Time of a batch",
                (
                    Query(_quantile(0.5, "statehouse_processor_trigger_seconds", "query"), "p50 {{query}}"),
                    Query(_quantile(0.99, "statehouse_processor_trigger_seconds", "query"), "p99 {{query}}"),
                    Query(_quantile(0.5, "statehouse_processor_batch_seconds", "query"), "writing, p50 {{query}}"),
                ),
                "s",
            ),
            Panel(
                "Backlog",
                (Query(_sum("statehouse_processor_commit_lag_offsets", "query, topic"), "{{query}} {{topic}}"),),
                meaning="Offsets of source topics that a batch left, when it began.",
            ),
            Panel(
                "Records out",
                (Query(_rate("statehouse_processor_changelog_records_total", "output, kind"), "{{output}} {{kind}}"),),
                "wps",
            ),
        ),
        "State": (
            Panel("Rows", (Query(_sum("statehouse_processor_state_rows", "query"), "{{query}}"),)),
            Panel("Memory", (Query(_sum("statehouse_processor_state_bytes", "query"), "{{query}}"),), "bytes"),
            Panel("Application", (Query(_sum("statehouse_processor_state", "state"), "{{state}}"),)),
        ),
        "Ownership controller": (
            Panel(
                "State",
                (
                    Query(
                        _sum("statehouse_processor_controller_state", "instance, state") + " > 0",
                        "{{instance}} {{state}}",
                    ),
                ),
            ),
            Panel(
                "Plans",
                (Query(_rate("statehouse_processor_controller_plans_total", "outcome"), "{{outcome}}"),),
                "ops",
            ),
            Panel(
                "Time of a plan",
                (
                    Query(
                        _quantile(0.99, "statehouse_processor_controller_plan_seconds", "instance"), "p99 {{instance}}"
                    ),
                ),
                "s",
            ),
            Panel(
                "Nodes",
                (
                    Query(_max("statehouse_processor_controller_live_nodes"), "live"),
                    Query(_max("statehouse_processor_controller_damped_nodes"), "held back"),
                ),
            ),
            Panel(
                "Tasks",
                (
                    Query(_max("statehouse_processor_controller_tasks"), "all"),
                    Query(_max("statehouse_processor_controller_moves"), "moving"),
                    Query(_max("statehouse_processor_controller_unplaced_tasks"), "without an active"),
                    Query(_max("statehouse_processor_controller_under_replicated_tasks"), "too few copies"),
                ),
            ),
            Panel(
                "Silence of Kafka",
                (Query(_max("statehouse_processor_controller_kafka_silence_seconds", "instance"), "{{instance}}"),),
                "s",
            ),
        ),
    },
)

DASHBOARDS: Final = (FLEET, ROUTERS, NODES, PROCESSOR)
