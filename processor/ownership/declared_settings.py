"""A controller's settings as they are declared, in milliseconds, and as it goes by them, in seconds."""

from __future__ import annotations

from processor.ownership.planning.model import PlannerSettings
from processor.ownership.settings import OwnershipSettings
from statehouse.settings import PlanningSettings


def ownership_settings(settings: PlanningSettings) -> OwnershipSettings:
    """Return what a controller goes by, as declared."""
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


def declared_settings(settings: OwnershipSettings) -> dict[str, int]:
    """Return settings as `PlanningSettings` declares them, by name; times are in milliseconds."""
    return {
        "heartbeat_interval_ms": _ms(settings.heartbeat_interval_s),
        "session_timeout_ms": _ms(settings.session_timeout_s),
        "initial_rebalance_delay_ms": _ms(settings.initial_rebalance_delay_s),
        "handover_linger_ms": _ms(settings.linger_s),
        "flap_limit": settings.flap_limit,
        "flap_window_ms": _ms(settings.flap_window_s),
        "num_standby_replicas": settings.planner.num_standby_replicas,
        "acceptable_recovery_lag": settings.planner.acceptable_recovery_lag,
        "max_warmup_replicas": settings.planner.max_warmup_replicas,
    }


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
