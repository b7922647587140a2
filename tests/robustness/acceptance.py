"""Restarts, new nodes, lost nodes and bounces, as they happen to a fleet in an ordinary week."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.robustness.history import ACTIVE_ONLY, History
from tests.robustness.run import Run, Size
from tests.robustness.scenario import SMALL_SHAPE, Scenario


def rolling_restart(size: Size, directory: Path) -> History:
    """Restart nodes one by one in order, then add some, then remove one."""
    with Run("rolling-restart", size, directory) as run:
        cluster = run.cluster
        for name in list(cluster.nodes)[: size.restarts]:
            with run.fault("restart", name):
                cluster.stop(name)
                cluster.restart(name)
                cluster.wait_settled()
        _grow(run)
        with run.fault("remove", "n1"):
            cluster.stop("n1")
            cluster.wait_settled()
    return run.history


def killed_nodes(size: Size, directory: Path) -> History:
    """The same with SIGKILL: each node stays away until its tasks have been moved and have all their copies again."""
    with Run("killed-nodes", size, directory) as run:
        cluster = run.cluster
        for name in list(cluster.nodes)[: size.restarts]:
            kill_for_good(run, name)
            with run.fault("start", name):
                cluster.restart(name)
                cluster.wait_settled()
        _grow(run)
        kill_for_good(run, "n1")
        cluster.wait_settled()
    return run.history


def static_bounce(size: Size, directory: Path) -> History:
    """Stop nodes by SIGINT and start them immediately: they are back within the session timeout, and nothing is
    moved."""
    with Run("static-bounce", size, directory) as run:
        cluster = run.cluster
        epoch = cluster.assignment.epoch
        for name in list(cluster.nodes)[: size.restarts]:
            with run.fault("bounce", name, may_fail=(ACTIVE_ONLY,)):
                cluster.interrupt(name)
                cluster.restart(name)
                cluster.wait_replicated()
            assert cluster.assignment.epoch == epoch, f"epoch {cluster.assignment.epoch} follows the bounce of {name}"
        run.wait_traffic(2 * size.shape.heartbeat_interval_ms / 1000)
        assert cluster.assignment.epoch == epoch, f"epoch {cluster.assignment.epoch} follows the bounces"
    return run.history


def _grow(run: Run) -> None:
    """Add nodes, one by one."""
    for _ in range(run.size.added):
        with run.fault("add", f"n{len(run.cluster.nodes) + 1}"):
            run.cluster.add_node()
            run.cluster.wait_settled()


def kill_for_good(run: Run, name: str) -> None:
    """Kill a node and wait until others have its tasks; nobody is active for them for a moment."""
    with run.fault("SIGKILL", name, may_fail=(ACTIVE_ONLY,)):
        run.cluster.kill(name)
        run.cluster.wait_moved_from(name)
        run.cluster.wait_replicated()


SCENARIOS: Final = (
    Scenario(
        "rolling-restart",
        "Every node restarted in order, two added, one removed",
        rolling_restart,
        Size(),
        p99_ms=50,
    ),
    Scenario(
        "killed-nodes",
        "Every node killed and started again, two added, one killed for good",
        killed_nodes,
        Size(),
        gap_s=1,
        limit_s=420,
    ),
    Scenario(
        "static-bounce",
        "Nodes stopped by SIGINT and started within the session timeout",
        static_bounce,
        Size(restarts=2),
        # Nothing waits for the session to end: it may be long enough for any machine.
        Size(
            replace(SMALL_SHAPE, session_timeout_ms=30_000),
            rate=60,
            writes=40,
            restarts=1,
            calm_s=0.5,
        ),
    ),
)
