"""A controller's settings as they are declared, in milliseconds, and as it goes by them, in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
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
# As declared, in milliseconds -> as a controller goes by it, in seconds.
_TIMES: Final = {
    "heartbeat_interval_ms": "heartbeat_interval_s",
    "session_timeout_ms": "session_timeout_s",
    "initial_rebalance_delay_ms": "initial_rebalance_delay_s",
    "handover_linger_ms": "linger_s",
    "flap_window_ms": "flap_window_s",
}
_COUNTS: Final = ("flap_limit", "early_promotions_max")
_PLANNED_BY: Final = [field.name for field in fields(PlannerSettings)]


def ownership_settings(settings: PlanningSettings) -> OwnershipSettings:
    """Return what a controller goes by, as declared."""
    return _settings({name: getattr(settings, name) for name in (*_TIMES, *_COUNTS, *_PLANNED_BY)})


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
    PlanningSettings(**{name: value for name, value in record.items() if name in declared})  # checks them
    if not (record["flap_limit"] and record["flap_window_ms"] >= record["session_timeout_ms"]):
        raise ConfigurationError("flap_limit must be at least 1, and flap_window_ms at least session_timeout_ms")
    return _settings(record)


def declared_settings(settings: OwnershipSettings) -> dict[str, int]:
    """Return settings as `PlanningSettings` declares them, by name; times are in milliseconds."""
    times = {declared: round(getattr(settings, ours) * 1000) for declared, ours in _TIMES.items()}
    return times | {name: getattr(settings, name) for name in _COUNTS} | asdict(settings.planner)


def _settings(declared: Mapping[str, int]) -> OwnershipSettings:
    return OwnershipSettings(
        **{ours: declared[name] / 1000 for name, ours in _TIMES.items()},
        flap_limit=declared["flap_limit"],
        early_promotions_max=declared["early_promotions_max"],
        planner=PlannerSettings(**{name: declared[name] for name in _PLANNED_BY}),
    )
