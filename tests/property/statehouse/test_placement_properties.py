"""Writers that place keys as they like: no absent key is called found, and no key that is there is called absent.

Real parts answer: replicas that check what they apply, nodes' admission and lookups, what members report, and the
router's lookups of one key. Only the network is missing. Each rule is then taken out, and the machine must notice.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from structlog.testing import capture_logs

from query_service.reads.admission import Admission
from query_service.reads.fleet_view import view_of
from query_service.reads.lookups import LookupHandler
from query_service.replicas.placement import PlacementCheck
from query_service.replicas.replica import StoreReplica, TaskReplica
from query_service.states.checkpoint import Checkpoint
from query_service.states.task_events import NodeTask
from query_service.stores.base import ChangelogRecord
from query_service.stores.key_value import KeyValueStore
from query_service.stores.memory_engine import MemoryEngine
from query_service.telemetry.metrics import NodeMetrics
from router.fleet.table import compile_table
from router.lookups import keyed
from router.lookups.dispatch import Call, NodeAnswer
from router.lookups.locate import keyed_call
from statehouse.contract.assignment import Assignment, TaskAssignment
from statehouse.contract.membership import (
    Member,
    NodeState,
    ReplicaReport,
    StorePosition,
    TaskState,
    decode_member,
    encode_member,
)
from statehouse.contract.partitioning import partition_for
from statehouse.contract.placement import FleetPlacements, StorePlacement, log_number
from statehouse.contract.topology import KEY_VALUE, SESSION, WINDOW, AnyTaskId, Role, StoreSpec, TaskId
from statehouse.errors import LookupFailure
from statehouse.keys.composite import SessionKey, WindowKey
from statehouse.rpc.deadline import Deadline
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.inline import INLINE, ended

PARTITIONS = 3
KEYS = ["a", "b", "c", "d"]
HOLDERS = {0: "n0", 1: "n1", 2: "n0"}
METRICS = NodeMetrics()


class Node:
    """A node that holds some partitions; `placements` is what it knows of the fleet since it was started."""

    def __init__(self, name: str, assignment: Assignment) -> None:
        self.name, self._assignment = name, assignment
        self.replicas: dict[AnyTaskId, TaskReplica] = {}
        self.restarted()

    def restarted(self) -> None:
        """Begin a new process."""
        self.placements, self.members = FleetPlacements(), dict[str, Member]()
        self.admission = Admission(types_pb2.Host(instance_id=self.name), self.replicas, lambda: True, {})
        nothing = cast("Any", None)
        self.lookups = LookupHandler(
            self.admission, nothing, METRICS, max_batch_entries=10, max_message_bytes=1_000_000, disk=INLINE
        )

    def hear(self, member: Member) -> None:
        """Take a heartbeat."""
        self.members[member.instance_id] = member
        self.placements.take(self.members)
        placements = self.placements.of(self._assignment.stores)
        self.admission.view = view_of(self._assignment, self.members, placements=placements)

    def heartbeat(self) -> Member:
        """Return what it reports, as it arrives."""
        reports = {task: replica.report() for task, replica in self.replicas.items() if isinstance(task, TaskId)}
        member = Member(self.name, "1", self.name, 1, state=NodeState.RUNNING, replicas=reports)
        return decode_member(*encode_member(member), 0, 0)


class PlacedFleet(RuleBasedStateMachine):
    """Logs that anybody writes, two nodes that follow them, and a router."""

    is_foreign = True

    def __init__(self) -> None:
        super().__init__()
        self.spec = StoreSpec("s", "t", PARTITIONS, 0, value_serde="string", foreign=self.is_foreign)
        tasks = {TaskId(0, partition): TaskAssignment(holder) for partition, holder in HOLDERS.items()}
        self.assignment = Assignment(1, stores=MappingProxyType({"s": self.spec}), tasks=MappingProxyType(tasks))
        self.now = 0
        self.logs: dict[int, list[ChangelogRecord]] = {partition: [] for partition in range(PARTITIONS)}
        self.nodes = {name: Node(name, self.assignment) for name in set(HOLDERS.values())}
        self.members: dict[str, Member] = {}
        self.placements = FleetPlacements()
        self.told: dict[int, set[str]] = {}
        """Per partition that was reported: the keys that were in it then."""
        for partition in HOLDERS:
            self._open(partition, KeyValueStore(MemoryEngine(1_000_000)))

    def _open(self, partition: int, store: KeyValueStore) -> None:
        checkpoint = store.checkpoint() or Checkpoint("t", "id", 0, 1, misplaced=0)
        replica = StoreReplica(self.spec, partition, store, checkpoint, METRICS.of("s", Role.ACTIVE))
        task = TaskId(0, partition)
        node_task = NodeTask(task, Role.ACTIVE, ((self.spec, partition),), TaskState.RESTORING)
        holder = TaskReplica(node_task, cast("Any", None))
        holder.stores[replica.folder] = replica
        self.nodes[HOLDERS[partition]].replicas[task] = holder

    def _replica(self, partition: int) -> StoreReplica:
        (replica,) = self.nodes[HOLDERS[partition]].replicas[TaskId(0, partition)].stores.values()
        return replica

    def _values(self, partition: int) -> dict[str, ChangelogRecord]:
        """Return what a partition's replica holds: by key, the last record that it has read."""
        held: dict[str, ChangelogRecord] = {}
        for record in self.logs[partition][: self._replica(partition).position]:
            held[record.key.decode()] = record
        return {key: record for key, record in held.items() if record.value is not None}

    @initialize(written=st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, PARTITIONS - 1)), max_size=4))
    def begin(self, written: list[tuple[str, int]]) -> None:
        """Some was written before anybody read."""
        for key, partition in written:
            self.write(key, partition, is_tombstone=False, is_placed=False)

    @rule(
        key=st.sampled_from(KEYS),
        partition=st.integers(0, PARTITIONS - 1),
        is_tombstone=st.booleans(),
        is_placed=st.booleans(),
    )
    def write(self, key: str, partition: int, *, is_tombstone: bool, is_placed: bool) -> None:
        self.now += 1
        log = self.logs[partition_for(key.encode(), PARTITIONS) if is_placed else partition]
        value = None if is_tombstone else b"%d" % self.now
        log.append(ChangelogRecord(key.encode(), value, self.now, len(log)))

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def follow(self, partition: int) -> None:
        replica, log = self._replica(partition), self.logs[partition]
        replica.apply(log[replica.position :], len(log))
        replica.note_end(len(log), time.monotonic(), 1)
        self.nodes[HOLDERS[partition]].replicas[TaskId(0, partition)].node_task.state = TaskState.RUNNING

    @rule(name=st.sampled_from(sorted(set(HOLDERS.values()))))
    def report(self, name: str) -> None:
        member = self.nodes[name].heartbeat()
        self.members[name] = member
        self.placements.take(self.members)
        for node in self.nodes.values():
            node.hear(member)
        for partition, holder in HOLDERS.items():
            if holder == name and self.nodes[name].replicas[TaskId(0, partition)].state is TaskState.RUNNING:
                self.told[partition] = set(self._values(partition))

    @rule(name=st.sampled_from(sorted(set(HOLDERS.values()))), is_wiped=st.booleans())
    def restart(self, name: str, *, is_wiped: bool) -> None:
        """Its state is on disk, or gone; it hears the last heartbeats of all again."""
        for partition, holder in HOLDERS.items():
            if holder == name:
                kept = cast("KeyValueStore", self._replica(partition).store)
                self._open(partition, KeyValueStore(MemoryEngine(1_000_000)) if is_wiped else kept)
        self.nodes[name].restarted()
        for member in self.members.values():
            self.nodes[name].hear(member)

    @rule()
    def settle(self) -> None:
        """All is read, and reported."""
        for partition in HOLDERS:
            self.follow(partition)
        for name in sorted(self.nodes):
            self.report(name)

    @rule(key=st.sampled_from(KEYS))
    def look_up(self, key: str) -> None:
        if len(self.members) < len(self.nodes):
            return  # nothing is assigned before nodes have reported
        try:
            answer = self._answer(key)
        except LookupFailure:
            return
        held = {partition: self._values(partition) for partition in HOLDERS}
        if answer.found:
            values = {found[key].value for found in held.values() if key in found}
            assert answer.value.text.encode() in values, "a value that nobody holds"
            if all(key in self.told.get(at, ()) for at, found in held.items() if key in found):
                best = max((found[key] for found in held.values() if key in found), key=lambda each: each.timestamp_ms)
                assert answer.value.text.encode() == best.value, "another partition has a later value, and said so"
            return
        for partition, found in held.items():
            assert not (key in found and key in self.told.get(partition, ())), "it is there, and its node has said so"
        if self.is_foreign:
            # With misplaced records all partitions were asked, and those that have read everything know for themselves.
            placement = self.placements.of(self.assignment.stores).get("s")
            asks_all = placement is not None and placement.is_scattered
            for partition, log in self.logs.items():
                is_asked = asks_all and self._replica(partition).position == len(log)
                is_there = bool(log) and partition not in self.told and not is_asked
                assert not is_there, "nobody has said that this partition was read"

    def _answer(self, key: str) -> query_service_pb2.GetResponse:
        table = compile_table(self.assignment, self.members, placements=self.placements.of(self.assignment.stores))

        async def dispatch(call: Call, *_: object, **__: object) -> NodeAnswer:
            request = query_service_pb2.GetRequest.FromString(call.body + table.forwarding)
            data = ended(self.nodes[HOLDERS[call.partition]].lookups.get(request))
            assert isinstance(data, bytes)
            return NodeAnswer(data, Role.ACTIVE)

        lookups = keyed.KeyLookups(
            cast("Any", SimpleNamespace(current=lambda: table)), cast("Any", SimpleNamespace(dispatch=dispatch))
        )
        asked = query_service_pb2.GetRequest(store="s", key=types_pb2.Key(text=key)).SerializeToString()

        async def answered() -> NodeAnswer:
            return await lookups.answer(keyed_call(table, "Get", asked), Deadline.after(10.0))

        answer = asyncio.run(answered())
        return query_service_pb2.GetResponse.FromString(answer.data)


