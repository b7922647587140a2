"""Every field of every control record, set to its extremes: a record is taken with values that can be true, or refused.

Nothing else is raised, nothing that was taken before is lost, and what is taken can be written again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import pytest
from google.protobuf.message import Message

from processor.ownership.machine.core import OwnershipCore
from processor.ownership.machine.takeover import ControllerRecord
from processor.ownership.topics.controller_record import encode_controller, read_controller
from query_service.disk.directory import StateDirectory
from query_service.states.ownership import NodeOwnership
from router.fleet_api.queries import ControllerReport, ProcessorQueries
from statehouse.contract.assignment import CONTROLLER_KEY, Assignment, AssignmentReader, TaskAssignment, encode
from statehouse.contract.membership import (
    STARTED_AHEAD_MAX_MS,
    GlobalReport,
    Member,
    ReplicaReport,
    StorePosition,
    decode_member,
    encode_member,
)
from statehouse.contract.processor_reports import ReportTimes, decode_commit, written_at_s
from statehouse.contract.topology import GlobalId, Role, StoreSpec, SubTopology, TaskId
from statehouse.control.v1 import assignment_pb2, commits_pb2, members_pb2
from statehouse.errors import ContractError
from statehouse.errors.checked import COUNT_MAX, PARTITIONS_MAX
from statehouse.settings.common import SESSION_TIMEOUT_MAX_MS
from tests.support.poison import poisoned
from tests.support.settings import ownership

NOW_MS: Final = 1_700_000_000_000

MEMBER: Final = Member(
    "n1",
    "0f",
    "10.0.0.1",
    7001,
    NOW_MS,
    "rack-1",
    "1.0",
    replicas={TaskId(0, 1): ReplicaReport(Role.ACTIVE, "running", {"counts": StorePosition(3, 5)})},
    global_replicas={"players": GlobalReport("running", {0: StorePosition(1)})},
)
COMMIT: Final = commits_pb2.Commit(
    store="counts",
    query_id="q1",
    batch_id=4,
    source_ends=[commits_pb2.TopicOffset(topic="clicks", partition=1, offset=7)],
    changelog_ends=[commits_pb2.TopicOffset(topic="app-counts-changelog", partition=1, offset=8)],
    committed_at_ms=NOW_MS,
    query="counts",
    figures=commits_pb2.QueryFigures(input_rows_per_second=2.5, backlog=3, backlog_eta_ms=1, watermark_ms=5),
    input_backlog=2,
)
CONTROLLER: Final = ControllerRecord("c1", "host, process 7", False, 5, ownership())
ASSIGNMENT: Final = Assignment(
    1,
    "first",
    "c1",
    MappingProxyType(
        {
            "counts": StoreSpec("counts", "app-counts-changelog", 2, 0),
            "clicks": StoreSpec("clicks", "app-clicks-changelog", 2, 0, "window", retention_ms=9, window_size_ms=3),
            "players": StoreSpec("players", "players", 3, 0, is_global=True),
        }
    ),
    MappingProxyType({0: SubTopology(0, "counts", 2)}),
    MappingProxyType({TaskId(0, n): TaskAssignment("n1", ("n2",), ("n3",), "because") for n in range(2)}),
)


WRITTEN_AT_MS: Final = (-(2**63), -1, 0, NOW_MS, NOW_MS + 10 * STARTED_AHEAD_MAX_MS, 2**63 - 1)
"""Timestamps of records: who writes a record gives it one."""
CLOCK_BEHIND_MS: Final = 3_600_000


def cases(message: Message) -> Any:
    found = list(poisoned(message))
    return pytest.mark.parametrize("record", [case for _, case in found], ids=[what for what, _ in found])


@pytest.mark.feature("records-control-topics")
@cases(members_pb2.Member.FromString(encode_member(MEMBER)[1]))
def test_members(record: members_pb2.Member) -> None:
    key, value = b"n1", record.SerializeToString()
    for written_at_ms in WRITTEN_AT_MS:
        node = NodeOwnership("n1", "aa", NOW_MS - 60_000, session_timeout_s=10.0)
        with suppress(ContractError):
            node.take_member(key, value, written_at_ms, NOW_MS)
        for member in node.members.values():
            assert decode_member(*encode_member(member), NOW_MS, NOW_MS) == member
            assert all("/" not in name for name in member.global_replicas)
        # It may say that it is this node, started later: the next run must not claim a time that others wouldn't
        # believe, though their clocks be a little behind.
        own = encode_member(node.heartbeat(("h", 1), {}, {}))
        assert decode_member(*own, NOW_MS, NOW_MS - CLOCK_BEHIND_MS).instance_id == "n1"
        node.succeed()
        with suppress(ContractError):
            node.take_member(key, value, written_at_ms, NOW_MS)
        newest = max((member.started_at_ms for member in node.members.values()), default=0)
        assert newest <= NOW_MS + STARTED_AHEAD_MAX_MS, "nobody is the newest for ever"


@cases(COMMIT)
def test_commits(record: commits_pb2.Commit) -> None:
    with suppress(ContractError):
        commit = decode_commit(b"counts", record.SerializeToString())
        assert commit.store == "counts"
        for written_at_ms in WRITTEN_AT_MS:
            queries = ProcessorQueries()
            for silence_s in (None, 0.5):
                at_s = ReportTimes().written_at_s(commit, written_at_ms, 50.0, NOW_MS, silence_s)
                queries.on_commit(commit, at_s, written_at_ms)
            (query,) = queries.describe(["counts"], 51.0)
            assert query.record_age_ms >= 1_000
        assert all(0 <= at.offset <= COUNT_MAX for at in (*commit.source_ends, *commit.changelog_ends))


@cases(assignment_pb2.AssignmentRecord.FromString(encode_controller(CONTROLLER)[1]))
def test_controllers(record: assignment_pb2.AssignmentRecord) -> None:
    refused: list[str] = []
    before = replace(CONTROLLER, controller="c0")
    taken = read_controller(record.SerializeToString(), before, lambda key, _error: refused.append(key))
    assert (taken in {None, before}) == (refused == [CONTROLLER_KEY.decode()])
    assert taken is None or taken.heartbeat <= COUNT_MAX
    if taken is not None:
        assert taken.settings.session_timeout_s <= SESSION_TIMEOUT_MAX_MS / 1_000, "who is silent is succeeded in time"
        core = OwnershipCore(taken.settings, "c2")
        core.restore(SECOND)
        core.inherit()
        for number in range(2):
            core.heartbeat(replace(MEMBER, heartbeat=number), 0.0)
            core.start(0.0)
        core.heartbeat(replace(MEMBER, heartbeat=9), 0.0)
        core.heartbeat(replace(MEMBER, incarnation="1a", started_at_ms=NOW_MS + 1), 0.0)  # counts as a flap
        core.left("n1", 0.0)
        core.heartbeat(MEMBER, 0.0)
        assert core.tick(0.0) is None or core.last_plan is not None
    for written_at_ms in WRITTEN_AT_MS:
        report = ControllerReport()
        report.on_record(record.controller, written_at_s(written_at_ms, 50.0, NOW_MS))
        assert (described := report.describe(51.0)) is not None
        assert described.record_age_ms >= 1_000


FIRST, RECORDS = encode(Assignment(), ASSIGNMENT)
SECOND, FOLLOWING = encode(FIRST, replace(FIRST, epoch=2, reason="second"))


@pytest.mark.feature("records-control-topics")
@pytest.mark.parametrize("number", range(len(RECORDS)), ids=[key.decode() for key, _ in RECORDS])
def test_assignments(number: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    key, value = RECORDS[number]
    assert value is not None
    folder = tmp_path_factory.mktemp("state")
    directory = StateDirectory(folder, "app")
    for what, record in poisoned(assignment_pb2.AssignmentRecord.FromString(value)):
        refused: list[str] = []
        reader = AssignmentReader(lambda key, _error, refused=refused: refused.append(key))
        for each in RECORDS:
            reader.feed(*each)
        reader.feed(key, record.SerializeToString())
        is_taken = not refused
        for each in FOLLOWING:
            reader.feed(*each)
        current = reader.current
        assert current is not None
        assert is_taken or current == SECOND, f"{what}: nothing that was taken before is lost"
        assert current.epoch <= COUNT_MAX, what
        for spec in current.stores.values():
            assert spec.partition_count <= PARTITIONS_MAX, what
            if spec.is_global:
                place = directory.task(GlobalId(spec.name)).path.resolve()
                assert place.is_relative_to(folder.resolve()), what
                assert place.parent.name == "global", what
            elif spec.sub_topology in current.sub_topologies:
                assert current.sub_topologies[spec.sub_topology].partition_count == spec.partition_count, what


@pytest.mark.parametrize(
    "name", ["..", "../..", "a/b", "", "x" * 200], ids=["dots", "above", "below", "none", "too long"]
)
def test_a_global_store_that_would_lie_elsewhere_is_refused(name: str) -> None:
    spec = StoreSpec("evil", "players", 1, 0, is_global=True)
    _, records = encode(Assignment(), Assignment(1, stores=MappingProxyType({"evil": spec})))
    refused: list[str] = []
    reader = AssignmentReader(lambda key, _error: refused.append(key))
    for key, value in records:
        record = assignment_pb2.AssignmentRecord.FromString(value or b"")
        if record.HasField("store"):
            record.store.name = name
        else:
            del record.manifest.keys["store/evil"]
            record.manifest.keys[f"store/{name}"] = 1
        reader.feed(key.replace(b"evil", name.encode()), record.SerializeToString())
    assert reader.current is None
    assert refused == [f"store/{name}"]
