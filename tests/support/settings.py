"""The processor's settings and their parts, for tests: settings that a test doesn't give have their defaults."""

from __future__ import annotations

from typing import Any, Final

from processor.ownership.declared_settings import ownership_settings
from processor.ownership.planning.model import PlannerSettings
from processor.ownership.settings import OwnershipSettings
from processor.run.queries import restart_policy
from processor.run.restarts import RestartPolicy
from processor.settings import ProcessorSettings
from tests.support.constants import settings_of

SINK_LIMITS: Final[dict[str, Any]] = {
    "transaction_timeout_s": 60.0,
    "write_timeout_s": 60.0,
}
"""What every sink's target needs."""


def ownership(**declared: Any) -> OwnershipSettings:
    """Return the ownership controller's settings."""
    return ownership_settings(settings_of(ProcessorSettings, **declared))


def planner(**declared: Any) -> PlannerSettings:
    """Return the planner's settings."""
    return ownership(**declared).planner


def policy(**declared: Any) -> RestartPolicy:
    """Return how often a query is started again."""
    return restart_policy(settings_of(ProcessorSettings, **declared))
