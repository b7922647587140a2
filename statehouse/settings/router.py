"""The settings of a router."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import model_validator

from statehouse.settings.common import ServerSettings
from statehouse.settings.declaration import SettingGroup, of_one_address, setting
from statehouse.settings.web import HttpSettings, RouterCallSettings


class RouterSettings(ServerSettings, RouterCallSettings, HttpSettings):
    """A router."""

    ready_silence_max_ms: ClassVar[int] = 600_000
    """A router out of touch with Kafka for longer isn't ready: its routes may be of another fleet by then."""
    hedge_quantile: ClassVar[float] = 0.95
    """Share of the answers that come before a hedge is sent: a twentieth of the lookups at most costs twice."""
    hedge_min_ms: ClassVar[int] = 10
    """Least delay before a hedge: below it a second question only adds load."""
    retry_budget_percent: ClassVar[float] = 10
    """Hedges and retries for 100 lookups: what failing nodes may add to the load of the others."""
    retry_budget_per_s: ClassVar[float] = 5
    """Hedges and retries in a second however few lookups there are, so that a single caller has some, too."""
    router_max_batch_entries: ClassVar[int] = 10_000
    """Lookups in one BatchGet at a router, which splits them into calls of 1000 to nodes: ten calls."""
    hold_max: ClassVar[int] = 1_000
    """Lookups that wait at the same time for a partition to be served again: half of max_lookups by default."""
    hold_min_interval_ms: ClassVar[int] = 60_000
    """Least time between two hold windows of a partition: a fleet that keeps failing must fail fast."""
    max_watched_partitions: ClassVar[int] = 10_000
    """Partitions of all watches of stores: each has a stream from a node."""
    watch_resume_timeout_ms: ClassVar[int] = 60_000
    """Longest time that a watch waits for a replica that can go on: several sessions of nodes."""

    verify_bytes_per_second: ClassVar[int] = 5_000_000
    """What each node reads in a second to compare replicas in the background: lookups hardly notice."""

    router_port: int = setting(
        7100, "Port to listen on; 0 takes a free one.", SettingGroup.ADDRESS, flag="--port", ge=0, le=65_535
    )
    workers: int = setting(
        1,
        "Processes that share the port. Each has max_lookups, max_watches and the retry budget for itself.",
        SettingGroup.ADDRESS,
        ge=1,
        le=64,
    )
    stop_grace_ms: int = setting(
        5_000, "How long calls under way may go on when the router stops.", SettingGroup.ADDRESS, ge=0
    )
    lame_duck_ms: int = setting(
        0,
        "How long the router goes on answering after SIGTERM, while health checks say NOT_SERVING already: for "
        "balancers that take a moment to send calls elsewhere. SIGINT stops immediately.",
        SettingGroup.ADDRESS,
        ge=0,
        le=300_000,
    )
    router_rack: str = setting(
        "",
        "The router's rack. Bounded reads that any replica may answer go to nodes in this rack first.",
        SettingGroup.ROUTING,
        flag="--rack",
    )
    attempt_timeout_ms: int = setting(
        250,
        "A node that has not answered by then may be given up for the next; it counts as silent.",
        SettingGroup.ROUTING,
        ge=1,
    )
    express: bool = setting(
        True,
        "The proxy sends plain lookups to nodes without the router, as it has decided.",
        SettingGroup.ROUTING,
    )
    max_lookups: int = setting(
        2_000,
        "Most lookups at the same time, each of a batch counted. Further ones are refused.",
        SettingGroup.ROUTING,
        ge=1,
    )
    hold_window_ms: int = setting(
        10_000,
        "Longest time that lookups are held while nobody can answer them; at 0 they fail immediately.",
        SettingGroup.ROUTING,
        ge=0,
    )
    verify_interval_ms: int = setting(
        0,
        "How often all replicas are compared with their changelogs in the background, as `statehouse verify` does; 0: "
        "never. One router does it for all.",
        SettingGroup.OBSERVABILITY,
        ge=0,
    )
    max_watches: int = setting(1_000, "Most open watches, of stores and of the fleet each.", SettingGroup.WATCHES, ge=0)
    max_watches_per_address: int | None = of_one_address("max_watches", SettingGroup.WATCHES)

    @model_validator(mode="after")
    def _workers_have_metrics_ports(self) -> Self:
        if self.metrics_port and self.metrics_port + self.workers - 1 > 65_535:
            raise ValueError(
                "each worker serves metrics on a port of its own, from metrics_port on: lower metrics_port"
            )
        return self