class OwnFleet(PlacedFleet):
    """The same with a store that the application's own processor writes, as far as anybody knows."""

    is_foreign = False


FEW = settings(
    max_examples=80,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
    phases=[Phase.generate, Phase.shrink],
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with capture_logs():
        yield


@pytest.mark.parametrize("fleet", [PlacedFleet, OwnFleet])
def test_no_answer_is_untrue_wherever_records_stand(fleet: type[PlacedFleet]) -> None:
    run_state_machine_as_test(fleet, settings=FEW)  # type: ignore[no-untyped-call]


def _nothing_is_scattered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StorePlacement, "is_scattered", property(lambda _self: False))


def _nothing_is_unknown(patch: pytest.MonkeyPatch) -> None:
    of = FleetPlacements.of
    patch.setattr(
        FleetPlacements,
        "of",
        lambda self, stores: {name: replace(each, unknown=()) for name, each in of(self, stores).items()},
    )


def _nothing_is_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PlacementCheck, "misplaced", lambda _self, _records: [])


def _the_first_value_is_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(keyed, "later", lambda one, other: one if one[0].found else other)


def _a_restart_forgets_the_count(patch: pytest.MonkeyPatch) -> None:
    checkpoint = KeyValueStore.__init__

    def opened(self: KeyValueStore, engine: MemoryEngine) -> None:
        checkpoint(self, engine)
        self.checkpoint = lambda: None if (at := engine.checkpoint()) is None else replace(at, misplaced=0)

    patch.setattr(KeyValueStore, "__init__", opened)


