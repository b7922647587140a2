"""Settings of the ownership controller."""

from __future__ import annotations

from dataclasses import dataclass

from processor.ownership.planning.model import PlannerSettings


@dataclass(frozen=True, slots=True)
class OwnershipSettings:
    """When a node counts as lost, and the pace of hand-overs: `PlanningSettings` in seconds.

    `PlanningSettings` has the defaults and bounds, and checks that the values fit together.
    """

    heartbeat_interval_s: float
    """How often nodes report; must be the same as in the nodes' settings."""
    session_timeout_s: float
    """A node that is silent for this long is dead. Lookups fall back to standbys long before that."""
    initial_rebalance_delay_s: float
    """How long the first plan waits for more nodes, so that a fleet that starts together is planned once."""
    linger_s: float
    """How long a replaced replica still answers."""
    flap_limit: int
    """A member with more ends of sessions than this within `flap_window_s` gets nothing new until it has been steady:
    for a session timeout the first time, twice as long each further time, at most for the window."""
    flap_window_s: float
    """How long the end of a session counts."""
    early_promotions_max: int
    """So many nodes at most are taken for gone within `flap_window_s` before their session timeout, and each of them
    `flap_limit` times at most; 0: none."""
    planner: PlannerSettings
