"""Settings of the ownership controller, and what an application declares to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from processor.ownership.model import PlannerSettings
from statehouse.errors import ConfigurationError
from statehouse.topology import KEY_VALUE


@dataclass(frozen=True, slots=True)
class OwnershipSettings:
    """When a node counts as lost, and how hand-overs are paced. Checked on creation."""

    heartbeat_interval_s: float = 1.0
    """How often nodes report; must be what the nodes are set to."""
    session_timeout_s: float = 10.0
    """A node unheard of for so long is dead. Lookups fall back to standbys long before that."""
    initial_rebalance_delay_s: float = 1.0
    """How long the very first plan waits for more nodes, so that a fleet that starts together is planned once."""
    handover_linger_s: float | None = None
    """How long a replaced replica goes on answering; by default two heartbeat intervals."""
    planner: PlannerSettings = field(default_factory=PlannerSettings)

    def __post_init__(self) -> None:
        if self.heartbeat_interval_s <= 0:
            raise ConfigurationError("heartbeat_interval must be above 0")
        if self.session_timeout_s < 3 * self.heartbeat_interval_s:
            raise ConfigurationError(
                f"session_timeout ({self.session_timeout_s:g} s) must be at least three heartbeat intervals "
                f"({self.heartbeat_interval_s:g} s each), or one late heartbeat makes a live node count as dead"
            )
        if self.initial_rebalance_delay_s < 0 or self.linger_s < 0:
            raise ConfigurationError("initial_rebalance_delay and handover_linger can't be negative")
        planner = self.planner
        if min(planner.num_standby_replicas, planner.acceptable_recovery_lag) < 0:
            raise ConfigurationError("num_standby_replicas and acceptable_recovery_lag can't be negative")
        if planner.max_warmup_replicas < 1:
            raise ConfigurationError("max_warmup_replicas must be at least 1, or no task could ever be moved")

    @property
    def linger_s(self) -> float:
        """The hand-over linger in force."""
        return 2 * self.heartbeat_interval_s if self.handover_linger_s is None else self.handover_linger_s


@dataclass(frozen=True, slots=True)
class StoreDeclaration:
    """A store, as the application's code names it; its sub-topology's number is the controller's to give."""

    name: str
    query: str
    partition_count: int
    changelog_topic: str
    kind: str = KEY_VALUE
    key_serde: str = "string"
    value_serde: str = "json"
    in_memory: bool = False
    retention_ms: int = 0
    window_size_ms: int = 0
    retain_duplicates: bool = False
    is_global: bool = False
    ephemeral: bool = False
