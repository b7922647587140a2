"""The settings of a run, drawn from its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from processor.ownership.declarations import StoreDeclaration
from processor.ownership.declared_settings import ownership_settings
from processor.ownership.settings import OwnershipSettings
from statehouse.settings import PlanningSettings
from tests.support.constants import settings_of


@dataclass(frozen=True)
class SimulationSettings:
    """One run's fleet, application and pace. Times are in simulated seconds."""

    nodes: int
    routers: int
    racks: tuple[str, ...]
    stores: tuple[StoreDeclaration, ...]
    ownership: OwnershipSettings
    drain_timeout_s: float
    first_records: int
    """Records in each changelog before anything starts."""
    writes_per_s: float
    lookups_per_s: float
    faults_s: float
    """How long there are faults, after the fleet has come up."""
    heartbeat_interval_s: float = 1.0
    confirm_interval_s: float = 0.5
    checkpoint_interval_s: float = 3.0
    cleanup_delay_s: float = 600.0
    """How long idle state stays on a node's disk."""
    keys: int = 12
    """Keys of each store partition that are written to."""
    standby_controllers: int = 0
    driver_stays_away: bool = False
    """Whether no processor is started when the faults end, so that standby controllers have to do."""
    hold_window_s: float = 0.0
    """How long routers hold lookups that nobody can answer yet."""
    express: bool = False
    """Whether routers have proxies, which send plain lookups to nodes by themselves."""

    @property
    def session_timeout_s(self) -> float:
        return self.ownership.session_timeout_s

    @classmethod
    def drawn(cls, rng: random.Random, seed: int) -> SimulationSettings:
        """Draw them. Routers hold lookups in one run of four: what is held is not judged by its first two rounds.

        In two runs of three they have the express way.
        """
        nodes = rng.randint(3, 6)
        queries = rng.randint(1, 2)
        stores = []
        for query in range(queries):
            partitions = rng.randint(2 if queries == 1 else 1, 4 if queries == 2 else 8)
            for store in range(1 + (rng.random() < 0.25)):
                name = f"s{query}{'ab'[store]}"
                stores.append(StoreDeclaration(name, f"q{query}", partitions, f"app-{name}-changelog", committed=True))
        racks = ("a", "b", "c")[: rng.randint(2, 3)] if rng.random() < 0.3 else ("",)
        heartbeat_s = 1.0
        ownership = ownership_settings(
            settings_of(
                PlanningSettings,
                heartbeat_interval_ms=round(heartbeat_s * 1000),
                session_timeout_ms=rng.choice((3_000, 4_000, 6_000)),
                initial_rebalance_delay_ms=rng.choice((0, 500, 1_000)),
                handover_linger_ms=rng.choice((2_000, 2_000, 1_000, 4_000)),
                flap_window_ms=20_000,
                num_standby_replicas=rng.choice((0, 1, 1, 1, 2)),
                acceptable_recovery_lag=rng.choice((0, 20, 100)),
                max_warmup_replicas=rng.randint(1, 2),
                early_promotions_max=(0, 2, 20, 20, 20)[seed % 5],
            )
        )
        return cls(
            nodes,
            1 + (rng.random() < 0.15),
            racks,
            tuple(stores),
            ownership,
            drain_timeout_s=rng.choice((3.0, 10.0)),
            first_records=rng.choice((0, 50, 200, 600)),
            writes_per_s=rng.choice((0.5, 2.0, 6.0)),
            lookups_per_s=rng.choice((2.0, 5.0)),
            faults_s=rng.uniform(8.0, 20.0),
            heartbeat_interval_s=heartbeat_s,
            cleanup_delay_s=rng.choice((5.0, 15.0, 600.0)),
            standby_controllers=rng.choice((0, 1, 1, 2, 2)),
            driver_stays_away=rng.random() < 0.5,
            hold_window_s=0.0 if seed % 4 else 3.0,
            express=seed % 3 > 0,
        )
