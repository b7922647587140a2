"""Decides what a node holds and which role it may claim. Control records and times go in, decisions come out; no I/O.

The counterpart of the controller's `OwnershipCore`. `QueryNode` reads and writes the control topics, `TaskManager`
carries out the decisions, `Admission` asks which role an answer may claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from query_service.states.lifecycle import next_state, settled_state
from statehouse.contract.assignment import Assignment, AssignmentReader
from statehouse.contract.epochs import is_newer
from statehouse.contract.membership import (
    STARTED_AHEAD_MAX_MS,
    GlobalReport,
    Member,
    NodeState,
    ReplicaReport,
    StorePosition,
    TaskState,
    decode_member,
)
from statehouse.contract.topology import AnyTaskId, Role, TaskId
from statehouse.errors import ContractError, StatehouseError

_CLOCKS_DIFFER_MAX_MS = 60 * 3_600_000
"""What this node claims must be believed by readers whose clocks are behind its own by so much."""

Positions = Mapping[str, int]
"""The positions of a task, by store."""


class InstanceIdTaken(StatehouseError):
    """A newer process uses this node's instance id."""

    def __init__(self, newer: Member) -> None:
        """Name the newer process in the message, from its heartbeat `newer`."""
        super().__init__(
            f"another process runs under the instance id {newer.instance_id} since a later time: incarnation "
            f"{newer.incarnation} at {newer.host}:{newer.port}. This one has stopped. Give each node an instance id of "
            "its own, or none"
        )


