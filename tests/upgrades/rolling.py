"""A rolling upgrade: the kinds of processes in an order, the processes of a kind one after the other, under traffic."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from tests.robustness.checker import Violation, check
from tests.robustness.cluster import ClusterShape
from tests.robustness.history import ACTIVE_ONLY
from tests.robustness.run import Run, Size
from tests.support.fleet import Build, ServerProcess
from tests.support.polling import poll_until
from tests.upgrades.moves import Move, most_moves, moves, restless
from tests.upgrades.scans import Scans

log = structlog.get_logger(__name__)

NODES: Final = "nodes"
ROUTERS: Final = "routers"
PROCESSOR: Final = "processor"
"""Without Spark: `process --static`, whose controller acts."""
CONTROLLER: Final = "controller"
"""The standby controller."""
_UPDATE: Final = "update "
_ACTS: Final = "ownership controller started"
_READY_S: Final = 120.0
_STOP_S: Final = 60.0

SIZE: Final = Size(
    ClusterShape(nodes=3, partitions=6, routers=2, heartbeat_interval_ms=500, session_timeout_ms=30_000),
    rate=300,
    writes=100,
    calm_s=2.0,
)


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What came of a rolling upgrade."""

    order: tuple[str, ...]
    lookups: int
    scans: int
    pages: int
    seconds: float
    moves: tuple[Move, ...]
    failed_scans: tuple[str, ...]
    violations: tuple[Violation, ...]
    longest_s: float
    """The longest time that a lookup took."""

    @property
    def needless(self) -> list[Move]:
        return [move for move in self.moves if not move.is_needed]

    @property
    def restless(self) -> dict[int, int]:
        """Updates of a process with more moves than the update of a node takes, and how many these were."""
        return restless(self.moves, most_moves(SIZE.shape.partitions, SIZE.shape.nodes))

    def __str__(self) -> str:
        return (
            f"{' > '.join(self.order)}: {self.seconds:.0f} s, {self.lookups} lookups, "
            f"the longest {self.longest_s:.2f} s, "
            f"{self.scans} scans of {self.pages} pages, {len(self.moves)} moves, {len(self.needless)} needless, "
            f"{len(self.failed_scans)} scans failed, {len(self.violations)} violations"
        )


class Rolling:
    """A fleet of one build under traffic and scans, in which `update` replaces all processes of a kind."""

    def __init__(self, directory: Path, build: Build, *, with_standby_controller: bool = False) -> None:
        self.run = Run("upgrade", SIZE, directory, routers_together=True)
        self.run.cluster.build = build
        self._with_standby_controller = with_standby_controller
        self._standby: ServerProcess | None = None
        self._order: list[str] = []
        self.upgrade: Upgrade | None = None

    @contextmanager
    def under_traffic(self) -> Iterator[None]:
        """Have traffic in the context; `upgrade` is there after it."""
        with self.run:
            if self._with_standby_controller:
                self._standby = self.run.cluster.start_standby_controller()
            with Scans(list(self.run.cluster.routers.values()), self.run.keys.existing) as scans:
                yield
        history = self.run.history
        self.upgrade = Upgrade(
            tuple(self._order),
            len(history.lookups),
            scans.scans,
            scans.pages,
            history.lookups[-1].due_at if history.lookups else 0.0,
            tuple(moves(history.epochs, history.faults)),
            tuple(scans.failed),
            tuple(check(history)),
            max((lookup.took_s for lookup in history.lookups), default=0.0),
        )
        log.info("upgraded", figures=str(self.upgrade))

    def update(self, kinds: Sequence[str], build: Build) -> None:
        """Replace all processes of these kinds by those of a build, in this order."""
        for kind in kinds:
            self._order.append(f"{kind} to {build.name}")
            {
                NODES: self._update_nodes,
                ROUTERS: self._update_routers,
                PROCESSOR: self._update_processor,
                CONTROLLER: self._update_standby,
            }[kind](build)

    def update_node(self, name: str, build: Build) -> None:
        """Replace a node: it hands over, leaves, and comes back."""
        cluster = self.run.cluster
        with self.run.fault(_UPDATE + NODES, name):
            cluster.stop(name)
            cluster.nodes[name].build = build
            cluster.restart(name)
            cluster.wait_settled()

    def bounce_node(self, name: str, build: Build) -> None:
        """Kill a node and start it as another build: it is back within the session timeout, and catches up."""
        cluster = self.run.cluster
        with self.run.fault(_UPDATE + NODES, name, may_fail=(ACTIVE_ONLY,)):
            cluster.kill(name)
            cluster.nodes[name].build = build
            cluster.restart(name)
            cluster.wait_caught_up(name)

    def restart_processor(self, build: Build) -> None:
        """End the processor if it runs, start another build's, and wait until its controller acts."""
        process = self.run.cluster.controller
        known = process.log.count(_ACTS)
        self.begin_processor(build)
        poll_until(lambda: process.log.count(_ACTS) > known, _READY_S, "the controller to act")

    def begin_processor(self, build: Build) -> None:
        """End the processor if it runs, and start another build's."""
        process = self.run.cluster.controller
        if process.is_running:
            process.stop(signal.SIGTERM, _STOP_S)
        process.build = build
        process.start()

    def _update_nodes(self, build: Build) -> None:
        for name in list(self.run.cluster.nodes):
            self.update_node(name, build)

    def _update_routers(self, build: Build) -> None:
        cluster = self.run.cluster
        for name, router in cluster.routers.items():
            with self.run.fault(_UPDATE + ROUTERS, name):
                router.stop(signal.SIGTERM, _STOP_S)
                router.build = build
                router.start()
                poll_until(
                    lambda name=name: cluster.router_epoch(name) == cluster.assignment.epoch,  # type: ignore[misc]
                    _READY_S,
                    f"{name} to know the assignment",
                )
                self.run.wait_traffic(SIZE.calm_s)

    def _update_processor(self, build: Build) -> None:
        with self.run.fault(_UPDATE + PROCESSOR, "processor"):
            self.restart_processor(build)
            self.run.cluster.wait_settled()

    def _update_standby(self, build: Build) -> None:
        assert self._standby is not None
        with self.run.fault(_UPDATE + CONTROLLER, "standby"):
            self._standby.stop(signal.SIGTERM, _STOP_S)
            self.run.cluster.build = build
            self._standby = self.run.cluster.start_standby_controller(f"standby-{len(self._order)}")
            self.run.cluster.wait_settled()
