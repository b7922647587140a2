"""Settings of the ownership controller, and what an application declares to it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from processor.ownership.model import PlannerSettings
from statehouse.errors import ConfigurationError
from statehouse.serdes import serde
from statehouse.topology import KEY_VALUE, STORE_KINDS, WINDOW

_KIND = re.compile(r"[a-z][a-z0-9-]{0,63}")


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
    """A store as the application's code or a static topology names it; its sub-topology is the controller's to give.

    Fields are those of `StoreSpec`. A kind that isn't one of STORE_KINDS is a custom one: the nodes must have a
    plug-in for it. `partition_count` 0: not known yet, what has the topics fills it in. Checked on creation.
    """

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

    def __post_init__(self) -> None:
        for what, name in (("key", self.key_serde), ("value", self.value_serde)):
            try:
                serde(name)
            except ConfigurationError as error:
                raise ConfigurationError(f"store {self.name}: {what} serde: {error}") from error
        if _KIND.fullmatch(self.kind) is None:
            raise ConfigurationError(
                f"store {self.name}: kind {self.kind!r} must be one of {', '.join(STORE_KINDS)}, or the name of a "
                "plug-in of the nodes: lower-case letters, digits and '-'"
            )
        if self.kind in STORE_KINDS and self.kind != KEY_VALUE and self.retention_ms <= 0:
            raise ConfigurationError(f"store {self.name}: a {self.kind} store needs a retention above 0 (retention_ms)")
        if self.kind == WINDOW and not 0 < self.window_size_ms <= self.retention_ms:
            raise ConfigurationError(
                f"store {self.name}: a window must last above 0 ms and at most the retention (window_size_ms is "
                f"{self.window_size_ms}, retention_ms {self.retention_ms})"
            )
        if self.is_global and self.kind != KEY_VALUE:
            raise ConfigurationError(f"store {self.name}: a global store is a key-value store, not a {self.kind} one")
        if self.is_global and self.ephemeral:
            raise ConfigurationError(
                f"store {self.name}: a global store is read from its topic's start, an ephemeral one from its end: "
                "declare it as one of the two"
            )
