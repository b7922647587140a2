"""Which settings there are. A new one enters `LATER`, with the reason why it can't be a constant."""

from __future__ import annotations

from typing import Final

from statehouse.settings import AssignPlanSettings, AttachSettings
from statehouse.settings.loading import PROCESSES

FIRST_MAX: Final = 75
FIRST: Final = frozenset(
    {
        "accept_lost_checkpoint",
        "acceptable_recovery_lag",
        "advertised_host",
        "advertised_port",
        "application_id",
        "attempt_timeout_ms",
        "bind_host",
        "block_cache_bytes",
        "bootstrap",
        "capacity",
        "checkpoint_dir",
        "class_archive",
        "commit_interval_ms",
        "controller",
        "create_sources",
        "drain_timeout_ms",
        "express",
        "heartbeat_interval_ms",
        "hold_window_ms",
        "http_allowed_hosts",
        "http_max_requests",
        "http_max_watches",
        "http_port",
        "instance_id",
        "kafka_ca",
        "kafka_certificate",
        "kafka_credentials",
        "kafka_key",
        "kafka_oauth_scope",
        "kafka_oauth_token_url",
        "kafka_sasl_mechanism",
        "kafka_security_protocol",
        "lame_duck_ms",
        "log_level",
        "lookup_log_sample",
        "max_connections",
        "max_connections_per_address",
        "max_lookups",
        "max_message_bytes",
        "max_offsets",
        "max_warmup_replicas",
        "max_watches",
        "memory_store_max_bytes",
        "metrics_port",
        "node_port",
        "num_standby_replicas",
        "proxy",
        "rack",
        "record_cache_max_bytes",
        "replication_factor",
        "router",
        "router_metrics",
        "router_port",
        "router_rack",
        "schema_registry_ca",
        "schema_registry_credentials",
        "schema_registry_url",
        "security_rules",
        "session_timeout_ms",
        "sink_tasks",
        "source_wait_ms",
        "spark_conf",
        "spark_master",
        "state_cleanup_delay_ms",
        "state_dir",
        "stop_grace_ms",
        "stop_timeout_ms",
        "tls_ca",
        "tls_callers",
        "tls_certificate",
        "tls_crl",
        "tls_key",
        "tls_node_name",
        "tls_router_name",
        "workers",
    }
)
LATER: Final = {
    "engine": "a platform may lack the program, and a store of an unusual use may go better with the other engine",
    "drain_from_anywhere": "only the operator knows whether the network keeps strangers out",
    "http_max_requests_per_address": "callers behind a load balancer share its address",
    "http_max_watches_per_address": "callers behind a load balancer share its address",
    "max_watches_per_address": "callers behind a load balancer share its address",
    "verify_interval_ms": "it reads all replicas, and takes disk: only the operator knows whether that is wanted",
    "peer_bytes_per_s": "only the operator knows what the network and the disks have left",
    "early_promotions_max": "only the operator knows whether a device on the way refuses connections",
    "application_version": "two processors of one topology are different versions of it",
    "store_partitions": "a version has more partitions than the one before, with the same code",
    "require_signed_records": "only the operator knows when each process signs",
}


def test_there_are_these_settings_and_no_others() -> None:
    kinds = (*PROCESSES.values(), AssignPlanSettings, AttachSettings)
    assert {name for kind in kinds for name in kind.declared()} == FIRST | LATER.keys()
    assert len(FIRST) <= FIRST_MAX
    assert not FIRST & LATER.keys()
    assert all(LATER.values())