def _placed_wrong(key: str) -> int:
    return (partition_for(key.encode(), PARTITIONS) + 1) % PARTITIONS


@pytest.mark.parametrize(
    "broken",
    [
        None,
        _nothing_is_scattered,
        _nothing_is_unknown,
        _nothing_is_checked,
        _the_first_value_is_taken,
        _a_restart_forgets_the_count,
    ],
)
def test_each_rule_is_needed(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[[pytest.MonkeyPatch], None] | None
) -> None:
    """What the machine above meets by chance, one after the other; without any of the rules an answer is untrue."""

    def run() -> None:
        for key in KEYS:  # each alone, and only the partition where it should be is read
            lone = PlacedFleet()
            lone.begin([(key, _placed_wrong(key))])
            lone.follow(partition_for(key.encode(), PARTITIONS))
            lone.report("n0")
            lone.report("n1")
            lone.look_up(key)
        fleet = PlacedFleet()
        fleet.begin([(key, _placed_wrong(key)) for key in KEYS])
        fleet.report("n0")
        fleet.report("n1")
        for partition, holder in HOLDERS.items():
            fleet.follow(partition)
            fleet.report(holder)
            _look_up_all(fleet)
        for key in KEYS:
            fleet.write(key, 0, is_tombstone=False, is_placed=True)
        fleet.settle()
        _look_up_all(fleet)
        for key in KEYS:
            fleet.write(key, _placed_wrong(key), is_tombstone=False, is_placed=False)
        fleet.settle()
        _look_up_all(fleet)
        fleet.write(KEYS[0], partition_for(KEYS[0].encode(), PARTITIONS), is_tombstone=True, is_placed=True)
        for name in fleet.nodes:
            fleet.restart(name, is_wiped=False)
        fleet.settle()
        _look_up_all(fleet)

    if broken is None:
        run()
        return
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        run()


