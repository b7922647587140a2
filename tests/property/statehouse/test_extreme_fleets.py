"""Whole assignments and members that are consistent, and at the limits of what is accepted, or just beyond.

What is accepted leaves everybody able to go on: routers compile it, nodes act on it, and a controller that finds it
plans an epoch that all of them take.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from types import MappingProxyType
from typing import Any, Final

import pytest

from processor.ownership.declarations import StoreDeclaration
from processor.ownership.machine.core import OwnershipCore
from query_service.reads.fleet_view import view_of
from query_service.states.ownership import NodeOwnership
from query_service.states.task_events import Assigned, Open
from query_service.states.task_machine import TaskMachine
from router.choice.express import ExpressCompiler, ExpressLimits
from router.fleet.table import compile_table
from statehouse.contract.assignment import Assignment, AssignmentReader, TaskAssignment, encode
from statehouse.contract.epochs import EPOCH_MAX, following, is_newer
from statehouse.contract.membership import (
    GlobalReport,
    Member,
    ReplicaReport,
    StorePosition,
    decode_member,
    encode_member,
)
from statehouse.contract.topology import GlobalId, Role, StoreSpec, SubTopology, TaskId
from statehouse.control.v1 import members_pb2
from statehouse.errors import ContractError
from statehouse.errors.checked import (
    CAPACITY_MAX,
    COUNT_MAX,
    HOLDERS_MAX,
    PARTITIONS_MAX,
    STORES_MAX,
    SUB_TOPOLOGIES_MAX,
)
from tests.support.poison import poisoned
from tests.support.settings import ownership

NOW_MS: Final = 1_700_000_000_000
_INT64_MAX: Final = 2**63 - 1


def fleet(
    *,
    epoch: int = 1,
    number: int = 0,
    partitions: int = 2,
    names: tuple[str, ...] = ("counts",),
    instance: str = "n1",
    holders: int = 1,
    text: str = "because",
    copies: int = 1,
    **of_store: Any,
) -> Assignment:
    """Return an assignment of one sub-topology whose stores have these names, and a global store."""
    others = tuple(f"{instance[:200]}{nth}" for nth in range(holders))
    stores = {name: StoreSpec(name, f"app-{name}-changelog", partitions, number, **of_store) for name in names}
    stores["everywhere"] = StoreSpec("everywhere", "everywhere", copies, 0, is_global=True)
    sub = SubTopology(number, text, partitions)
    tasks = {task: TaskAssignment(instance, others, others, text) for task in sub.tasks}
    return Assignment(
        epoch,
        text,
        text[:255],
        MappingProxyType(stores),
        MappingProxyType({number: sub}),
        MappingProxyType(tasks),
    )


ACCEPTED: Final[Mapping[str, Mapping[str, Any]]] = {
    "epoch": {"epoch": EPOCH_MAX},
    "epoch before": {"epoch": EPOCH_MAX - 1},
    "epoch half way": {"epoch": EPOCH_MAX // 2},
    "number": {"number": SUB_TOPOLOGIES_MAX},
    "partitions": {"partitions": PARTITIONS_MAX, "holders": 0},
    "copies": {"copies": PARTITIONS_MAX},
    "stores": {"names": tuple(f"s{nth}" for nth in range(STORES_MAX - 1)), "partitions": 1},
    "name": {"names": ("x" * 150,)},
    "instance": {"instance": "é" * 127},
    "instance of format letters": {"instance": "%s%n{0}\u0301"},
    "holders": {"holders": HOLDERS_MAX, "partitions": 1},
    "retention": {"kind": "window", "retention_ms": _INT64_MAX, "window_size_ms": _INT64_MAX},
    "kind": {"kind": "é" * 127, "key_serde": "%s", "value_serde": "\u0301"},
    "all": {
        "epoch": EPOCH_MAX,
        "number": SUB_TOPOLOGIES_MAX,
        "holders": 50,
        "instance": "é" * 100,
        "retention_ms": _INT64_MAX,
        "window_size_ms": _INT64_MAX,
        "text": "é" * 127,
    },
}
REFUSED: Final[Mapping[str, Mapping[str, Any]]] = {
    "epoch": {"epoch": EPOCH_MAX + 1},
    "largest epoch": {"epoch": 2**64 - 1},
    "number": {"number": SUB_TOPOLOGIES_MAX + 1},
    "copies": {"copies": PARTITIONS_MAX + 1},
    "partitions of all": {"partitions": 50_001, "names": ("a", "b", "c", "d"), "holders": 0},
    "stores": {"names": tuple(f"s{nth}" for nth in range(STORES_MAX)), "partitions": 1},
    "name": {"names": ("x" * 151,)},
    "instance": {"instance": "é" * 128},
    "instance of a line": {"instance": "n\n1"},
    "holders": {"holders": HOLDERS_MAX + 1, "partitions": 1},
    "text": {"text": "é" * 32_769},
}
FIRST, _RECORDS = encode(Assignment(), replace(fleet(), epoch=7))
MEMBER: Final = Member(
    "n1",
    "0f",
    "10.0.0.1",
    7001,
    NOW_MS,
    state="RUNNING",
    epoch=7,
    replicas={TaskId(0, 0): ReplicaReport(Role.ACTIVE, "running", {"counts": StorePosition(3, 5)})},
    global_replicas={"everywhere": GlobalReport("running", {0: StorePosition(1)})},
)


def read(*batches: list[tuple[bytes, bytes | None]]) -> tuple[AssignmentReader, list[str]]:
    """Return what a reader has after these records, and what it has refused."""
    refused: list[str] = []
    reader = AssignmentReader(lambda key, error: refused.append(f"{key}: {error}"))
    for records in batches:
        for record in records:
            reader.feed(*record)
    return reader, refused


def go_on(assignment: Assignment, members: Mapping[str, Member]) -> None:
    """Have a router, its proxy and a node act on this."""
    table = compile_table(assignment, members)
    assert set(table.stores) | set(table.unusable) == set(assignment.stores)
    express = ExpressCompiler(lambda _: 1.0, ExpressLimits(10, 10, 1.0, needs_permits=False)).changed(table, {})
    assert express is not None
    assert all(0 < len(node.address.encode()) <= 255 for node in express.nodes)
    assert all(0 <= place <= len(express.nodes) for store in express.stores for place in store.first)
    view_of(assignment, members)
    wanted = assignment.all_tasks_of("n1")
    actions = TaskMachine({}).handle(Assigned(assignment, wanted))
    assert {action.node_task.task for action in actions if isinstance(action, Open)} <= set(wanted)


def controllers(found: Assignment | None) -> Iterator[OwnershipCore]:
    """Yield controllers that find an assignment: a standby, and one whose application has another store."""
    for declared in (None, [StoreDeclaration("fresh", "another query", 3, "app-fresh-changelog")]):
        core = OwnershipCore(ownership(initial_rebalance_delay_ms=0), "c2")
        core.restore(found)
        core.inherit() if declared is None else core.declare(declared)
        yield core


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(given, id=name, marks=[pytest.mark.long] if name in {"partitions", "copies", "stores"} else [])
        for name, given in ACCEPTED.items()
    ],
)
def test_what_is_accepted_at_its_limits_leaves_everybody_able_to_go_on(given: Mapping[str, Any]) -> None:
    complete, records = encode(Assignment(), fleet(**given))
    late, refused = read(records)
    assert (late.current, refused) == (complete, [])
    running, _ = read(_RECORDS, records)
    for reader in (late, running):
        assert reader.current is not None
        go_on(reader.current, {"n1": MEMBER})
    instance = next(iter(complete.tasks.values())).active or ""
    for core in controllers(late.current):
        for name in ("n1", instance):
            core.heartbeat(replace(MEMBER, instance_id=name, epoch=running.epoch), 0.0)
        core.start(0.0)
        for name in ("n1", instance):
            core.heartbeat(replace(MEMBER, instance_id=name, epoch=running.epoch, heartbeat=1), 0.0)
        planned = core.tick(0.0)
        if planned is None:
            planned = core.again("it differs", late.epoch)
        published, written = encode(core.assignment, planned)
        for before in ([], _RECORDS):
            reader, refused = read(before, records, written)
            assert (reader.epoch, refused) == (published.epoch, [])
            assert reader.current is not None
            assert reader.current.stores == published.stores
            assert reader.current.tasks.items() >= published.tasks.items()
        core.published(published, 0.0)
        go_on(published, {"n1": MEMBER})
        assert all(holders.active for holders in published.tasks.values()), "every task is somebody's"


@pytest.mark.parametrize("given", REFUSED.values(), ids=REFUSED)
def test_what_is_beyond_costs_itself(given: Mapping[str, Any]) -> None:
    _, records = encode(Assignment(), fleet(**{"epoch": 8, **given}))
    reader, refused = read(_RECORDS, records)
    assert refused
    assert reader.current == FIRST
    again = replace(FIRST, epoch=following(reader.epoch, [7]))
    reader, _ = read(_RECORDS, records, encode(Assignment(), again)[1])
    assert reader.epoch == again.epoch
    assert reader.not_understood() == ""


def test_a_store_that_takes_the_topic_of_another_costs_itself() -> None:
    thief = StoreSpec("a", "app-counts-changelog", 2, 0)
    following_one = replace(FIRST, epoch=8, stores=MappingProxyType({**FIRST.stores, thief.name: thief}))
    reader, refused = read(_RECORDS, encode(FIRST, following_one)[1])
    assert reader.current is not None
    assert set(reader.current.stores) == {"counts", "everywhere"}
    assert len(refused) == 1


def test_neither_the_format_nor_the_number_of_foreign_keys_keeps_a_controller_from_starting() -> None:
    stranger = b"\x30\xe8\x07"  # format 1000, which only a newer version reads
    reader, refused = read(_RECORDS, [(b"stranger", stranger), (b"store/counts", b"\x30\xff\xff\xff\xff\x0f")])
    assert len(refused) == 2
    assert reader.of_newer_format() == ""
    reader, _ = read(_RECORDS, [(b"store/counts", stranger)])
    assert reader.of_newer_format() == "store/counts"


EXTREME_MEMBERS: Final = [
    *(record for _, record in poisoned(members_pb2.Member.FromString(encode_member(MEMBER)[1]))),
    members_pb2.Member(
        instance_id="n1",
        incarnation="z" * 64,
        started_at_ms=NOW_MS,
        host="fe80:1111:2222:3333:4444:5555:6666:7777%" + "z" * 32,
        port=65_535,
        rack="é" * 127,
        version="%s" * 127,
        state="\u0301" * 127,
        epoch=COUNT_MAX,
        heartbeat=COUNT_MAX,
        capacity=CAPACITY_MAX,
        replicas=[
            members_pb2.Replica(
                task="0_0",
                role=members_pb2.ROLE_ACTIVE,
                state="running",
                stores=[members_pb2.StorePosition(store="counts", position=COUNT_MAX, end_offset=COUNT_MAX)],
            )
        ],
    ),
]


@pytest.mark.parametrize("record", EXTREME_MEMBERS)
def test_a_member_at_its_limits_leaves_everybody_able_to_go_on(record: members_pb2.Member) -> None:
    try:
        member = decode_member(b"n1", record.SerializeToString(), NOW_MS, NOW_MS)
    except ContractError:
        return
    other = replace(MEMBER, instance_id="n2", incarnation="1f")
    known = {"n1": member, "n2": other}
    go_on(FIRST, known)
    NodeOwnership("n3", "aa", NOW_MS, session_timeout_s=10.0).take_member(
        b"n1", record.SerializeToString(), NOW_MS, NOW_MS
    )
    core = OwnershipCore(ownership(initial_rebalance_delay_ms=0), "c2")
    core.restore(FIRST)
    core.inherit()
    for each in known.values():
        core.heartbeat(each, 0.0)
    core.start(0.0)
    for each in known.values():
        core.heartbeat(replace(each, heartbeat=each.heartbeat - 1), 0.0)
    planned = core.tick(0.0) or core.again("it differs", 7)
    assert is_newer(planned.epoch, 7)
    reader, refused = read(_RECORDS, encode(FIRST, planned)[1])
    assert (reader.epoch, refused) == (planned.epoch, [])
    core.published(planned, 0.0)
    core.tick(100.0)
    core.left("n1", 100.0)
    planned = core.tick(100.5) or core.again("it differs", planned.epoch)
    assert len(planned.tasks) == len(FIRST.tasks)


def test_all_combinations_of_what_a_task_is_held_by() -> None:
    """Nobody, the same node several times, nodes that don't exist."""
    for active, standbys, warm_ups in product((None, "n1", "gone"), ((), ("n1", "n1"), ("gone",)), ((), ("n1",))):
        tasks = dict.fromkeys(FIRST.tasks, TaskAssignment(active, standbys, warm_ups))
        complete, records = encode(Assignment(), replace(FIRST, tasks=MappingProxyType(tasks)))
        reader, refused = read(records)
        assert (reader.current, refused) == (complete, [])
        go_on(complete, {"n1": MEMBER})
        assert GlobalId("everywhere") in complete.all_tasks_of("n1")
        for core in controllers(complete):
            core.heartbeat(MEMBER, 0.0)
            core.start(0.0)
            core.heartbeat(replace(MEMBER, heartbeat=1), 0.0)
            planned = core.tick(0.0) or complete
            assert all(holders.active == "n1" for holders in planned.tasks.values())
