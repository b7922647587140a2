"""Reads the state of the fleet from its topics; writes nothing, and disturbs no controller."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from processor.ownership.declarations import StoreDeclaration
from processor.ownership.machine.numbering import numbered
from processor.ownership.machine.sessions import MemberSessions
from processor.ownership.machine.takeover import ControllerRecord
from processor.ownership.planning.model import NodeView
from processor.ownership.settings import OwnershipSettings
from processor.ownership.topics.controller_record import read_controller
from statehouse.contract.assignment import CONTROLLER_KEY, Assignment, AssignmentReader, TaskAssignment
from statehouse.contract.membership import Member, decode_member
from statehouse.contract.topology import StoreSpec, TaskId, assignment_topic, members_topic
from statehouse.errors import ConfigurationError, ContractError, LookupFailure, Reason
from statehouse.kafka.control_read import read_to_ends
from statehouse.observability.unreadable_records import UnreadableRecords
from statehouse.runtime.brokers import Brokers


@dataclass(frozen=True, slots=True)
class ObservedFleet:
    """An assignment, and the nodes that were live when it was read, as the controller sees them.

    It doesn't know which nodes are held back for flapping: only the controller counts the ends of sessions.
    """

    application_id: str
    assignment: Assignment
    nodes: Mapping[str, NodeView]
    settings: OwnershipSettings
    """What the controller is taken to plan by."""

    @property
    def tasks(self) -> dict[TaskId, TaskAssignment]:
        """All tasks with their holders; a sub-topology without stores has no tasks."""
        numbers = {spec.sub_topology for spec in self.assignment.stores.values() if not spec.is_global}
        return {task: holders for task, holders in self.assignment.tasks.items() if task.sub_topology in numbers}

    @property
    def ephemeral(self) -> frozenset[TaskId]:
        """The tasks with ephemeral stores."""
        numbers = {spec.sub_topology for spec in self.assignment.stores.values() if spec.ephemeral}
        return frozenset(task for task in self.assignment.tasks if task.sub_topology in numbers)


def observe(
    brokers: Brokers | str,
    application_id: str,
    settings_by: Callable[[ControllerRecord | None], OwnershipSettings],
    timeout_s: float,
) -> ObservedFleet:
    """Read the assignment topic and the members topic to their ends.

    `settings_by` returns the settings, given the acting controller's record; None if there is none that can be read. A
    member is live if it wrote within the last session timeout, by its clock and this machine's.

    Raises:
        LookupFailure: UNREACHABLE, the topics could not be read in time; ROUTING_NOT_READY, there is no assignment.

    """
    skipped = UnreadableRecords()
    assignments = AssignmentReader(partial(skipped.note, "assignment"))
    members: dict[str, tuple[Member, int]] = {}
    acting: ControllerRecord | None = None

    def on_assignment(key: bytes | None, value: bytes | None, _timestamp_ms: int) -> None:
        nonlocal acting
        if key == CONTROLLER_KEY:
            acting = read_controller(value, acting, partial(skipped.note, "assignment"))
        else:
            assignments.feed(key, value)

    def on_member(key: bytes | None, value: bytes | None, timestamp_ms: int) -> None:
        name = (key or b"").decode(errors="replace")
        if value is None:
            members.pop(name, None)
            return
        try:
            members[name] = decode_member(key, value, timestamp_ms, int(time.time() * 1000)), timestamp_ms
        except ContractError as error:
            skipped.note("members", key, error)

    topics = {assignment_topic(application_id): on_assignment, members_topic(application_id): on_member}
    read_to_ends(brokers, topics, f"{application_id}-assign", timeout_s)
    if assignments.current is None:
        raise LookupFailure(
            Reason.ROUTING_NOT_READY, f"{application_id} has no assignment yet: start its processor, it publishes one"
        )
    settings = settings_by(acting)
    oldest_ms = time.time() * 1000 - settings.session_timeout_s * 1000
    live = [member for member, timestamp_ms in members.values() if timestamp_ms > oldest_ms]
    return ObservedFleet(application_id, assignments.current, _views(assignments.current, live, settings), settings)


def check_published(
    brokers: Brokers | str, application_id: str, declared: Iterable[StoreDeclaration], timeout_s: float
) -> None:
    """Check that the assignment has just the declared stores, for a processor that leaves it to another controller.

    Raises:
        ConfigurationError: it hasn't, or there is none, or it can't be read within `timeout_s`.

    """
    snapshots = AssignmentReader(partial(UnreadableRecords().note, "assignment"))

    def feed(key: bytes | None, value: bytes | None, _timestamp_ms: int) -> None:
        snapshots.feed(key, value)

    remedy = "start it once without --controller none: only a processor's own controller declares stores"
    try:
        read_to_ends(brokers, {assignment_topic(application_id): feed}, f"{application_id}-declared", timeout_s)
    except LookupFailure as failure:
        raise ConfigurationError(f"the assignment of {application_id} can't be read: {failure}") from failure
    published = snapshots.current or Assignment()
    specs, _ = numbered(declared, published.stores, published.sub_topologies)
    for name in sorted(specs.keys() | published.stores.keys()):
        if _declared(specs.get(name)) != _declared(published.stores.get(name)):
            raise ConfigurationError(f"store {name} is declared otherwise than published: {remedy}")


def _declared(spec: StoreSpec | None) -> StoreSpec | None:
    """Return what an application declares of a store: a controller of an earlier version says nothing of commits."""
    return None if spec is None else replace(spec, committed=False)


def _views(assignment: Assignment, live: list[Member], settings: OwnershipSettings) -> dict[str, NodeView]:
    """Make node views from members as the controller does."""
    sessions = MemberSessions(settings)
    sessions.use_stores(
        {number: tuple(spec.name for spec in assignment.stores_of(number)) for number in assignment.sub_topologies}
    )
    for member in live:
        sessions.hear(member, 0.0)
    sessions.start(0.0, [member.instance_id for member in live])
    return sessions.nodes()