def _look_up_all(fleet: PlacedFleet) -> None:
    for key in KEYS:
        fleet.look_up(key)


TIMES = st.integers(0, 2**40)


@given(
    kind=st.sampled_from([KEY_VALUE, WINDOW, SESSION]),
    key=st.binary(max_size=40),
    first=TIMES,
    length=TIMES,
    partitions=st.integers(1, 12),
    partition=st.integers(0, 11),
    value=st.sampled_from([b"v", None]),
)
def test_a_record_is_misplaced_where_its_plain_key_does_not_belong(
    kind: str, key: bytes, first: int, length: int, partitions: int, partition: int, value: bytes | None
) -> None:
    partition %= partitions
    at = {
        KEY_VALUE: key,
        WINDOW: WindowKey(key, first).to_bytes(),
        SESSION: SessionKey(key, first, first + length).to_bytes(),
    }[kind]
    spec = StoreSpec("s", "t", partitions, 0, kind, retention_ms=1)
    found = PlacementCheck(spec, partition, partition_for).misplaced([ChangelogRecord(at, value, 0, 7)])
    right = partition_for(key, partitions)
    assert [(each.offset, each.expected) for each in found] == ([] if right == partition else [(7, right)])


@given(st.binary(max_size=11), st.sampled_from([WINDOW, SESSION]), st.integers(0, 2))
def test_what_the_store_cannot_read_is_not_called_misplaced(key: bytes, kind: str, partition: int) -> None:
    check = PlacementCheck(StoreSpec("s", "t", 3, 0, kind, retention_ms=1), partition, partition_for)
    assert not check.misplaced([ChangelogRecord(key, b"v", 0, 0)])


def test_a_count_is_kept_with_the_checkpoint_and_earlier_versions_have_none() -> None:
    at = Checkpoint("t", "id", 5, 1, misplaced=3)
    assert Checkpoint.from_json(at.to_json()) == at
    unchecked = Checkpoint("t", "id", 5, 1)
    fields = json.loads(unchecked.to_json())
    written_before = json.dumps({name: fields[name] for name in fields if name not in {"misplaced", "placed_by"}})
    assert Checkpoint.from_json(written_before) == unchecked


