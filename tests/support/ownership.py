"""The real ownership controller for a fleet of real processes, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from processor.ownership.controller import OwnershipController
from processor.ownership.declarations import StoreDeclaration
from processor.ownership.planning.model import Readiness, readiness_of
from processor.ownership.preview import preview
from processor.ownership.settings import OwnershipSettings
from processor.ownership.topics.observed import observe
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.membership import TaskState
from statehouse.contract.topology import TaskId
from statehouse.errors import LookupFailure
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.published import PublishedEpochs
from tests.support.settings import ownership

_READ_S = 20.0


class Controlled(PublishedEpochs):
    """What a controller of these stores publishes, and whether anything is to follow."""

    def __init__(self, fleet: Fleet, stores: Iterable[StoreDeclaration], settings: OwnershipSettings) -> None:
        super().__init__(fleet.bootstrap, fleet.application_id)
        self._stores = {(store.name, store.value_serde, store.in_memory) for store in stores}
        self._settings = settings

    @property
    def tasks(self) -> dict[TaskId, TaskAssignment]:
        """The tasks there are, with their holders; a sub-topology that lost its stores keeps its number only."""
        numbers = {spec.sub_topology for spec in self.assignment.stores.values()}
        return {task: holders for task, holders in self.assignment.tasks.items() if task.sub_topology in numbers}

    def is_at_rest(self) -> bool:
        """Whether the topics have these stores, say that every replica has caught up, and leave nothing to be planned.

        A replica that is restored answers, but has yet to learn where its log ends; that it has caught up is news.
        """
        try:
            fleet = observe(self.bootstrap, self.application_id, lambda _acting: self._settings, _READ_S)
        except LookupFailure:  # no assignment yet
            return False
        limit = self._settings.planner.acceptable_recovery_lag
        return (
            fleet.assignment.epoch == self.assignment.epoch
            and {(spec.name, spec.value_serde, spec.in_memory) for spec in fleet.assignment.stores.values()}
            == self._stores
            and all(
                node in fleet.nodes and readiness_of(fleet.nodes[node].replicas.get(task), limit) is Readiness.CAUGHT_UP
                for task, holders in fleet.tasks.items()
                for node in holders.replicas
            )
            and preview(fleet, {}, []).summary == "nothing to do"
        )


@contextmanager
def controller_of(
    fleet: Fleet,
    session_timeout_s: float = 2.0,
    *,
    beside: Iterable[StoreDeclaration] = (),
    num_standby_replicas: int = 1,
) -> Iterator[Controlled]:
    """Run the controller; the session timeout must be what the fleet's nodes have. Further stores may be given."""
    own = StoreDeclaration(STORE, "query", fleet.partitions, fleet.changelog, value_serde="string")
    own = replace(own, ephemeral=fleet.spec.ephemeral)
    settings = ownership(
        heartbeat_interval_ms=100,
        session_timeout_ms=round(session_timeout_s * 1000),
        num_standby_replicas=num_standby_replicas,
    )
    stores = [own, *beside]
    controller = OwnershipController(fleet.bootstrap, fleet.application_id, stores, settings)
    controller.start()
    try:
        with Controlled(fleet, stores, settings) as controlled:
            yield controlled
    finally:
        controller.stop()


def settled(controlled: Controlled, nodes: Mapping[str, ServerProcess], names: set[str]) -> bool:
    """Whether every task is held and run by two of these nodes, active counts are even, and nothing is to follow."""
    assert all(nodes[name].channel for name in names), "a process that has ended is said, with its log"
    assignment = controlled.assignment
    tasks = controlled.tasks
    if not tasks or any(len(task.replicas) != 2 or task.warm_ups for task in tasks.values()):
        return False
    actives = [task.active for task in tasks.values()]
    counts = [actives.count(name) for name in names]
    if max(counts) - min(counts) > 1 or not {name for task in tasks.values() for name in task.replicas} <= names:
        return False
    if not controlled.is_at_rest():
        return False
    replies = [nodes[name].node() for name in names]
    return all(
        reply.epoch == assignment.epoch
        and len(reply.tasks) == len(assignment.tasks_of(reply.host.instance_id))
        and all(task.state == TaskState.RUNNING for task in reply.tasks)
        for reply in replies
    )


def answered(router: ServerProcess, key: str, store: str = STORE) -> bool:
    """Whether the router finds a key."""
    try:
        return bool(router.get(key, store=store).found)
    except LookupFailure:
        return False
