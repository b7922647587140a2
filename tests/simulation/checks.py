"""What must always hold. Every assignment, belief and answer is compared with the simulator's truth.

The rules are written here independently, from docs/architecture.md, without code of the planner or of admission.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from processor.ownership.machine.takeover import ControllerRecord
from processor.ownership.planning.model import NodeView
from processor.ownership.settings import OwnershipSettings
from statehouse.contract.assignment import Assignment, AssignmentReader, TaskAssignment
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import AnyTaskId, Role, TaskId
from statehouse.control.v1 import commits_pb2
from statehouse.v1 import query_service_pb2, types_pb2
from tests.simulation.kafka import Kafka
from tests.simulation.world import Process, World

if TYPE_CHECKING:
    from tests.simulation.node import SimulatedNode

# Callers. What each may do is said here independently of the rules files that simulated processes read.
READER, ROUTER, GUEST, OTHER, STRANGER, ANONYMOUS = "reader", "router", "guest", "other", "stranger", "anonymous"
_READS = frozenset({"Get", "BatchGet", "Scan", "Watch"})
_MAY: Mapping[str, frozenset[str]] = {
    READER: _READS | {"Check"},
    ROUTER: _READS | {"Check", "GetFleet"},
    GUEST: _READS | {"Check"},  # now and then
    OTHER: frozenset({"Check"}),  # and read a store that isn't there
    STRANGER: frozenset(),
    ANONYMOUS: frozenset(),
}
_TAKEN_WITHIN_S = 2.0
"""A process that runs goes by changed rules within this time."""
_NOBODY = TaskAssignment()
# Answers have times in whole milliseconds, rounded down; and a wall clock in seconds, as a float, is not exact.
_ROUNDING_S = 0.001 + 1e-6


@dataclass(frozen=True)
class Knowledge:
    """What a controller knew when it planned. `waits`: for members or for the fleet to come up, so nothing was planned.

    `holders` are the members that it counted as live.
    """

    controller: str
    holders: Mapping[str, NodeView]
    waits: bool


class Checks:
    """All rules of one run, and what they have to remember."""

    def __init__(self, world: World, kafka: Kafka, ownership: OwnershipSettings) -> None:
        self._world, self._kafka = world, kafka
        self.linger_s, self.planner = ownership.linger_s, ownership.planner
        self.session_timeout_s = ownership.session_timeout_s
        self._reader = AssignmentReader()
        self.assignments: dict[int, tuple[float, Assignment]] = {}
        """Every published assignment by epoch, with the time of its publication."""
        self.current = Assignment()
        self.published_at = 0.0
        self._records: list[tuple[float, ControllerRecord]] = []
        self._followed_up: set[tuple[str, str]] = set()
        self._handed_over_at: dict[TaskId, float] = {}
        self._believers: dict[tuple[int, AnyTaskId], str] = {}
        self._reported_at: dict[str, float] = {}
        self._backlogs: dict[str, set[int | None]] = {}
        self._guest_may: list[tuple[float, bool]] = []

    # Callers.

    def rules_changed(self, *, guest_may: bool) -> None:
        """Take that everybody's rules file has been changed."""
        self._guest_may.append((self._world.now, guest_may))

    def decided(self, process: Process, who: str, method: str, *, is_forwarded: bool, is_allowed: bool) -> None:
        """Take whether a process lets somebody make a call."""
        name = method.rpartition("/")[2]
        if is_allowed and is_forwarded and name in _READS and who != ROUTER:
            self._broken("forwarding is believed from routers only", f"{process.name}, of {who}")
        may = name in _MAY[who] and not (is_forwarded and name in _READS and who != ROUTER)
        if may and who == GUEST:
            known = self._guest_may_at(process)
            if known is None:
                return
            may = known
        if may != is_allowed:
            rule = "who may call is not refused" if may else "who may not call is refused"
            self._broken(rule, f"{process.name}, {name} of {who}")

    def _guest_may_at(self, process: Process) -> bool | None:
        """Return whether a guest may read by the rules that a process must have; None if it may have several."""
        now = self._world.now
        if now - process.undisturbed_since < _TAKEN_WITHIN_S:
            return None
        # Those that were in force when the time began, and all that came then.
        began = max((at for at, _ in self._guest_may if at <= now - _TAKEN_WITHIN_S), default=0.0)
        found = {may for at, may in self._guest_may if at >= began}
        return found.pop() if len(found) == 1 else None

    # Assignments.

    def committed(self, records: list[tuple[bytes, bytes | None]], knowledge: Knowledge) -> None:
        """Take a transaction of the assignment topic, as it is committed."""
        before, following = self.current, None
        for key, value in records:
            following = self._reader.feed(key, value) or following
        if following is None:
            self._broken("epochs only grow", f"{knowledge.controller} published what no reader takes for an epoch")
            return
        now = self._world.now
        self.assignments[following.epoch] = (now, following)
        self.current, self.published_at = following, now
        self._world.counts["epochs published"] += 1
        self._world.note("kafka", "epoch {} by {}: {}", following.epoch, knowledge.controller, following.reason)
        for task, holders in following.tasks.items():
            was = before.tasks.get(task, _NOBODY)
            if holders != was:
                self._world.note("kafka", "  {} {} <- {}: {}", task, _shown(holders), _shown(was), holders.reason)
        if not knowledge.waits:
            self._check_plan(before, following, knowledge)
        for task, holders in following.tasks.items():
            was = before.tasks.get(task, _NOBODY)
            if was.active not in {None, holders.active}:
                self._world.counts["actives moved"] += 1
            if holders.active != was.active or set(holders.standbys) - set(was.standbys):
                self._handed_over_at[task] = now

    def controller_acts(self, record: ControllerRecord) -> None:
        """Take that the acting controller's record is committed."""
        self._records.append((self._world.now, record))

    def takes_over(self, who: str, contact_at: float, silent: ControllerRecord) -> None:
        """Take that a standby controller takes over; Kafka has last told it at `contact_at` that it has read all.

        Each may follow up one stop of another controller immediately, and once only: a faster one has time to write.
        """
        last_at = max((at for at, _ in self._records if at <= contact_at), default=0.0)
        if silent.has_stopped and (who, silent.controller) not in self._followed_up:
            self._followed_up.add((who, silent.controller))
            is_heard = last_at > next(at for at, record in self._records if record == silent)
        else:
            is_heard = contact_at - last_at < self.session_timeout_s - 1e-9
        if is_heard:
            self._broken(
                "a controller that is heard is left alone", f"{who} at {contact_at:.3f}, it was heard at {last_at:.3f}"
            )
        if self._world.now - contact_at > self.session_timeout_s:
            self._broken("who was out of touch takes nothing over", f"{who} knows what was at {contact_at:.3f}")

    def taken_for_gone(self, name: str, incarnation: str, nodes: Iterable[SimulatedNode]) -> None:
        """Take that a controller has others become active for a process's tasks before its session is over."""
        for node in nodes:
            if node.ownership.incarnation == incarnation and node.is_alive and node.is_listening:
                self._broken("who is taken for gone is gone", f"{name}, {node.name}{' frozen' * node.is_frozen}")

    def _check_plan(self, before: Assignment, following: Assignment, knowledge: Knowledge) -> None:
        live = knowledge.holders
        warm_ups = sum(len(holders.warm_ups) for holders in following.tasks.values())
        if warm_ups > self.planner.max_warmup_replicas:
            self._broken("warm-ups are bounded", f"{warm_ups} at epoch {following.epoch}")
        for number, sub in following.sub_topologies.items():
            if following.stores_of(number) and set(sub.tasks) - following.tasks.keys():
                self._broken("every task is assigned", f"sub-topology {number} at epoch {following.epoch}")
        for task, holders in following.tasks.items():
            was = before.tasks.get(task, _NOBODY)
            for fault in self._faults_of(task, was, holders, live):
                self._broken(fault, f"{task} {_shown(holders)} <- {_shown(was)} at epoch {following.epoch}")

    def _faults_of(
        self, task: TaskId, was: TaskAssignment, holders: TaskAssignment, live: Mapping[str, NodeView]
    ) -> Iterator[str]:
        """Yield the rules that the task's new holders break."""
        if not live:
            if holders != was:
                yield "with nobody there nothing moves"
            return
        if holders.active is None or holders.active not in live:
            yield "one live active while any node lives"
            return
        if len(set(holders.replicas)) < len(holders.replicas):
            yield "no node holds a task twice"
        if not set(holders.replicas) <= live.keys():
            yield "nobody is named who is gone"
        assigned = [node for node in was.replicas if node in live]
        ready = [node for node in assigned if self._is_caught_up(task, live[node])]
        if ready and not self._is_caught_up(task, live[holders.active]):
            yield "the active is caught up if an assigned replica is"
        if ready and not set(ready) & set(holders.replicas):
            yield "the last caught-up replica stays"
        yield from self._faults_of_hand_over(task, was, holders, live)

    def _faults_of_hand_over(
        self, task: TaskId, was: TaskAssignment, holders: TaskAssignment, live: Mapping[str, NodeView]
    ) -> Iterator[str]:
        """Yield the rules of make before break that are broken."""
        dropped = [node for node in was.replicas if node in live and node not in holders.replicas]
        if dropped and self._world.now - self._handed_over_at.get(task, 0.0) < self.linger_s - 1e-9:
            yield "a relieved replica lingers"
        if was.active in live and was.active != holders.active:
            if was.active not in holders.replicas:
                yield "make before break: the old active stays as standby"
            if holders.active not in was.replicas and any(task in view.replicas for view in live.values()):
                yield "make before break: the new active held the task before"

    def _is_caught_up(self, task: TaskId, node: NodeView) -> bool:
        view = node.replicas.get(task)
        return (
            view is not None
            and view.restored
            and view.lag is not None
            and view.lag <= self.planner.acceptable_recovery_lag
        )

    # Beliefs.

    def taken(self, who: str, assignment: Assignment) -> None:
        """Take that a reader has put an assignment together."""
        published = self.assignments.get(assignment.epoch)
        if published is None or published[1] != assignment:
            self._broken("an epoch's content is one thing", f"{who} read another epoch {assignment.epoch}")

    def believes(self, node: SimulatedNode) -> None:
        """Take what a node believes to be active for."""
        for task, role in node.ownership.wanted.items():
            if role is Role.ACTIVE:
                other = self._believers.setdefault((node.ownership.epoch, task), node.instance_id)
                if other != node.instance_id:
                    self._broken(
                        "one active a task and epoch",
                        f"{other} and {node.instance_id} for {task} at epoch {node.ownership.epoch}",
                    )

    # Answers.

    def answered(
        self,
        node: SimulatedNode,
        request: query_service_pb2.GetRequest,
        response: query_service_pb2.GetResponse,
    ) -> None:
        """Take an answer at the moment it is given."""
        stamp, bound = response.replica, request.freshness
        key = request.key.text.encode()
        spec = self.current.stores[request.store]
        log = self._kafka.changelogs[request.store, stamp.partition]
        where = f"{node.name} for {request.store}/{request.key.text} at epoch {stamp.epoch}"
        if stamp.partition != partition_for(key, spec.partition_count):
            self._broken("a key is looked for in its partition", where)
        if stamp.position > log.end or not response.replica.HasField("position"):
            self._broken("positions are true", f"{where}: {stamp.position} of {log.end}")
        # What a reader sees is of the position that the answer carries, or of a later one.
        found = response.value.raw if response.found else None
        if found not in log.values_between(key, stamp.position, log.end):
            rule = "an existing key is found" if found is None else "an answer is of its position"
            self._broken(rule, f"{where}: {found!r} is not of position {stamp.position}")
        self._check_first_batch(log.first_batch_end, response, where)
        now = self._world.now
        if stamp.HasField("staleness_ms"):
            surely = now - stamp.staleness_ms / 1000 - _ROUNDING_S
            if stamp.position < log.end_at(surely):
                self._broken(
                    "staleness is true",
                    f"{where}: {stamp.staleness_ms} ms at {stamp.position}, the end was {log.end_at(surely)} then",
                )
        if stamp.HasField("lag"):
            surely = max(0.0, now - node.session_timeout_s - _ROUNDING_S)
            if stamp.position + stamp.lag < log.end_at(surely):
                self._broken(
                    "lag is true of a session timeout ago",
                    f"{where}: {stamp.lag} at {stamp.position}, the end was {log.end_at(surely)} then",
                )
        self._check_processor(node, request.store, stamp, where)
        self._check_bounds(request, stamp, where)
        if stamp.role == types_pb2.REPLICA_ROLE_ACTIVE:
            self._check_active(node, log.task, request.forwarding.epoch, stamp.epoch, where)
        elif bound.active_only:
            self._broken("active_only is answered by the active", where)

    def _check_first_batch(self, whole_at: int | None, response: query_service_pb2.GetResponse, where: str) -> None:
        position = response.replica.position
        if not response.found and (whole_at is None or position < whole_at):
            self._broken("nothing is absent before the first batch", f"{where}: {position} of {whole_at}")

    def reported(self, commit: commits_pb2.Commit, now: float) -> None:
        """Take a record that the processor writes."""
        backlog = commit.input_backlog if commit.HasField("input_backlog") else None
        self._reported_at[commit.store] = now
        self._backlogs.setdefault(commit.store, set()).add(backlog)

    def _check_processor(self, node: SimulatedNode, store: str, stamp: types_pb2.ReplicaStamp, where: str) -> None:
        if not stamp.HasField("processor_age_ms"):
            if store in node.heard_at or stamp.HasField("input_backlog"):
                self._broken("what is known of the processor is told", where)
            return
        told_s = stamp.processor_age_ms / 1000
        silent_s = self._world.now - self._reported_at[store]
        if told_s < silent_s - node.clock_was_behind_s - _ROUNDING_S:
            self._broken("the processor is not told to be younger than it is", f"{where}: {told_s} s, it is {silent_s}")
        heard_s = self._world.now - node.heard_at[store]
        if told_s > heard_s + node.clock_was_ahead_s + _ROUNDING_S:
            self._broken("the processor is not told to be older than was heard", f"{where}: {told_s} s of {heard_s}")
        backlog = stamp.input_backlog if stamp.HasField("input_backlog") else None
        if backlog not in self._backlogs[store]:
            self._broken("the input backlog was reported", f"{where}: {backlog}")

    def refused_by_age(self, node: SimulatedNode, request: query_service_pb2.GetRequest) -> None:
        """Take that a node has refused an answer because of the processor's age."""
        heard_at = node.heard_at.get(request.store)
        if heard_at is None:
            return
        oldest_s = self._world.now - heard_at + node.clock_was_ahead_s + _ROUNDING_S
        if oldest_s * 1000 < request.freshness.max_processor_age_ms:
            self._broken("nobody is refused for an age within the bound", f"{node.name}: {oldest_s} s at most")

    def _check_bounds(self, request: query_service_pb2.GetRequest, stamp: types_pb2.ReplicaStamp, where: str) -> None:
        bound = request.freshness
        if bound.HasField("max_staleness_ms") and not (
            stamp.HasField("staleness_ms") and stamp.staleness_ms <= bound.max_staleness_ms
        ):
            self._broken("max_staleness is kept", where)
        if bound.HasField("max_lag") and not (stamp.HasField("lag") and stamp.lag <= bound.max_lag):
            self._broken("max_lag is kept", where)
        if bound.HasField("max_processor_age_ms") and not (
            stamp.HasField("processor_age_ms") and stamp.processor_age_ms <= bound.max_processor_age_ms
        ):
            self._broken("max_processor_age is kept", where)
        if bound.HasField("max_input_backlog") and not (
            stamp.HasField("input_backlog") and stamp.input_backlog <= bound.max_input_backlog
        ):
            self._broken("max_input_backlog is kept", where)
        for seen in bound.at_least.positions:
            if seen.store == request.store and seen.partition == stamp.partition and stamp.position < seen.position:
                self._broken("a session never goes back", f"{where}: {stamp.position} after {seen.position}")

    def _check_active(self, node: SimulatedNode, task: TaskId, requested: int, claimed: int, where: str) -> None:
        self._world.counts["answers as active"] += 1
        if claimed < requested:
            self._broken("ACTIVE is not claimed at an epoch older than the request's", f"{where}, asked at {requested}")
        holders = self.assignments[claimed][1].tasks.get(task, _NOBODY)
        if holders.active != node.instance_id:
            self._broken("ACTIVE is claimed by the epoch's active", f"{where}: that is {holders.active}")
        for epoch, (published_at, assignment) in self.assignments.items():
            unseen_s = self._world.now - published_at
            relieved = assignment.tasks.get(task, _NOBODY).active != node.instance_id
            if epoch > claimed and relieved and unseen_s >= node.session_timeout_s:
                self._broken("ACTIVE is not claimed long after it was lost", f"{where}: lost with {epoch}")

    def _broken(self, rule: str, message: str) -> None:
        self._world.break_rule(rule, message)


def _shown(holders: TaskAssignment) -> str:
    return f"{holders.active}+{','.join(holders.standbys)}" + (
        f"~{','.join(holders.warm_ups)}" if holders.warm_ups else ""
    )
