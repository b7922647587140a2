"""What a node owns and may say, decided without I/O: records of the control topics and times in, decisions out.

The counterpart of the controller's `OwnershipCore`. `QueryNode` reads and writes the topics around it, `TaskManager`
carries out what is wanted, `Admission` asks it which role an answer may claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from query_service.lifecycle import NodeState, TaskState, next_node_state, settled_state
from statehouse.assignment import Assignment, AssignmentReader
from statehouse.errors import StatehouseError
from statehouse.membership import GlobalReport, Member, ReplicaReport, StorePosition, decode_member
from statehouse.topology import HeldId, Role, TaskId

Positions = Mapping[str, int]
"""A task's positions, by store."""


class InstanceIdTaken(StatehouseError):
    """A newer process runs under this node's instance id."""

    def __init__(self, newer: Member) -> None:
        """Take the other's heartbeat."""
        super().__init__(
            f"another process runs under the instance id {newer.instance_id} since a later time: incarnation "
            f"{newer.incarnation} at {newer.host}:{newer.port}. This one has stopped. Give each node an instance id of "
            "its own, or none"
        )


class NodeOwnership:
    """One run of a node: what it has been told, and what follows from it.

    `reader` turns the assignment topic into snapshots, of which epochs never go back. `session_timeout_s`: how long a
    node that hears nothing may go on as what it was. `dynamic`: the instance id was made up for this run, and nobody
    will be back under it.
    """

    def __init__(
        self,
        instance_id: str,
        incarnation: str,
        started_at_ms: int,
        *,
        session_timeout_s: float,
        dynamic: bool = False,
        reader: AssignmentReader | None = None,
    ) -> None:
        self.instance_id, self.incarnation, self.started_at_ms = instance_id, incarnation, started_at_ms
        self.dynamic = dynamic
        self.state = NodeState.CREATED
        self.assignment: Assignment | None = None
        self.members: dict[str, Member] = {}
        self._reader = reader or AssignmentReader()
        self._session_timeout_s = session_timeout_s
        self._heartbeats = 0
        self._has_succeeded = False
        self._is_stopping = self._will_be_back = False

    @property
    def epoch(self) -> int:
        """Newest assignment epoch known, 0 before the first."""
        return 0 if self.assignment is None else self.assignment.epoch

    def take_assignment(self, key: bytes | None, value: bytes | None) -> Assignment | None:
        """Take a record of the assignment topic; return the assignment that it completes, if any."""
        following = self._reader.feed(key, value)
        if following is not None:
            self.assignment = following
        return following

    @property
    def wanted(self) -> Mapping[HeldId, Role]:
        """What the node is to hold, with its role in each."""
        return {} if self.assignment is None else self.assignment.held_by(self.instance_id)

    def take_member(self, key: bytes | None, value: bytes | None) -> bool:
        """Take a record of the members topic; return whether an address changed.

        Raises:
            ContractError: it can't be read, and changes nothing.

        """
        if value is None:
            self.members.pop((key or b"").decode(errors="replace"), None)
            return False
        member = decode_member(value)
        before = self.members.get(member.instance_id)
        self.members[member.instance_id] = member
        if member.instance_id == self.instance_id and not self._has_succeeded:
            # Any of them, not the last to write: one that was superseded may not have known it yet.
            self.started_at_ms = max(self.started_at_ms, member.started_at_ms + 1)
        return before is None or (before.host, before.port) != (member.host, member.port)

    def succeed(self) -> None:
        """Take the place of whoever had this instance id: the members topic has been read to its end.

        Every process found there is an earlier one, whatever the clocks say: one that was set back, or that runs ahead
        on another machine, must not make a new process look like the older one.
        """
        self._has_succeeded = True

    @property
    def superseded_by(self) -> Member | None:
        """The newer process that has this node's instance id, if there is one (KIP-345's fencing)."""
        member = self.members.get(self.instance_id)
        if member is None or member.incarnation == self.incarnation or not self._has_succeeded:
            return None
        return member if member.incarnation_order > (self.started_at_ms, self.incarnation) else None

    def stop(self, *, drain: bool) -> None:
        """Begin to end; the first call counts.

        A static member that is not drained may be back within its session timeout, and then nothing is to have moved:
        it says nothing of its end (KIP-345: static members send no leave). One that has failed can't hope for that.
        """
        if not self._is_stopping:
            self._is_stopping = True
            self._will_be_back = not (drain or self.dynamic or self.state is NodeState.ERROR)

    @property
    def is_silent(self) -> bool:
        """Whether nothing more is to be written to the members topic."""
        return self._will_be_back or self.superseded_by is not None

    def is_confirmed(self, silence_s: float | None) -> bool:
        """Whether a newer assignment can't have been published more than a session timeout ago unseen.

        `silence_s`: since the assignment topic was last known to be read to its end, None if it never was.
        """
        return silence_s is not None and silence_s < self._session_timeout_s

    def enter(self, state: NodeState) -> NodeState | None:
        """Change the state; return the one before, None if it is the same.

        Raises:
            InvalidTransition: it can't follow the present one.

        """
        if state is self.state:
            return None
        before, self.state = self.state, next_node_state(self.state, state)
        return before

    def settle(self, tasks: Iterable[TaskState]) -> NodeState | None:
        """Enter the state that follows from the tasks' states; return as `enter`."""
        return self.enter(settled_state(self.state, tasks, assigned=self.assignment is not None))

    def is_serving(self, tasks: Iterable[TaskState]) -> bool:
        """Whether lookups are welcome: while the node restores, as soon as one of its tasks runs."""
        if self.state is NodeState.REBALANCING:
            return TaskState.RUNNING in tasks
        return self.state is NodeState.RUNNING

    def heartbeat(
        self,
        address: tuple[str, int],
        replicas: Mapping[TaskId, ReplicaReport],
        global_replicas: Mapping[str, GlobalReport],
        *,
        rack: str = "",
        capacity: int = 1,
        version: str = "",
    ) -> Member:
        """Return what to tell the fleet now."""
        self._heartbeats += 1
        return Member(
            self.instance_id,
            self.incarnation,
            *address,
            self.started_at_ms,
            rack,
            version,
            self.state.value,
            self.epoch,
            self._heartbeats,
            MappingProxyType(dict(replicas)),
            MappingProxyType(dict(global_replicas)),
            capacity=capacity,
            dynamic=self.dynamic,
        )


