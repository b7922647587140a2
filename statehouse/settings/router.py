"""The settings of a router."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from statehouse.settings.common import ServerSettings
from statehouse.settings.declaration import SettingGroup, setting
from statehouse.settings.web import HttpSettings, RouterCallSettings


class RouterSettings(ServerSettings, RouterCallSettings, HttpSettings):
    """A router."""

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
        "How long the router goes on answering after SIGTERM, while health checks are told NOT_SERVING already: for "
        "balancers that take a moment to send calls elsewhere. SIGINT stops at once.",
        SettingGroup.ADDRESS,
        ge=0,
        le=300_000,
    )
    ready_silence_max_ms: int = setting(
        600_000,
        "A router that has not been in touch with Kafka for longer isn't ready: the health check named readiness is "
        "told NOT_SERVING. It answers all the same. 0 is no bound.",
        SettingGroup.ROUTING,
        ge=0,
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
    hedge_quantile: float = setting(
        0.95,
        "Share of the answers that come before a hedge is sent: a slower lookup goes to a second replica, too.",
        SettingGroup.ROUTING,
        gt=0,
        lt=1,
    )
    hedge_min_ms: int = setting(
        10, "Least delay before a hedge. From attempt_timeout_ms on there are no hedges.", SettingGroup.ROUTING, ge=0
    )
    retry_budget_percent: float = setting(
        10, "Most hedges and retries for 100 lookups, beside retry_budget_per_s.", SettingGroup.ROUTING, ge=0, le=100
    )
    retry_budget_per_s: float = setting(
        5, "Hedges and retries that may be sent in a second however few lookups there are.", SettingGroup.ROUTING, ge=0
    )
    express: bool = setting(
        True,
        "The proxy sends plain lookups to nodes by itself, as the router has decided. Not where callers are judged: "
        "security_rules, tls_crl, tls_ca.",
        SettingGroup.ROUTING,
    )
    max_lookups: int = setting(
        2_000,
        "Most lookups at once, each of a batch counted. Further ones are refused.",
        SettingGroup.ROUTING,
        ge=1,
    )
    router_max_batch_entries: int = setting(
        10_000,
        "Most lookups in one BatchGet at a router, which splits them into calls of 1000 to nodes.",
        SettingGroup.ROUTING,
        flag="--max-batch-entries",
        ge=1_000,
    )
    hold_window_ms: int = setting(
        10_000,
        "Longest time that lookups are held while nobody can answer them; at 0 they fail at once.",
        SettingGroup.ROUTING,
        ge=0,
    )
    hold_max: int = setting(1_000, "Most lookups held at once.", SettingGroup.ROUTING, ge=1)
    hold_min_interval_ms: int = setting(
        60_000, "Least time from the end of a partition's hold window to its next one.", SettingGroup.ROUTING, ge=0
    )
    max_watches: int = setting(
        1_000, "Most watches at once, of stores and of the fleet each.", SettingGroup.WATCHES, ge=0
    )
    max_watches_per_address: int | None = setting(
        None,
        "The same for one address. Callers behind a load balancer share its address: then give max_watches.",
        SettingGroup.WATCHES,
        unset="as many as are left for others",
        ge=1,
    )
    max_watched_partitions: int = setting(
        10_000,
        "Most partitions of all watches of stores: each of a watch has a stream from a node.",
        SettingGroup.WATCHES,
        ge=1,
    )
    watch_resume_timeout_ms: int = setting(
        60_000,
        "Longest time that a watch waits for a replica that can go on where the last one broke off.",
        SettingGroup.WATCHES,
        ge=1,
    )

    @model_validator(mode="after")
    def _workers_have_metrics_ports(self) -> Self:
        if self.metrics_port and self.metrics_port + self.workers - 1 > 65_535:
            raise ValueError(
                "each worker serves metrics on a port of its own, from metrics_port on: lower metrics_port"
            )
        return self
