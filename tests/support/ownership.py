"""The real ownership controller for a fleet of real processes, without Spark around it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from processor.ownership.controller import OwnershipController
from processor.ownership.model import PlannerSettings, Standing, standing_of
from processor.ownership.settings import OwnershipSettings, StoreDeclaration
from statehouse.errors import LookupFailure
from tests.support.fleet import STORE, Fleet, ServerProcess


@contextmanager
def controller_of(
    fleet: Fleet,
    session_timeout_s: float = 2.0,
    *,
    beside: Iterable[StoreDeclaration] = (),
    num_standby_replicas: int = 1,
) -> Iterator[OwnershipController]:
    """Run the controller; the session timeout must be what the fleet's nodes have. `beside`: further stores."""
    own = StoreDeclaration(STORE, "query", fleet.partitions, fleet.changelog, value_serde="string")
    planner = PlannerSettings(num_standby_replicas=num_standby_replicas)
    controller = OwnershipController(
        fleet.bootstrap,
        fleet.application_id,
        [own, *beside],
        OwnershipSettings(heartbeat_interval_s=0.1, session_timeout_s=session_timeout_s, planner=planner),
    )
    controller.start()
    try:
        yield controller
    finally:
        controller.stop()


def _is_quiet(controller: OwnershipController) -> bool:
    """Whether it has heard of every replica that it has caught up, and wants nothing more.

    A replica that is restored answers, but has yet to learn where its log ends; that it has caught up is news.
    """
    views, limit = controller._core._sessions.nodes(), controller._core._settings.planner.acceptable_recovery_lag
    return controller._core.is_settled and all(
        node in views and standing_of(views[node].replicas.get(task), limit) is Standing.CAUGHT_UP
        for task, holders in controller.assignment.tasks.items()
        for node in holders.replicas
    )


def settled(controller: OwnershipController, nodes: Mapping[str, ServerProcess], names: set[str]) -> bool:
    """Whether every task is held and run by two of these nodes, active counts are even, and nothing is to follow."""
    assert all(nodes[name].channel for name in names), "a process that has ended is said, with its log"
    tasks = controller.assignment.tasks
    if not tasks or any(len(task.replicas) != 2 or task.warm_ups for task in tasks.values()):
        return False
    actives = [task.active for task in tasks.values()]
    counts = [actives.count(name) for name in names]
    if max(counts) - min(counts) > 1 or not {name for task in tasks.values() for name in task.replicas} <= names:
        return False
    if not _is_quiet(controller):
        return False
    replies = [nodes[name].node() for name in names]
    return all(
        reply.epoch == controller.assignment.epoch
        and len(reply.tasks) == len(controller.assignment.tasks_of(reply.host.instance_id))
        and all(task.state == "running" for task in reply.tasks)
        for reply in replies
    )


def answered(router: ServerProcess, key: str, store: str = STORE) -> bool:
    """Whether the router finds a key."""
    try:
        return bool(router.get(key, store=store).found)
    except LookupFailure:
        return False
