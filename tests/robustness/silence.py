"""Nodes that are frozen or cut off for longer than their session, and come back with their old view of the fleet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.robustness.history import ACTIVE_ONLY, History
from tests.robustness.networks import Namespaces
from tests.robustness.run import Run, Size
from tests.robustness.scenario import Scenario


def silent_nodes(size: Size, directory: Path) -> History:
    """Freeze an active (SIGSTOP); then cut one's network so that it hears and is not heard; then one's so that it is
    heard and hears nothing. Each comes back when others have long been active for its tasks."""
    with (
        Namespaces() as networks,
        Run("silent-nodes", size, directory, networks.start_node, networks.doors) as run,
    ):
        names = list(run.cluster.nodes)
        frozen = run.cluster.nodes[names[0]]
        _silence(run, "SIGSTOP", names[0], frozen.freeze, frozen.thaw, size.outage_s)
        unheard, deaf = networks.of[names[1]], networks.of[names[2]]
        _silence(run, "not heard", names[1], lambda: unheard.cut(incoming=False), unheard.heal, size.outage_s / 2)
        _silence(run, "hears nothing", names[2], lambda: deaf.cut(outgoing=False), deaf.heal, size.outage_s / 2)
    return run.history


def _silence(
    run: Run, kind: str, name: str, begin: Callable[[], None], end: Callable[[], None], seconds: float
) -> None:
    """Silence a node until its tasks are moved, and for some time at least.

    Nobody is active for its tasks until its session is over; other reads have a standby.
    """
    assert run.cluster.actives_of(name), f"{name} is active for nothing"
    with run.fault(kind, name, may_fail=(ACTIVE_ONLY,)):
        until = run.recorder.now + seconds
        begin()
        try:
            run.cluster.wait_moved_from(name)
            run.wait_traffic(max(0.0, until - run.recorder.now))
        finally:
            end()
        run.cluster.wait_settled()
        run.wait_complete()


SCENARIOS: Final = (
    Scenario(
        "silent-nodes",
        "An active frozen, another not heard, another hearing nothing",
        silent_nodes,
        Size(),
        gap_s=1,
    ),
)
