"""Outages of what nodes rely on: the broker, the driver, space on a disk."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import structlog

from statehouse.contract.assignment import Assignment
from statehouse.contract.membership import TaskState
from statehouse.errors import LookupFailure
from tests.robustness.cluster import RobustCluster
from tests.robustness.history import ACTIVE_ONLY, MAX_LAG, MAX_STALENESS, History
from tests.robustness.run import Run, Size
from tests.robustness.scenario import Scenario
from tests.support.fleet import ServerProcess
from tests.support.polling import poll_until
from tests.support.small_disk import fill, small_disk

log = structlog.get_logger(__name__)

_DISK_MB: Final = 64
_DEADLINE_S: Final = 60.0
BOUND_TO_BROKER: Final = (ACTIVE_ONLY, MAX_LAG, MAX_STALENESS)


def broker_and_driver(size: Size, directory: Path) -> History:
    """Stop the broker for longer than the session timeout; kill it and start it immediately. Then kill the driver, kill
    a node while there is none, and start both again."""
    with Run("broker-and-driver", size, directory) as run:
        cluster = run.cluster
        epoch = cluster.assignment.epoch
        # Nobody can prove to be active without the broker, nor how much was written meanwhile.
        with run.fault("broker down", "broker", may_fail=BOUND_TO_BROKER):
            cluster.broker.stop()
            run.wait_traffic(size.outage_s)
            cluster.broker.start()
            _wait_confirmed(run)
        with run.fault("broker SIGKILL", "broker", may_fail=BOUND_TO_BROKER):
            cluster.broker.kill()
            cluster.broker.start()
            _wait_confirmed(run)
        run.wait_traffic(size.shape.session_timeout_ms / 1000)
        assert cluster.assignment.epoch == epoch, f"moved without cause: {cluster.assignment.reason}"
        _lose_driver(run)
    return run.history


def _lose_driver(run: Run) -> None:
    """Kill the driver, and meanwhile a node; after the driver's restart that node's copies are moved, and no others."""
    cluster = run.cluster
    before = cluster.assignment
    lost = cluster.task(0).active or ""
    with run.fault("driver SIGKILL", "controller"):
        cluster.controller.kill()
        # Until the driver is back, no node becomes active instead.
        with run.fault("SIGKILL", lost, may_fail=(ACTIVE_ONLY,)):
            cluster.kill(lost)
            run.wait_traffic(run.size.shape.session_timeout_ms / 1000)
            assert cluster.assignment.epoch == before.epoch
            cluster.controller.start()
            cluster.wait_moved_from(lost)
            _check_moved(cluster, before, lost)
            cluster.wait_replicated()
        with run.fault("start", lost):
            cluster.restart(lost)
            cluster.wait_settled()


def _check_moved(cluster: RobustCluster, before: Assignment, lost: str) -> None:
    """Check that a lost node's copies were moved, and no others."""
    for task, was in before.tasks.items():
        now = cluster.assignment.tasks[task]
        kept = set(was.replicas) - {lost}
        assert kept <= set(now.replicas), f"{task} was on {was.replicas} and is on {now.replicas}"
        assert now.active in kept, f"{now.active} is active for {task}, which {kept} had"


def standby_controller(size: Size, directory: Path) -> History:
    """Kill the driver, then a node: a standby controller takes over and replaces the node. Start the driver again,
    which takes over in turn, then the node."""
    with Run("standby-controller", size, directory) as run:
        cluster = run.cluster
        standby = cluster.start_standby_controller()
        before = cluster.assignment
        lost = cluster.task(0).active or ""
        within_s = size.succession * size.shape.session_timeout_ms / 1000
        with run.fault("driver SIGKILL", "controller"):
            cluster.controller.kill()
            with run.fault("SIGKILL", lost, may_fail=(ACTIVE_ONLY,)):
                cluster.kill(lost)
                killed_at = time.monotonic()
                cluster.wait_moved_from(lost, within_s)
                log.info("replaced by a standby controller", after_s=f"{time.monotonic() - killed_at:.1f}")
                _check_moved(cluster, before, lost)
                cluster.wait_settled()
        with run.fault("driver start", "controller"):
            epoch = cluster.assignment.epoch
            cluster.controller.start()
            poll_until(lambda: "FENCED" in standby.log, _DEADLINE_S, "the driver to take over")
            run.wait_traffic(2 * size.shape.session_timeout_ms / 1000)
            assert cluster.assignment.epoch == epoch, f"moved without cause: {cluster.assignment.reason}"
        with run.fault("start", lost):
            cluster.restart(lost)
            cluster.wait_settled()
    return run.history


def full_disk(size: Size, directory: Path) -> History:
    """Fill the disk of one node until its tasks stop, and give the space back."""
    with ExitStack() as disks:
        disk = disks.enter_context(small_disk(directory / "small-disk", _DISK_MB))

        def start_node(cluster: RobustCluster, name: str) -> ServerProcess:
            return cluster.node(name, state_dir=disk) if name == "n1" else cluster.node(name)

        with Run("full-disk", size, directory, start_node) as run:
            cluster = run.cluster
            # The active of its tasks is not asked until they are moved.
            with run.fault("disk full", "n1", may_fail=(ACTIVE_ONLY,)):
                filler = fill(disk)
                stopped = poll_until(lambda: _errors(cluster, "n1"), _DEADLINE_S, "tasks of n1 to stop")
                assert all("no space left on device" in error.lower() for error in stopped), stopped
                for name in set(cluster.nodes) - {"n1"}:
                    assert not _errors(cluster, name)
                run.wait_traffic(size.outage_s)
                filler.unlink()
                cluster.wait_settled()
    return run.history


def _errors(cluster: RobustCluster, name: str) -> list[str]:
    """Return why tasks of a node have stopped."""
    return [task.error for task in cluster.nodes[name].node().tasks if task.state == TaskState.ERROR]


def _wait_confirmed(run: Run) -> None:
    """Wait until the actives of all partitions claim to be."""
    cluster = run.cluster
    router = next(iter(cluster.routers.values()))
    keys = {cluster.partition_of(key): key for key in run.keys.existing}

    def are_confirmed() -> bool:
        try:
            return all(router.get(key, active_only=True, max_staleness_ms=1_000) for key in keys.values())
        except LookupFailure:
            return False

    poll_until(are_confirmed, _DEADLINE_S, "every partition to have an active that proves to be it")


SCENARIOS: Final = (
    Scenario(
        "broker-and-driver",
        "The broker down and killed; the driver killed, and then a node",
        broker_and_driver,
        Size(outage_s=15),
        gap_s=1,
    ),
    Scenario(
        "standby-controller",
        "The driver killed, then a node, with a standby controller",
        standby_controller,
        Size(),
        gap_s=1,
    ),
    Scenario(
        "full-disk",
        "The disk of a node full, and space again",
        full_disk,
        Size(outage_s=15),
        gap_s=1,
    ),
)
