"""Routers that die or freeze under clients that know two of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.robustness.cluster import ClusterShape
from tests.robustness.history import History
from tests.robustness.run import Run, Size
from tests.robustness.scenario import SMALL, SMALL_SHAPE, Scenario
from tests.support.polling import poll_until

_READY_S: Final = 60.0


def lost_routers(size: Size, directory: Path) -> History:
    """Kill each of two routers and start it again; freeze one with its proxy, and the other without. Each client
    knows both as one gRPC target (round_robin, pings), and soon sends a lookup again that has no answer."""
    with Run("lost-routers", size, directory, routers_together=True) as run:
        first, second = run.cluster.routers
        for name in (first, second):
            with run.fault("router SIGKILL", name):
                run.cluster.routers[name].kill()
                run.wait_traffic(size.outage_s / 4)
                run.cluster.routers[name].start()
                _wait_back(run, name)
        # The pings fail, and all go to the other one.
        with run.fault("router frozen", first):
            with _frozen(run, first, proxy_too=True):
                run.wait_traffic(size.outage_s)
            _wait_back(run, first)
        # The proxy answers pings: every other attempt goes there until the end.
        with run.fault("router frozen, not its proxy", second):
            with _frozen(run, second, proxy_too=False):
                run.wait_traffic(size.outage_s / 2)
            _wait_back(run, second)
    return run.history


@contextmanager
def _frozen(run: Run, name: str, *, proxy_too: bool) -> Iterator[None]:
    """Freeze a router while in the context."""
    router = run.cluster.routers[name]
    (router.freeze if proxy_too else router.freeze_python)()
    try:
        yield
    finally:
        router.thaw()


def _wait_back(run: Run, name: str) -> None:
    """Wait until a router knows the assignment again."""
    epoch = run.cluster.assignment.epoch
    poll_until(lambda: run.cluster.router_epoch(name) == epoch, _READY_S, f"{name} to know epoch {epoch}")
    run.wait_traffic(run.size.calm_s)


SCENARIOS: Final = (
    Scenario(
        "lost-routers",
        "Routers killed and frozen, with two in each client's target",
        lost_routers,
        Size(ClusterShape(routers=2)),
        replace(SMALL, shape=replace(SMALL_SHAPE, routers=2)),
        gap_s=2,
    ),
)