def claimed_role(role: Role, *, confirmed: bool, epoch: int, requested_epoch: int) -> Role:
    """Return the role that an answer may claim.

    ACTIVE is claimed only by the newest epoch known, by a node that is confirmed, and never to a request that carries
    a newer epoch: whoever sent it may know of another active. A warm-up answers as a standby.
    """
    if role is Role.ACTIVE and (not confirmed or requested_epoch > epoch):
        return Role.STANDBY
    return Role.STANDBY if role is Role.WARM_UP else role


def states_of_wanted(wanted: Mapping[HeldId, Role], held: Mapping[HeldId, TaskState]) -> list[TaskState]:
    """Return the state of each replica; one that is still to be opened counts as created."""
    return [*held.values(), *(TaskState.CREATED for task in wanted if task not in held)]


def active_tasks(held: Mapping[HeldId, Role]) -> list[TaskId]:
    """Return the tasks that others are to take over before a drain is complete."""
    return sorted(task for task, role in held.items() if role is Role.ACTIVE and isinstance(task, TaskId))


def with_dormant(
    replicas: Mapping[TaskId, ReplicaReport], dormant: Mapping[TaskId, Positions]
) -> dict[TaskId, ReplicaReport]:
    """Return the reports of the replicas held, and of what else is on disk: coming back to it is cheap."""
    reports = {
        task: ReplicaReport(
            Role.DORMANT,
            TaskState.CLOSED.value,
            {store: StorePosition(position) for store, position in positions.items()},
        )
        for task, positions in dormant.items()
    }
    return {**reports, **replicas}