def test_what_was_checked_by_another_number_of_partitions_is_not_checked() -> None:
    at = Checkpoint("t", "id", 5, 1, misplaced=0, placed_by=3)
    assert at.checked_by(3) == at
    assert at.checked_by(4) == replace(at, misplaced=None, placed_by=4)


def test_what_was_known_of_a_store_is_forgotten_with_it_and_not_before() -> None:
    """While nobody holds a partition, what was last reported of it stands; not for another store of the same name."""

    def reported(misplaced: int) -> Member:
        report = ReplicaReport(Role.ACTIVE, TaskState.RUNNING, {"s": StorePosition(5, 5, misplaced)})
        return Member("n", "1", "n", 1, replicas={TaskId(0, 0): report})

    spec = StoreSpec("s", "t", 1, 0, foreign=True)
    placements = FleetPlacements()
    assert placements.of({"s": spec})["s"].unknown == (0,)
    placements.take({"n": reported(2)})
    assert placements.of({"s": spec})["s"].misplaced == {0: 2}
    placements.take({})
    assert placements.of({"s": spec})["s"].misplaced == {0: 2}
    placements.take({"n": reported(0)})
    assert placements.of({"s": spec}) == {}
    placements.take({})
    assert placements.of({"s": spec}) == {}
    assert placements.of({"s": replace(spec, partition_count=2)})["s"].unknown == (0, 1)


def test_a_topic_that_was_created_again_is_not_known_before_all_of_it_was_read() -> None:
    """What was known of the old log says nothing of the new one, even if nodes still report or remember the old one."""

    def node(name: str, partition: int, topic_id: str, *, is_read: bool = True, misplaced: int = 0) -> Member:
        state = TaskState.RUNNING if is_read else TaskState.RESTORING
        at = StorePosition(5, 5, misplaced, placement_log=log_number(topic_id, 2) if topic_id else 0)
        member = Member(
            name, "1", name, 1, replicas={TaskId(0, partition): ReplicaReport(Role.ACTIVE, state, {"s": at})}
        )
        return decode_member(*encode_member(member), 0, 0)

    stores = {"s": StoreSpec("s", "t", 2, 0, foreign=True)}
    placements = FleetPlacements()

    def is_unknown(*members: Member) -> bool:
        placements.take({member.instance_id: member for member in members})
        placement = placements.of(stores).get("s")
        return placement is not None and placement.unknown != ()

    assert not is_unknown(node("a", 0, "old"), node("b", 1, "old"))
    assert is_unknown(node("a", 0, "new", is_read=False), node("b", 1, "old")), "one restores the new log"
    assert is_unknown(node("a", 0, "new"), node("b", 1, "old")), "the other one doesn't know yet"
    assert is_unknown(node("a", 0, "new")), "nobody holds the other partition, which was read in the old log"
    assert is_unknown(node("a", 0, "new"), node("b", 1, "new", is_read=False))
    assert not is_unknown(node("a", 0, "new"), node("b", 1, "new"))
    assert not is_unknown(node("a", 0, "new"), node("b", 1, "new", is_read=False)), "it reads the same log once more"
    assert not is_unknown(node("a", 0, "new")), "as it was known"
    assert not is_unknown(node("a", 0, "new"), node("b", 1, "")), "an earlier version doesn't tell"
    assert placements.of(stores) == {}
    assert not is_unknown(node("a", 0, "new"), node("b", 1, "new", is_read=False, misplaced=2))
    assert placements.of(stores)["s"].misplaced == {1: 2}


def test_the_number_of_a_log_tells_topics_and_ways_to_place_keys_apart() -> None:
    numbers = {log_number(topic_id, partitions) for topic_id in ("a", "b") for partitions in (1, 2)}
    assert len(numbers) == 4
    assert 0 not in numbers
