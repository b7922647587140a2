"""Settings of the version before: users that still give one learn what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_CONSTANT: Final = "it is a constant now"
_OF_STORES: Final = "it is a constant now; a store's `config` may say otherwise"

REMOVED: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "changelog_additional_retention_ms",
                "checkpoint_interval_ms",
                "confirm_interval_ms",
                "flap_limit",
                "flap_window_ms",
                "handover_linger_ms",
                "hedge_min_ms",
                "hedge_quantile",
                "hold_max",
                "hold_min_interval_ms",
                "http_max_body_bytes",
                "initial_rebalance_delay_ms",
                "max_batch_entries",
                "max_connection_age_ms",
                "max_open_scans",
                "max_position_waits",
                "max_query_restarts",
                "max_timeout_ms",
                "max_watched_partitions",
                "position_wait_timeout_ms",
                "query_restart_backoff_max_ms",
                "query_restart_backoff_ms",
                "query_restart_window_ms",
                "ready_silence_max_ms",
                "restore_batch_records",
                "retry_budget_per_s",
                "retry_budget_percent",
                "router_max_batch_entries",
                "scan_timeout_ms",
                "schema_registry_timeout_ms",
                "transaction_timeout_ms",
                "watch_resume_timeout_ms",
                "watch_tail_bytes",
                "write_timeout_ms",
            ),
            _CONSTANT,
        ),
        "lookup_log_keys": "lines have keys at the log level debug",
        "max_batch_ms": "max_offsets bounds batches by events",
        "max_held_bytes": "it follows max_message_bytes",
        "min_compaction_lag_ms": _OF_STORES,
        "request_timeout_ms": "callers give a deadline, or have 5 s",
        "shuffle_partitions": "spark_conf has spark.sql.shuffle.partitions",
        "tracing_endpoint": "OpenTelemetry's variable OTEL_EXPORTER_OTLP_ENDPOINT names the collector",
        "updates_retention_ms": _OF_STORES,
        "write_buffer_bytes": "it follows block_cache_bytes",
    }
)
"""Setting -> what became of it. Goes with the version after this one."""
