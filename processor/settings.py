"""Makes the settings of single packages from the processor's settings.

`statehouse.settings` declares all settings once, for flags, variables, file and Python. Times here are in seconds.
"""

from __future__ import annotations

from processor.ownership.model import PlannerSettings
from processor.ownership.settings import OwnershipSettings
from processor.restarts import RestartPolicy
from statehouse.settings import ProcessorSettings


def ownership_settings(settings: ProcessorSettings) -> OwnershipSettings:
    """Return the settings of the ownership controller."""
    linger_ms = settings.handover_linger_ms
    return OwnershipSettings(
        heartbeat_interval_s=settings.heartbeat_interval_ms / 1000,
        session_timeout_s=settings.session_timeout_ms / 1000,
        initial_rebalance_delay_s=settings.initial_rebalance_delay_ms / 1000,
        linger_s=(2 * settings.heartbeat_interval_ms if linger_ms is None else linger_ms) / 1000,
        flap_limit=settings.flap_limit,
        flap_window_s=settings.flap_window_ms / 1000,
        planner=PlannerSettings(
            num_standby_replicas=settings.num_standby_replicas,
            acceptable_recovery_lag=settings.acceptable_recovery_lag,
            max_warmup_replicas=settings.max_warmup_replicas,
        ),
    )


def restart_policy(settings: ProcessorSettings) -> RestartPolicy:
    """Return how often a query that died is restarted."""
    return RestartPolicy(
        max_restarts=settings.max_query_restarts,
        window_s=settings.query_restart_window_ms / 1000,
        backoff_s=settings.query_restart_backoff_ms / 1000,
        backoff_max_s=settings.query_restart_backoff_max_ms / 1000,
    )


__all__ = ("ProcessorSettings", "ownership_settings", "restart_policy")
