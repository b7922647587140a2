"""A controller's settings as they are declared, in milliseconds, and as it goes by them, in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from processor.ownership.planning.model import PlannerSettings
from processor.ownership.settings import OwnershipSettings
from statehouse.errors import ConfigurationError
from statehouse.errors.checked import checked_count
from statehouse.settings import PlanningSettings

# So long a wait is endless, and a longer time can't be converted to seconds and back.
_TIME_MAX_MS: Final = 2**50
# Each is a place in a list for each node.
_FLAPS_MAX: Final = 1_000_000


def ownership_settings(settings: PlanningSettings) -> OwnershipSettings:
    """Return what a controller goes by, as declared."""
    return OwnershipSettings(
        heartbeat_interval_s=settings.heartbeat_interval_ms / 1000,
        session_timeout_s=settings.session_timeout_ms / 1000,
        initial_rebalance_delay_s=settings.initial_rebalance_delay_ms / 1000,
        linger_s=settings.handover_linger_ms / 1000,
        flap_limit=settings.flap_limit,
        flap_window_s=settings.flap_window_ms / 1000,
        planner=PlannerSettings(
            num_standby_replicas=settings.num_standby_replicas,
            acceptable_recovery_lag=settings.acceptable_recovery_lag,
            max_warmup_replicas=settings.max_warmup_replicas,
        ),
    )


def settings_of_record(record: Mapping[str, int]) -> OwnershipSettings:
    """Return what another controller goes by, as its record has it.

    A controller of an earlier version may have set what is constant today.

    Raises:
        ContractError: a time can't be one, or there can't be so many restarts.
        ConfigurationError: the settings can't work together.

    """
    for name, number in record.items():
        if name.endswith("_ms"):
            checked_count(name, number, _TIME_MAX_MS)
    checked_count("flap_limit", record["flap_limit"], _FLAPS_MAX)
    declared = PlanningSettings.declared().keys()
    made = ownership_settings(PlanningSettings(**{name: value for name, value in record.items() if name in declared}))
    if not (record["flap_limit"] and record["flap_window_ms"] >= record["session_timeout_ms"]):
        raise ConfigurationError("flap_limit must be at least 1, and flap_window_ms at least session_timeout_ms")
    return replace(
        made,
        initial_rebalance_delay_s=record["initial_rebalance_delay_ms"] / 1000,
        linger_s=record["handover_linger_ms"] / 1000,
        flap_limit=record["flap_limit"],
        flap_window_s=record["flap_window_ms"] / 1000,
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
