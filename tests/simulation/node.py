"""A simulated query node: the real decisions, admission, lookups and replicas, around a simulated disk and network.

Real: `NodeOwnership`, `TaskMachine`, `Admission`, `LookupHandler`, `TaskReplica`, `StoreReplica`, `KeyValueStore`,
`restore_start`, `IdleFolders`. Simulated: what `QueryNode`, the steps of tasks and the replication threads do with
files, threads and Kafka.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from query_service.reads.admission import Admission
from query_service.reads.first_batch import FirstBatches
from query_service.reads.fleet_view import view_of
from query_service.reads.lookups import LookupHandler
from query_service.reads.moments import ReplicaMoments
from query_service.reads.position_waits import PositionWaits
from query_service.replicas.replica import TaskReplica
from query_service.states.checkpoint import Checkpoint
from query_service.states.ownership import NodeOwnership, active_tasks, with_dormant
from query_service.states.task_events import Assigned, NodeStops
from statehouse.contract.assignment import Assignment
from statehouse.contract.committed_moments import CommittedMoments
from statehouse.contract.membership import NodeState, TaskState, encode_member
from statehouse.contract.processor_reports import ProcessorReports, written_at_s
from statehouse.contract.topology import AnyTaskId, TaskId
from statehouse.control.v1 import commits_pb2
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.deadline import RequestTimes
from statehouse.v1 import query_service_pb2, types_pb2
from tests.simulation.callers import RulesFile, SimulatedGate
from tests.simulation.checks import Checks
from tests.simulation.kafka import Follower, Kafka
from tests.simulation.settings import SimulationSettings
from tests.simulation.tasks import SimulatedTasks
from tests.simulation.world import KAFKA, WALL_S, Process, World, epoch_ms
from tests.support.inline import INLINE, ended

PORT = 7101
_DRAIN_POLL_S = 0.1
_CLEANUP_PAUSE_S = 1.0
_HEARTBEAT_AT_ONCE_S = 0.005


@dataclass
class Machine:
    """Where a node runs: its address, its disk, its wall clock. It outlives the node's processes.

    Without an instance id each process there is a dynamic member. `skew_s`: of the wall clock. `disk`: what a task's
    stores hold, as the places in their changelogs.
    """

    name: str
    instance_id: str
    rack: str = ""
    skew_s: float = 0.0
    restore_records_per_s: int = 1_000
    disk: dict[TaskId, dict[str, Checkpoint]] = field(default_factory=dict)

    @property
    def is_dynamic(self) -> bool:
        return not self.instance_id


class SimulatedNode(Process):
    """One process of a node."""

    def __init__(
        self,
        world: World,
        kafka: Kafka,
        checks: Checks,
        machine: Machine,
        settings: SimulationSettings,
        rules: RulesFile,
    ) -> None:
        incarnation = f"{world.rng.getrandbits(32):08x}"
        super().__init__(world, machine.name, f"{machine.name}/{incarnation[:3]}")
        self.at, self._kafka, self._checks, self._settings = machine, kafka, checks, settings
        self.ownership = NodeOwnership(
            machine.instance_id or f"{machine.name}-{incarnation[:4]}",
            incarnation,
            int((WALL_S + world.now + machine.skew_s) * 1000),
            session_timeout_s=settings.session_timeout_s,
            dynamic=machine.is_dynamic,
        )
        self.gate = SimulatedGate(self, rules, checks)
        self.is_listening = True
        self.is_stopping = False
        self.is_host_gone = False
        """Whether its host went down with it: nothing refuses connections in its place."""
        self.when_closed: list[Callable[[], None]] = []
        """Called when its connections are closed."""
        self.tasks = SimulatedTasks(self, kafka, settings.cleanup_delay_s, self._task_changed)
        self._heartbeat_is_due = False
        host = types_pb2.Host(instance_id=self.instance_id, host=machine.name, port=PORT)
        self.reports = ProcessorReports()
        self.commits_read = 0
        self.heard_at: dict[str, float] = {}
        """When the last report that was read for a store was written."""
        self.first_heard_at: dict[str, float] = {}
        """When the first one was read."""
        self.clock_was_behind_s = self.clock_was_ahead_s = 0.0
        first_batches = FirstBatches(self.reports.proven, lambda: self.commits_read > 0)
        self.moments = CommittedMoments()
        self.admission = Admission(
            host,
            self.replicas,
            self.is_confirmed,
            self.reports.latest,
            first_batches=first_batches,
            moments=ReplicaMoments(self.moments),
        )
        self._lookups = LookupHandler(
            self.admission,
            cast(Any, None),
            cast(Any, None),
            max_batch_entries=1_000,
            max_message_bytes=1_000_000,
            disk=INLINE,
        )
        self.waits = PositionWaits(RequestTimes(1.0, 60.0), max_waits=100)
        self._assignment_log = Follower(
            self,
            kafka.assignments,
            self._assignment_record,
            confirm_interval_s=settings.heartbeat_interval_s / 2,
            on_contact=self._assignment_read,
        )
        self._members_log = Follower(self, kafka.members, self._member_record, on_contact=self.ownership.succeed)
        world.note(self.name, "starts, incarnation {}, started_at_ms {}", incarnation, self.ownership.started_at_ms)
        self.later(0.05, self._heartbeat_forever)
        self.later(settings.confirm_interval_s, self._ask_for_ends)
        self.later(settings.checkpoint_interval_s, self._save_forever)
        self.later(_CLEANUP_PAUSE_S, self._clean_up_forever)

    @property
    def instance_id(self) -> str:
        return self.ownership.instance_id

    @property
    def session_timeout_s(self) -> float:
        return self._settings.session_timeout_s

    def is_confirmed(self) -> bool:
        return self.ownership.is_confirmed(self._assignment_log.silence_s)

    def confirmed_for_s(self) -> float:
        return self.ownership.confirmed_for_s(self._assignment_log.silence_s)

    # The control topics, as in QueryNode.

    def _assignment_record(self, key: bytes, value: bytes | None, _written_at: float) -> None:
        self._act_on(self.ownership.take_assignment(key, value))

    def _assignment_read(self) -> None:
        self._act_on(self.ownership.assignments_read())

    def _act_on(self, assignment: Assignment | None) -> None:
        if assignment is None:
            return
        self._checks.taken(self.name, assignment)
        self._compile_view()
        self.tasks.take(Assigned(assignment, self.ownership.wanted))
        self._task_changed()
        self._checks.believes(self)

    def _member_record(self, key: bytes, value: bytes | None, written_at: float) -> None:
        if self.ownership.take_member(key, value, epoch_ms(written_at), epoch_ms(self.world.now)):
            self._compile_view()
        newer = self.ownership.superseded_by
        if newer is not None and not self.is_stopping:
            self.world.counts["superseded"] += 1
            self.world.note(self.name, "superseded by incarnation {}", newer.incarnation)
            self.stop(drain=False)

    def take_commit(self, commit: commits_pb2.Commit, at: float) -> None:
        """Take a record of the commits topic, as in `ControlTopics`."""
        skew_s, now = self.at.skew_s, self.world.now
        self.clock_was_behind_s = max(self.clock_was_behind_s, -skew_s)
        self.clock_was_ahead_s = max(self.clock_was_ahead_s, skew_s)
        self.heard_at[commit.store] = at
        self.first_heard_at.setdefault(commit.store, now)
        self.moments.take(commit)
        timestamp_ms = int((WALL_S + at) * 1000)
        self.reports.take(commit, written_at_s(timestamp_ms, now, (WALL_S + now + skew_s) * 1000))

    def _compile_view(self) -> None:
        self.admission.view = view_of(self.ownership.assignment, self.ownership.members)

    def _heartbeat_forever(self) -> None:
        if self.is_listening:
            if self._members_log.is_caught_up:
                self._heartbeat()
                self.later(self._settings.heartbeat_interval_s, self._heartbeat_forever)
            else:
                self.later(0.05, self._heartbeat_forever)

    def _heartbeat_soon(self) -> None:
        if not self._heartbeat_is_due and self._members_log.is_caught_up:
            self._heartbeat_is_due = True
            self.later(_HEARTBEAT_AT_ONCE_S, self._heartbeat)

    def _heartbeat(self) -> None:
        self._heartbeat_is_due = False
        is_silent = self.ownership.is_silent and not self.ownership.owes_word
        if not is_silent and self.is_listening:
            self.send(KAFKA, partial(self._kafka.members.append, [self._member_record_of_now()]), may_be_late=True)

    def _member_record_of_now(self) -> tuple[bytes, bytes]:
        reports = {task: replica.report() for task, replica in self.replicas.items() if isinstance(task, TaskId)}
        reports = with_dormant(reports, self.tasks.machine.dormant)
        return encode_member(self.ownership.heartbeat((self.machine, PORT), reports, {}, rack=self.at.rack))

    # The tasks.

    @property
    def replicas(self) -> dict[AnyTaskId, TaskReplica]:
        return self.tasks.replicas

    @property
    def running_since(self) -> dict[AnyTaskId, float]:
        return self.tasks.running_since

    @property
    def active_since(self) -> dict[AnyTaskId, float]:
        return self.tasks.active_since

    def _ask_for_ends(self) -> None:
        """As `EndOffsetWatcher`: learn the ends; they are of the moment of asking, or later."""
        asked_at, wall_ms = self.world.now, int(self.world.time() * 1000)
        self.later(self._settings.confirm_interval_s, self._ask_for_ends)
        stores = self.tasks.stores(TaskState.RUNNING, TaskState.RESTORING)

        def answer() -> None:
            ends = [self.tasks.log_of(store).end for _, store in stores]
            self.world.net.send(KAFKA, self.machine, lambda: self.enter(learn, ends))

        def learn(ends: list[int]) -> None:
            for (replica, store), end in zip(stores, ends, strict=True):
                if replica.state in {TaskState.RUNNING, TaskState.RESTORING}:
                    store.note_end(end, asked_at, wall_ms)
                    if store.position < end and replica.state is TaskState.RUNNING:
                        self.tasks.read(store)

        if stores:
            self.send(KAFKA, answer)

    def _save_forever(self) -> None:
        self.tasks.checkpoints_due()
        self.later(self._settings.checkpoint_interval_s, self._save_forever)

    def _clean_up_forever(self) -> None:
        """As in `QueryNode`: not while a newer assignment may be there unseen."""
        if not self.is_stopping:
            if self.ownership.assignment is not None and self.is_confirmed():
                self.tasks.clean_up()
            self.later(_CLEANUP_PAUSE_S, self._clean_up_forever)

    def _task_changed(self) -> None:
        self.ownership.settle(self.tasks.machine.states)
        self._heartbeat_soon()

    # Lookups.

    def handle(self, request: query_service_pb2.GetRequest) -> query_service_pb2.GetResponse:
        """Answer, and have the answer held against the truth.

        Raises:
            LookupFailure: it can't.

        """
        if self.ownership.state is NodeState.NOT_RUNNING:
            raise LookupFailure(Reason.NODE_SHUTTING_DOWN, "stopped")
        answer = self.world.recorder.asked(self, request, self.answer)
        response = query_service_pb2.GetResponse.FromString(answer)
        self._checks.answered(self, request, response)
        return response

    def answer(self, request: query_service_pb2.GetRequest) -> bytes:
        """Answer a lookup.

        Raises:
            LookupFailure: it can't.

        """
        return ended(self._lookups.get(request))

    # The end.

    def stop(self, *, drain: bool) -> None:
        """End in order; with `drain`, once others are active for all our tasks, or the time is up."""
        if self.is_stopping:
            return
        self.is_stopping = True
        self.ownership.stop(drain=drain)
        self.ownership.enter(NodeState.PENDING_SHUTDOWN)
        if self.ownership.owes_word and self._members_log.is_caught_up:
            self._heartbeat()
            self.ownership.word_given()
        self._heartbeat_soon()
        self.world.note(self.name, "stops, {}", "draining" if drain else "at once")
        if drain:
            self._drain(self.world.now + self._settings.drain_timeout_s)
        else:
            self._shut_down()

    def _drain(self, give_up_at: float) -> None:
        held = active_tasks({task: replica.role for task, replica in self.replicas.items()})
        if held and self.world.now < give_up_at and self.ownership.superseded_by is None:
            self.later(_DRAIN_POLL_S, self._drain, give_up_at)
            return
        self.world.counts["drained" if not held else "drain given up"] += 1
        self._shut_down()

    def _shut_down(self) -> None:
        self.is_listening = False
        self._close_connections()
        self._assignment_log.close()
        self.tasks.take(NodeStops())
        self.later(self.world.rng.uniform(0.05, 0.3), self._end)

    def _end(self) -> None:
        if not self.tasks.is_idle:
            self.later(_DRAIN_POLL_S, self._end)
            return
        self.ownership.enter(NodeState.NOT_RUNNING)
        if self._members_log.is_caught_up and not self.ownership.is_silent:
            tombstone = (self.instance_id.encode(), None)
            self.send(KAFKA, partial(self._kafka.members.append, [tombstone]), may_be_late=True)
        self._members_log.close()
        self.world.note(self.name, "has stopped")
        self.kill()

    def _close_connections(self) -> None:
        for close in self.when_closed:
            close()
        self.when_closed.clear()

    def kill(self) -> None:
        super().kill()
        self._close_connections()
        self.world.recorder.ended(self)

    def crash(self, *, loses_writes: bool, loses_disk: bool, loses_host: bool = False) -> None:
        """End immediately. What was written since the last checkpoint may be lost, or the disk; or the host, too."""
        self.is_host_gone = loses_host
        if not loses_writes:
            self.tasks.save_all()
        if loses_disk:
            self.at.disk.clear()
        self._assignment_log.close()
        self._members_log.close()
        lost = " losing writes" * loses_writes + " and its disk" * loses_disk + " with its host" * loses_host
        self.world.note(self.name, "crashes{}", lost)
        self.kill()
