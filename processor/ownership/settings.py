"""Settings of the ownership controller, and what an application declares to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import chain
from typing import Final

from processor.ownership.model import PlannerSettings
from statehouse.errors import ConfigurationError
from statehouse.serdes import serde
from statehouse.topology import KEY_VALUE, SESSION, STORE_KINDS, VERSIONED, WINDOW

_KIND = re.compile(r"[a-z][a-z0-9-]{0,63}")
# "windows" and "versions" are taken for slips, "count-min-sketch" isn't.
_SLIP_SIMILARITY: Final = 0.8
# What a built-in kind is told of time; a custom kind may be told all of it.
_TIMING: Final = {
    KEY_VALUE: (),
    WINDOW: ("retention_ms", "window_size_ms", "retain_duplicates"),
    SESSION: ("retention_ms",),
    VERSIONED: ("retention_ms",),
}


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
    flap_limit: int = 3
    """A member whose session has ended more often than this within `flap_window_s` is given nothing new until it has
    been steady: for a session timeout the first time, twice as long each further time, for the window at most."""
    flap_window_s: float = 600.0
    """How long the end of a session is remembered."""
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
        if self.flap_limit < 1:
            raise ConfigurationError("flap_limit must be at least 1, or a planned restart would hold a node back")
        if self.flap_window_s < self.session_timeout_s:
            raise ConfigurationError(
                f"flap_window ({self.flap_window_s:g} s) must be at least the session_timeout "
                f"({self.session_timeout_s:g} s), the first time that a member is held back for"
            )
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
    plug-in for it. `partition_count` 0: not known yet, what has the topics fills it in. Checked on creation, so that an
    application's code and a static topology are held to the same rules.
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
        fault = next(chain(self._faults_of_kind(), self._faults_of_timing(), self._faults_of_place()), None)
        if fault is not None:
            raise ConfigurationError(f"store {self.name}: {fault}")

    def _faults_of_kind(self) -> Iterator[str]:
        if _KIND.fullmatch(self.kind) is None:
            yield (
                f"kind {self.kind!r} must be one of {', '.join(STORE_KINDS)}, or the name of a plug-in of the nodes: "
                "lower-case letters, digits and '-'"
            )
        elif self.kind not in STORE_KINDS:
            for meant in get_close_matches(self.kind, STORE_KINDS, 1, _SLIP_SIMILARITY):
                yield f"kind {self.kind!r} is none of the built-in ones: write {meant!r}, or name the plug-in otherwise"

    def _faults_of_timing(self) -> Iterator[str]:
        if min(self.retention_ms, self.window_size_ms) < 0:
            yield "retention_ms and window_size_ms can't be negative"
        allowed = _TIMING.get(self.kind, _TIMING[WINDOW])
        extra = [name for name in _TIMING[WINDOW] if getattr(self, name) and name not in allowed]
        if extra:
            yield f"a {self.kind} store has no {', no '.join(extra)}: leave it out, or say which kind of store is meant"
        if self.kind in STORE_KINDS and self.kind != KEY_VALUE and self.retention_ms <= 0:
            yield f"a {self.kind} store needs a retention above 0 (retention_ms)"
        if self.kind == WINDOW and not 0 < self.window_size_ms <= self.retention_ms:
            yield (
                f"a window must last above 0 ms and at most the retention (window_size_ms is {self.window_size_ms}, "
                f"retention_ms {self.retention_ms})"
            )

    def _faults_of_place(self) -> Iterator[str]:
        if self.is_global and self.kind != KEY_VALUE:
            yield f"a global store is a key-value store, not a {self.kind} one"
        if self.is_global and self.ephemeral:
            yield (
                "a global store is read from its topic's start, an ephemeral one from its end: declare it as one of "
                "the two"
            )
        if self.ephemeral and self.kind == VERSIONED:
            yield (
                "the history of a versioned store would begin anew with every restart: it can't be ephemeral "
                "(logging=False)"
            )