class NodeOwnership:
    """One run of a node: what it has read from the control topics, and what follows from it.

    `session_timeout_s` is how long a node that hears nothing may keep its roles. `dynamic` means that the instance id
    was made up for this run, and that no later process will have it. `reader` turns the assignment topic into
    snapshots; their epochs never go back.
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
        self._began_at_ms = started_at_ms
        self.dynamic = dynamic
        self.state = NodeState.CREATED
        self.assignment: Assignment | None = None
        self.members: dict[str, Member] = {}
        self._reader = reader or AssignmentReader()
        self._reader.begin()
        self._session_timeout_s = session_timeout_s
        self._heartbeats = 0
        self._has_succeeded = False
        self._rival: Member | None = None
        self.superseded_by: Member | None = None
        """The newer process that uses this node's instance id (fencing as in KIP-345). Its second heartbeat tells."""
        self._is_stopping = self._will_be_back = self._owes_word = False
        self._state_before_stop = self.state

    @property
    def epoch(self) -> int:
        """The newest known epoch of the assignment, 0 before the first."""
        return 0 if self.assignment is None else self.assignment.epoch

    def take_assignment(self, key: bytes | None, value: bytes | None) -> Assignment | None:
        """Handle a record of the assignment topic. Return the assignment that it completes, None if none.

        Nothing is complete before `assignments_read`: acting on an old assignment would remove the databases of stores
        that tasks got since then.
        """
        return self._taken(self._reader.feed(key, value))

    def assignments_read(self) -> Assignment | None:
        """Take that the assignment topic has been read to its end.

        The first time, return the newest assignment that existed at the start; None if there was none, and later on.
        """
        return self._taken(self._reader.end_reached())

    def assignments_begin_anew(self) -> None:
        """Take that the assignment topic was recreated or truncated, and is read from its beginning again.

        The node keeps what it holds. But it claims no role until the topic has an assignment: it can't know which of
        them are still its own.
        """
        self._reader.begin()

    def _taken(self, following: Assignment | None) -> Assignment | None:
        if following is not None:
            self.assignment = following
        return following

    @property
    def wanted(self) -> Mapping[AnyTaskId, Role]:
        """The tasks and global stores that the node should hold, with its role in each."""
        return {} if self.assignment is None else self.assignment.all_tasks_of(self.instance_id)

    def take_member(self, key: bytes | None, value: bytes | None, written_at_ms: int, now_ms: int) -> bool:
        """Handle a record of the members topic. Return whether the address of a member changed.

        `written_at_ms`: the record's timestamp, `now_ms`: this node's clock; epoch milliseconds.

        Raises:
            ContractError: the record can't be read, or can't be true; it changes nothing.

        """
        if value is None:
            name = (key or b"").decode(errors="replace")
            self.members.pop(name, None)
            if name == self.instance_id:
                self._rival = self.superseded_by = None
            return False
        member = decode_member(key, value, written_at_ms, now_ms)
        if not self._has_succeeded and member.instance_id == self.instance_id:
            latest_ms = self._began_at_ms + STARTED_AHEAD_MAX_MS - _CLOCKS_DIFFER_MAX_MS
            if member.started_at_ms >= latest_ms:
                # If this node said that it started even later, others would not believe it either.
                raise ContractError(f"it claims to have started at {member.started_at_ms}, long after this process")
        before = self.members.get(member.instance_id)
        self.members[member.instance_id] = member
        if member.instance_id == self.instance_id and not self._has_succeeded:
            # Every record counts, not only the last: a superseded process may write before it knows that it is.
            self.started_at_ms = max(self.started_at_ms, member.started_at_ms + 1)
        elif member.instance_id == self.instance_id and member.incarnation != self.incarnation:
            self._hear_rival(member)
        return before is None or (before.host, before.port) != (member.host, member.port)

    def succeed(self) -> None:
        """Take over the instance id. The node calls this once it has read the members topic to its end.

        Every process found in the topic is an earlier one, whatever the clocks say. A clock that was set back, or a
        clock of another machine that runs ahead, must not make a new process look older.
        """
        self._has_succeeded = True

    def _hear_rival(self, member: Member) -> None:
        """Take the heartbeat of another process under this instance id.

        A newer process goes on with its heartbeats. One record alone supersedes nobody: its writer may be no process.
        """
        rival = self._rival
        if member.incarnation_order <= (self.started_at_ms, self.incarnation):
            return
        if rival is not None and rival.incarnation == member.incarnation and rival.heartbeat != member.heartbeat:
            self.superseded_by = member
        if rival is None or member.incarnation_order >= rival.incarnation_order:
            self._rival = member

    def stop(self, *, drain: bool) -> None:
        """Start to shut down. Only the first call counts.

        A static member that is not drained may be back within its session timeout, and no task should move meanwhile.
        So it does not announce its end (KIP-345: static members send no leave), but says once that it will be back. A
        node in ERROR announces its end.
        """
        if not self._is_stopping:
            self._is_stopping = True
            self._state_before_stop = self.state
            self._will_be_back = self._owes_word = not (drain or self.dynamic or self.state is NodeState.ERROR)

    @property
    def is_silent(self) -> bool:
        """Whether the node must write nothing more to the members topic."""
        return self._will_be_back or self.superseded_by is not None

    @property
    def owes_word(self) -> bool:
        """Whether a silent node has one heartbeat left to write: that another process will be back."""
        return self._owes_word and self.superseded_by is None

    def word_given(self) -> None:
        """Take that this heartbeat is written."""
        self._owes_word = False

    def is_confirmed(self, silence_s: float | None) -> bool:
        """Whether this node has surely seen every assignment that was published more than a session timeout ago.

        `silence_s` is the time in seconds since the assignment topic was last known to be read to its end, None if it
        never was.
        """
        is_known = self.assignment is None or self._reader.is_current_of_log
        return is_known and silence_s is not None and silence_s < self._session_timeout_s

    def confirmed_for_s(self, silence_s: float | None) -> float:
        """Return for how many seconds more that will be so without news; 0 if it isn't."""
        return self._session_timeout_s - (silence_s or 0.0) if self.is_confirmed(silence_s) else 0.0

    def enter(self, state: NodeState) -> NodeState | None:
        """Change the node's state. Return the state before, None if the node is in `state` already.

        Raises:
            InvalidTransition: the node can't go from its present state to `state`.

        """
        if state is self.state:
            return None
        before, self.state = self.state, next_state(self.state, state)
        return before

    def settle(self, tasks: Iterable[TaskState]) -> NodeState | None:
        """Enter the state that follows from the tasks' states. Returns what `enter` returns."""
        return self.enter(settled_state(self.state, tasks, assigned=self.assignment is not None))

    def is_serving(self, tasks: Iterable[TaskState]) -> bool:
        """Whether the node accepts lookups. While it restores, it does as soon as one of its tasks runs."""
        if self.state is NodeState.REBALANCING:
            return TaskState.RUNNING in tasks
        return self.state is NodeState.RUNNING

    def is_ready(self, tasks: Iterable[TaskState]) -> bool:
        """Whether the node has restored all that it was assigned: the next node may be restarted now."""
        return self.state is NodeState.RUNNING and TaskState.ERROR not in tasks

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
        """Return the next heartbeat.

        Args:
            address: advertised host and port.
            replicas: reports of the tasks, dormant ones included.
            global_replicas: reports of the global stores, by store.
            rack: the node's rack, empty if it has none.
            capacity: the node's capacity, relative to other nodes.
            version: version of the program.

        """
        self._heartbeats += 1
        return Member(
            self.instance_id,
            self.incarnation,
            *address,
            self.started_at_ms,
            rack,
            version,
            # One that leaves would lose its tasks.
            (self._state_before_stop if self._will_be_back else self.state).value,
            self.epoch,
            self._heartbeats,
            MappingProxyType(dict(replicas)),
            MappingProxyType(dict(global_replicas)),
            capacity=capacity,
            dynamic=self.dynamic,
            returns=self._will_be_back,
        )


def claimed_role(role: Role, *, confirmed: bool, epoch: int, requested_epoch: int) -> Role:
    """Return the role that an answer may claim.

    Only a confirmed node claims ACTIVE, at the newest epoch that it knows, and never to a request that carries a newer
    epoch: the sender may know of another active. A warm-up answers as a standby.
    """
    if role is Role.ACTIVE and (not confirmed or is_newer(requested_epoch, epoch)):
        return Role.STANDBY
    return Role.STANDBY if role is Role.WARM_UP else role


def active_tasks(roles: Mapping[AnyTaskId, Role]) -> list[TaskId]:
    """Return the tasks that other nodes must take over before a drain is complete."""
    return sorted(task for task, role in roles.items() if role is Role.ACTIVE and isinstance(task, TaskId))


def with_dormant(
    replicas: Mapping[TaskId, ReplicaReport], dormant: Mapping[TaskId, Positions]
) -> dict[TaskId, ReplicaReport]:
    """Return the reports of held replicas and of dormant tasks, which this node would restore fast from its disk."""
    reports = {
        task: ReplicaReport(
            Role.DORMANT,
            TaskState.CLOSED,
            {store: StorePosition(position) for store, position in positions.items()},
        )
        for task, positions in dormant.items()
    }
    return {**reports, **replicas}
