"""A simulated query node: the real decisions, admission, lookups and replicas, around a simulated disk and network.

Real: `NodeOwnership`, `Admission`, `LookupEngine`, `TaskReplica`, `StoreReplica`, `KeyValueStore`, `restore_start`.
Simulated: what `QueryNode`, `TaskManager` and the replication threads do with files, threads and Kafka.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from query_service.admission import Admission
from query_service.checkpoint import Changelog as ChangelogFacts
from query_service.checkpoint import Checkpoint, restore_start
from query_service.lifecycle import NodeState, TaskState, role_changes
from query_service.lookup import LookupEngine
from query_service.ownership import NodeOwnership, active_tasks, states_of_wanted, with_dormant
from query_service.position_waits import PositionWaits
from query_service.replica import StoreReplica, TaskReplica
from query_service.stores.engine import Writes
from query_service.stores.key_value import KeyValueStore
from query_service.view import view_of
from statehouse.assignment import Assignment
from statehouse.errors import LookupFailure, Reason
from statehouse.membership import encode_member
from statehouse.topology import HeldId, Role, TaskId
from statehouse.v1 import query_service_pb2, types_pb2
from tests.simulation.checks import Checks
from tests.simulation.kafka import Changelog, Follower, Kafka
from tests.simulation.settings import SimulationSettings
from tests.simulation.world import KAFKA, WALL_S, Process, World

PORT = 7101
_RESTORE_STEP_S = 0.1
_DRAIN_POLL_S = 0.1
_RETRY_S = 1.0
_HEARTBEAT_AT_ONCE_S = 0.005
_FETCHED = 500
_TALLY = SimpleNamespace(add=lambda _started, _size: None)
_UNCOUNTED: Any = SimpleNamespace(
    applied=lambda *_arguments, **_options: None, skipped=lambda: None, reads=defaultdict(lambda: _TALLY)
)
_UNHEARD: Any = SimpleNamespace(on_task_state=lambda *_arguments: None)


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


class _MemoryEngine:
    """An engine over a dictionary."""

    def __init__(self, entries: dict[bytes, bytes], checkpoint: Checkpoint) -> None:
        self._entries, self._checkpoint = entries, checkpoint

    def get(self, _family: str, key: bytes) -> bytes | None:
        return self._entries.get(key)

    def write(self, writes: Writes, checkpoint: Checkpoint) -> None:
        for entries in writes.values():
            for key, value in entries:
                if value is None:
                    self._entries.pop(key, None)
                else:
                    self._entries[key] = value
        self._checkpoint = checkpoint

    def checkpoint(self) -> Checkpoint:
        return self._checkpoint

    def open_views(self) -> int:
        return 0

    def statistics(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        pass


class SimulatedNode(Process):
    """One process of a node."""

    def __init__(
        self, world: World, kafka: Kafka, checks: Checks, machine: Machine, settings: SimulationSettings
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
        self.replicas: dict[HeldId, TaskReplica] = {}
        self.running_since: dict[HeldId, float] = {}
        self.active_since: dict[HeldId, float] = {}
        self.is_listening = True
        self.is_stopping = False
        self._assignment = Assignment()
        self._wanted: Mapping[HeldId, Role] = {}
        self._driven: set[HeldId] = set()
        self._heartbeat_is_due = False
        host = types_pb2.Host(instance_id=self.instance_id, host=machine.name, port=PORT)
        self.admission = Admission(host, self.replicas, self.is_confirmed)
        self._lookups = LookupEngine(
            self.admission, cast(Any, None), cast(Any, None), max_batch_entries=1_000, max_message_bytes=1_000_000
        )
        self.waits = PositionWaits(max_waits=100, longest_s=1.0)
        self._assignment_log = Follower(
            self, kafka.assignments, self._assignment_record, confirm_interval_s=settings.heartbeat_interval_s / 2
        )
        self._members_log = Follower(self, kafka.members, self._member_record, on_contact=self.ownership.succeed)
        world.note(self.name, "starts, incarnation {}, started_at_ms {}", incarnation, self.ownership.started_at_ms)
        self.later(0.05, self._heartbeat_forever)
        self.later(settings.confirm_interval_s, self._ask_for_ends)
        self.later(settings.checkpoint_interval_s, self._save_forever)

    @property
    def instance_id(self) -> str:
        return self.ownership.instance_id

    @property
    def session_timeout_s(self) -> float:
        return self._settings.session_timeout_s

    def is_confirmed(self) -> bool:
        return self.ownership.is_confirmed(self._assignment_log.silence_s)

    # The control topics, as in QueryNode.

    def _assignment_record(self, key: bytes, value: bytes | None, _written_at: float) -> None:
        assignment = self.ownership.take_assignment(key, value)
        if assignment is None:
            return
        self._checks.taken(self.name, assignment)
        self._compile_view()
        self._assign(assignment, self.ownership.wanted)
        self._task_changed()
        self._checks.believes(self)

    def _member_record(self, key: bytes, value: bytes | None, _written_at: float) -> None:
        if self.ownership.take_member(key, value):
            self._compile_view()
        newer = self.ownership.superseded_by
        if newer is not None and not self.is_stopping:
            self.world.counts["superseded"] += 1
            self.world.note(self.name, "superseded by incarnation {}", newer.incarnation)
            self.stop(drain=False)

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
        if not self.ownership.is_silent and self.is_listening:
            self.send(KAFKA, partial(self._kafka.members.append, [self._member_record_of_now()]), may_be_late=True)

    def _member_record_of_now(self) -> tuple[bytes, bytes]:
        held = {task: replica.report() for task, replica in self.replicas.items() if isinstance(task, TaskId)}
        dormant = {
            task: {store: checkpoint.position for store, checkpoint in stores.items()}
            for task, stores in self.at.disk.items()
            if task not in held
        }
        reports = with_dormant(held, dormant)
        return encode_member(self.ownership.heartbeat((self.machine, PORT), reports, {}, rack=self.at.rack))

    # The tasks, as in TaskManager.

    def _assign(self, assignment: Assignment, wanted: Mapping[HeldId, Role]) -> None:
        self._assignment, self._wanted = assignment, wanted
        changes = role_changes({task: replica.role for task, replica in self.replicas.items()}, wanted)
        for task, role in changes.items():
            self.replicas[task].role = role
            if role is Role.ACTIVE:
                self.active_since[task] = self.world.now
        for task in {**self._wanted, **self.replicas}:
            self._drive(task)

    def _is_settled(self, task: HeldId) -> bool:
        replica = self.replicas.get(task)
        if replica is None or task not in self._wanted:
            return replica is None and task not in self._wanted
        return replica.holds(self._assignment.partitions_of(task))

    def _drive(self, task: HeldId) -> None:
        """Take the next step towards what is wanted of a task, unless one is under way."""
        if task in self._driven or self._is_settled(task):
            return
        self._driven.add(task)
        if task in self.replicas:
            replica = self.replicas[task]
            if replica.state is not TaskState.CREATED:
                replica.to(TaskState.SUSPENDED)
            self.later(self.world.rng.uniform(0.01, 0.1), self._close, replica)
        else:
            replica = TaskReplica(
                task, self._wanted[task], self._assignment.partitions_of(task), cast(Any, None), _UNHEARD
            )
            self.replicas[task] = replica
            self.active_since[task] = self.world.now
            self.later(self.world.rng.uniform(0.02, 0.3), self._open, replica)
        self._task_changed()

    def _step_done(self, task: HeldId) -> None:
        self._driven.discard(task)
        self._task_changed()
        self._drive(task)

    def _open(self, replica: TaskReplica) -> None:
        task = replica.task
        if not self.world.net.is_well(self.machine, KAFKA, self.world.now):
            self.later(_RETRY_S, self._open, replica)  # the broker must be asked for the log's ends
            return
        for spec, partition in replica.partitions:
            log = self._kafka.changelogs[spec.name, partition]
            checkpoint = self.at.disk.get(task, {}).get(spec.name) if isinstance(task, TaskId) else None
            facts = ChangelogFacts(spec.changelog_topic, "id", 0, log.end, None)
            start = restore_start(checkpoint, "", facts, int(self.world.time() * 1000))
            position = start.position or 0
            entries = {key: value for key in log.keys if (value := log.value_at(key, position)) is not None}
            place = Checkpoint(spec.changelog_topic, "id", position, int(self.world.time() * 1000))
            engine: Any = _MemoryEngine(entries, place)
            store = StoreReplica(
                spec,
                partition,
                KeyValueStore(engine),
                place,
                _UNCOUNTED,
                restored_to=log.end,
                ends_hold_s=self.session_timeout_s,
            )
            replica.stores[store.folder] = store
        replica.to(TaskState.RESTORING)
        self.world.note(self.name, "restores {} as {}", task, replica.role.name)
        self._restore(replica)
        self._step_done(task)

    def _restore(self, replica: TaskReplica) -> None:
        if not replica.is_in(TaskState.RESTORING):
            return
        budget = max(1, int(self.at.restore_records_per_s * _RESTORE_STEP_S))
        if self._is_in_touch():
            for store in replica.stores.values():
                log = self._log_of(store)
                if not store.restored and budget > 0:
                    budget -= self._read(store, budget)
                    # As at the partition's end: what is there at this moment has been read.
                    store.restored = store.following = store.position >= log.end
                elif store.restored:
                    self._read(store, _FETCHED)
        if all(store.following for store in replica.stores.values()):
            replica.to(TaskState.RUNNING)
            self.running_since[replica.task] = self.world.now
            self.world.note(self.name, "runs {} as {}", replica.task, replica.role.name)
            self.world.counts["restores"] += 1
            for store in replica.stores.values():
                self._log_of(store).watchers.append(partial(self._written, replica, store))
            self._save(replica)
            self._task_changed()
        else:
            self.later(_RESTORE_STEP_S, self._restore, replica)

    def _log_of(self, store: StoreReplica) -> Changelog:
        return self._kafka.changelogs[store.spec.name, store.partition]

    def _is_in_touch(self) -> bool:
        net = self.world.net
        return net.is_open(self.machine, KAFKA) and net.is_open(KAFKA, self.machine)

    def _read(self, store: StoreReplica, limit: int) -> int:
        records, position = self._log_of(store).read(store.position, limit)
        if records:
            store.apply(records, records[-1].offset + 1)
        store.reach(position)
        return len(records)

    def _written(self, replica: TaskReplica, store: StoreReplica) -> bool:
        """Something was written to the changelog: fetch it. False: this replica follows it no more."""
        if not self.is_alive or not replica.is_in(TaskState.RUNNING):
            return False
        if self.world.net.is_open(self.machine, KAFKA):
            self.world.net.send(KAFKA, self.machine, lambda: self.enter(self._fetched, replica, store))
        return True

    def _fetched(self, replica: TaskReplica, store: StoreReplica) -> None:
        if replica.is_in(TaskState.RUNNING):
            self._read(store, _FETCHED)

    def _ask_for_ends(self) -> None:
        """As `EndOffsetWatcher`: learn the ends; they are of the moment of asking, or later."""
        asked_at, wall_ms = self.world.now, int(self.world.time() * 1000)
        self.later(self._settings.confirm_interval_s, self._ask_for_ends)
        stores = [
            (replica, store)
            for replica in self.replicas.values()
            if replica.is_in(TaskState.RUNNING, TaskState.RESTORING)
            for store in replica.stores.values()
        ]

        def answer() -> None:
            ends = [self._log_of(store).end for _, store in stores]
            self.world.net.send(KAFKA, self.machine, lambda: self.enter(learn, ends))

        def learn(ends: list[int]) -> None:
            for (replica, store), end in zip(stores, ends, strict=True):
                if replica.is_in(TaskState.RUNNING, TaskState.RESTORING):
                    store.note_end(end, asked_at, wall_ms)
                    if store.position < end and replica.is_in(TaskState.RUNNING):
                        self._read(store, _FETCHED)

        if stores:
            self.send(KAFKA, answer)

    def _close(self, replica: TaskReplica) -> None:
        if isinstance(replica.task, TaskId) and replica.stores:
            self._save(replica)
        replica.to(TaskState.CLOSED)
        del self.replicas[replica.task]
        self._forget(replica.task)
        self.world.note(self.name, "closed {}", replica.task)
        self._step_done(replica.task)

    def _forget(self, task: HeldId) -> None:
        self.running_since.pop(task, None)
        self.active_since.pop(task, None)

    def _save(self, replica: TaskReplica) -> None:
        """Write what is on disk: the places of the stores."""
        if isinstance(replica.task, TaskId):
            self.at.disk[replica.task] = {store.spec.name: store.save_checkpoint() for store in replica.stores.values()}

    def _save_forever(self) -> None:
        for replica in self.replicas.values():
            if replica.is_in(TaskState.RUNNING):
                self._save(replica)
        self.later(self._settings.checkpoint_interval_s, self._save_forever)

    def fail_task(self, task: HeldId, *, wiped: bool) -> None:
        """A task's disk or store breaks; it is closed and opened again later."""
        replica = self.replicas[task]
        replica.to(TaskState.ERROR, "broken by the simulation")
        self._forget(task)
        self._driven.add(task)
        self._task_changed()

        def retry() -> None:
            replica.to(TaskState.SUSPENDED)
            if wiped and isinstance(task, TaskId):
                self.at.disk.pop(task, None)
            replica.to(TaskState.CLOSED)
            del self.replicas[task]
            self._step_done(task)

        self.later(_RETRY_S, retry)

    def _task_changed(self) -> None:
        states = states_of_wanted(self._wanted, {task: replica.state for task, replica in self.replicas.items()})
        self.ownership.settle(states)
        self._heartbeat_soon()

    # Lookups.

    def handle(self, request: query_service_pb2.GetRequest) -> query_service_pb2.GetResponse:
        """Answer, and have the answer held against the truth.

        Raises:
            LookupFailure: it can't.

        """
        if self.ownership.state is NodeState.NOT_RUNNING:
            raise LookupFailure(Reason.NODE_SHUTTING_DOWN, "stopped")
        response = query_service_pb2.GetResponse.FromString(self._lookups.get(request))
        self._checks.answered(self, request, response)
        return response

    # The end.

    def stop(self, *, drain: bool) -> None:
        """End in order; with `drain`, once others are active for all our tasks, or the time is up."""
        if self.is_stopping:
            return
        self.is_stopping = True
        self.ownership.stop(drain=drain)
        self.ownership.enter(NodeState.PENDING_SHUTDOWN)
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
        self._assignment_log.close()
        self.later(self.world.rng.uniform(0.05, 0.3), self._end)

    def _end(self) -> None:
        for replica in self.replicas.values():
            if replica.is_in(TaskState.RUNNING):
                self._save(replica)
        self.ownership.enter(NodeState.NOT_RUNNING)
        if self._members_log.is_caught_up and not self.ownership.is_silent:
            tombstone = (self.instance_id.encode(), None)
            self.send(KAFKA, partial(self._kafka.members.append, [tombstone]), may_be_late=True)
        self._members_log.close()
        self.world.note(self.name, "has stopped")
        self.kill()

    def crash(self, *, loses_writes: bool, loses_disk: bool) -> None:
        """End at once. What was written since the last checkpoint may be lost, or the disk."""
        if not loses_writes:
            for replica in self.replicas.values():
                if replica.is_in(TaskState.RUNNING, TaskState.RESTORING):
                    self._save(replica)
        if loses_disk:
            self.at.disk.clear()
        self._assignment_log.close()
        self._members_log.close()
        self.world.note(self.name, "crashes{}{}", " losing writes" * loses_writes, " and its disk" * loses_disk)
        self.kill()
