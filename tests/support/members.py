"""Members of a fleet that exist only as heartbeats."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType

from statehouse.contract.assignment import Assignment
from statehouse.contract.membership import Member, NodeState, ReplicaReport, StorePosition, TaskState
from statehouse.contract.topology import Role, TaskId


@dataclass
class FakeMember:
    """A node that holds what a test tells it to hold, as caught up as the test wants."""

    name: str
    store: str = "scores"
    rack: str = ""
    incarnation: str = "first"
    started_at_ms: int = 1_000
    state: str = NodeState.RUNNING
    capacity: int = 1
    epoch: int = 0
    beats: int = 0
    replicas: dict[TaskId, ReplicaReport] = field(default_factory=dict)

    def report(
        self,
        task: TaskId,
        position: int | None = 100,
        end: int | None = 100,
        state: str = TaskState.RUNNING,
        role: Role = Role.STANDBY,
    ) -> None:
        """Say something of a task from the next heartbeat on."""
        self.replicas[task] = ReplicaReport(role, state, MappingProxyType({self.store: StorePosition(position, end)}))

    def follow(self, assignment: Assignment, *, restored: bool = True) -> None:
        """Hold what the assignment says, restored immediately or not at all; what was lost stays on disk."""
        self.epoch = assignment.epoch
        assigned = assignment.tasks_of(self.name)
        for task, role in assigned.items():
            known = self.replicas.get(task)
            if restored:
                self.report(task, role=role)
            elif known is None:
                self.report(task, position=0, end=1_000_000, state=TaskState.RESTORING, role=role)
        for task in self.replicas.keys() - assigned.keys():
            self.report(task, state=TaskState.CLOSED, role=Role.DORMANT)

    def restart(self, state: str = NodeState.CREATED) -> None:
        """Become a newer process with the same disk."""
        self.incarnation += "+"
        self.started_at_ms += 1_000
        self.state, self.epoch, self.beats = state, 0, 0
        for task in self.replicas:
            self.report(task, state=TaskState.CLOSED, role=Role.DORMANT)

    def beat(self) -> Member:
        """The next heartbeat."""
        self.beats += 1
        return Member(
            self.name,
            self.incarnation,
            "localhost",
            9000,
            self.started_at_ms,
            self.rack,
            "test",
            self.state,
            self.epoch,
            self.beats,
            MappingProxyType(dict(self.replicas)),
            capacity=self.capacity,
        )
