"""The node's decisions: what it takes, when it is fenced, what it may claim, what it tells the fleet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from query_service.states.lifecycle import InvalidTransition
from query_service.states.ownership import NodeOwnership, active_tasks, claimed_role, with_dormant
from statehouse.contract.assignment import Assignment, TaskAssignment, encode
from statehouse.contract.membership import (
    Member,
    NodeState,
    ReplicaReport,
    StorePosition,
    TaskState,
    decode_member,
    encode_member,
)
from statehouse.contract.topology import GlobalId, Role, StoreSpec, SubTopology, TaskId
from statehouse.errors import ContractError

A, B = TaskId(0, 0), TaskId(0, 1)


def ownership(started_at_ms: int = 1_000) -> NodeOwnership:
    node = NodeOwnership("me", "aa", started_at_ms, session_timeout_s=10.0)
    node.assignments_read()
    return node


def publish(node: NodeOwnership, epoch: int, *holders: TaskAssignment) -> None:
    """Feed a node an assignment."""
    stores = {"counts": StoreSpec("counts", "topic", len(holders), 0)}
    tasks = {TaskId(0, number): each for number, each in enumerate(holders)}
    following = Assignment(epoch, stores=stores, sub_topologies={0: SubTopology(0, "q", len(holders))}, tasks=tasks)
    _, records = encode(Assignment(), following)
    for key, value in records:
        node.take_assignment(key, value)


def test_of_the_assignments_that_existed_at_the_start_only_the_newest_is_taken() -> None:
    node = NodeOwnership("me", "aa", 1_000, session_timeout_s=10.0)
    publish(node, 1, TaskAssignment("other", ("me",)), TaskAssignment("me"))
    publish(node, 2, TaskAssignment("me"), TaskAssignment("other"))
    assert (node.epoch, node.wanted) == (0, {})
    newest = node.assignments_read()
    assert newest is not None
    assert (newest.epoch, node.wanted) == (2, {A: Role.ACTIVE})
    assert node.assignments_read() is None
    publish(node, 3, TaskAssignment("me"), TaskAssignment("me"))
    assert node.epoch == 3


def test_epochs_never_go_back() -> None:
    node = ownership()
    assert node.epoch == 0
    assert node.wanted == {}
    publish(node, 2, TaskAssignment("me"), TaskAssignment("other", ("me",)))
    assert node.epoch == 2
    assert node.wanted == {A: Role.ACTIVE, B: Role.STANDBY}
    publish(node, 1, TaskAssignment("other"), TaskAssignment("other"))
    assert node.epoch == 2
    assert node.wanted == {A: Role.ACTIVE, B: Role.STANDBY}
    publish(node, 3, TaskAssignment("other", warm_ups=("me",)), TaskAssignment("other"))
    assert node.wanted == {A: Role.WARM_UP}


@pytest.mark.parametrize(
    ("started_at_ms", "incarnation", "fenced"),
    [(2_000, "00", True), (500, "ff", False), (1_000, "ab", True), (1_000, "a0", False), (1_000, "aa", False)],
)
def test_the_newer_process_of_an_instance_id_wins(started_at_ms: int, incarnation: str, fenced: bool) -> None:
    node = ownership()
    node.succeed()
    rival = Member("me", incarnation, "h", 1, started_at_ms, heartbeat=5)
    assert node.take_member(*encode_member(rival), 0, 0)
    assert not node.take_member(*encode_member(rival), 0, 0)
    assert node.superseded_by is None, "one record, even read twice, ends no process"
    node.take_member(*encode_member(node.heartbeat(("h", 1), {}, {})), 0, 0)
    node.take_member(*encode_member(replace(rival, heartbeat=6)), 0, 0)
    assert (node.superseded_by is not None) is fenced
    node.take_member(b"me", None, 0, 0)
    assert node.superseded_by is None


def test_whoever_was_there_before_is_older_whatever_the_clocks_say() -> None:
    node = ownership(started_at_ms=1_000)
    node.take_member(*encode_member(Member("me", "ff", "h", 1, 90_000)), 0, 0)
    assert node.superseded_by is None
    node.succeed()
    assert node.superseded_by is None
    order = node.heartbeat(("h", 1), {}, {}).incarnation_order
    assert order > (90_000, "ff")
    node.take_member(*encode_member(Member("me", "ff", "h", 1, 90_000, heartbeat=7)), 0, 0)
    assert node.superseded_by is None
    for heartbeat in range(2):
        node.take_member(*encode_member(Member("me", "00", "h", 2, 90_002, heartbeat=heartbeat)), 0, 0)
    assert node.superseded_by is not None
    node.succeed()
    assert node.superseded_by is not None, "only what was there at the start is earlier"


def test_an_older_process_that_wrote_last_hides_no_newer_one() -> None:
    """It was superseded while it slept, say, and wrote before it had read of that."""
    node = ownership(started_at_ms=1_000)
    node.take_member(*encode_member(Member("me", "ff", "h", 1, 90_000)), 0, 0)
    node.take_member(*encode_member(Member("me", "00", "h", 1, 70_000, heartbeat=33)), 0, 0)
    node.succeed()
    assert node.superseded_by is None
    assert node.heartbeat(("h", 1), {}, {}).incarnation_order > (90_000, "ff")


def test_an_unreadable_heartbeat_changes_nothing() -> None:
    node = ownership()
    node.take_member(*encode_member(Member("other", "bb", "h", 1)), 0, 0)
    with pytest.raises(ContractError):
        node.take_member(b"other", b"\xff\xff", 0, 0)
    assert node.members["other"].host == "h"
    assert not node.take_member(*encode_member(Member("other", "bb", "h", 1, heartbeat=2)), 0, 0)
    assert node.take_member(*encode_member(Member("other", "bb", "h", 2)), 0, 0)


@pytest.mark.feature("node-out-touch")
def test_a_node_is_confirmed_for_a_session_timeout() -> None:
    node = ownership()
    assert node.is_confirmed(9.9)
    assert not node.is_confirmed(10.0)
    assert not node.is_confirmed(None)


@pytest.mark.parametrize(
    ("role", "confirmed", "requested_epoch", "claimed"),
    [
        (Role.ACTIVE, True, 4, Role.ACTIVE),
        (Role.ACTIVE, True, 5, Role.ACTIVE),
        (Role.ACTIVE, True, 6, Role.STANDBY),
        (Role.ACTIVE, False, 5, Role.STANDBY),
        (Role.STANDBY, True, 5, Role.STANDBY),
        (Role.WARM_UP, True, 5, Role.STANDBY),
        (Role.GLOBAL, False, 6, Role.GLOBAL),
    ],
)
def test_active_is_claimed_at_the_newest_epoch_only(
    role: Role, confirmed: bool, requested_epoch: int, claimed: Role
) -> None:
    assert claimed_role(role, confirmed=confirmed, epoch=5, requested_epoch=requested_epoch) is claimed


@pytest.mark.feature("node-rebalances-goes")
def test_the_state_follows_the_tasks() -> None:
    node = ownership()
    assert node.settle([TaskState.RUNNING]) is None  # no assignment yet
    publish(node, 1, TaskAssignment("me"))
    assert node.settle([TaskState.CREATED]) is NodeState.CREATED
    assert node.state is NodeState.REBALANCING
    assert not node.is_serving([TaskState.RESTORING])
    assert node.is_serving([TaskState.RESTORING, TaskState.RUNNING])
    assert not node.is_ready([TaskState.RESTORING, TaskState.RUNNING]), "the next node would be restarted too early"
    assert node.settle([TaskState.RUNNING]) is NodeState.REBALANCING
    assert node.is_serving([])
    assert node.is_ready([])
    assert node.is_ready([TaskState.RUNNING])
    assert not node.is_ready([TaskState.RUNNING, TaskState.ERROR])
    assert node.enter(NodeState.PENDING_SHUTDOWN) is NodeState.RUNNING
    assert node.enter(NodeState.PENDING_SHUTDOWN) is None
    assert not node.is_serving([TaskState.RUNNING])
    assert not node.is_ready([TaskState.RUNNING])
    with pytest.raises(InvalidTransition):
        node.enter(NodeState.RUNNING)


@pytest.mark.feature("clean-stop-hands")
def test_a_drain_waits_for_active_tasks_only() -> None:
    held = {B: Role.ACTIVE, A: Role.ACTIVE, TaskId(1, 0): Role.STANDBY, GlobalId("names"): Role.GLOBAL}
    assert active_tasks(held) == [A, B]


@pytest.mark.feature("members-topic-nodes")
def test_heartbeats_count_and_report_dormant_state() -> None:
    node = ownership()
    running = ReplicaReport(Role.ACTIVE, "running", {"counts": StorePosition(7, 9)})
    reports = with_dormant({A: running}, {A: {"counts": 3}, B: {"counts": 5}})
    first, second = (node.heartbeat(("h", 1), reports, {}, rack="r", version="v") for _ in range(2))
    assert (first.heartbeat, second.heartbeat) == (1, 2)
    assert first.replicas[A] is running
    assert first.replicas[B] == ReplicaReport(Role.DORMANT, "closed", {"counts": StorePosition(5)})
    assert (first.instance_id, first.incarnation, first.started_at_ms, first.rack) == ("me", "aa", 1_000, "r")


@pytest.mark.parametrize(
    ("drain", "dynamic", "failed", "silent"),
    [
        (True, False, False, False),
        (False, False, False, True),
        (False, True, False, False),
        (False, False, True, False),
    ],
)
def test_only_a_static_member_that_may_be_back_says_nothing_of_its_end(
    drain: bool, dynamic: bool, failed: bool, silent: bool
) -> None:
    node = NodeOwnership("me", "aa", 1_000, session_timeout_s=10.0, dynamic=dynamic)
    node.enter(NodeState.RUNNING)
    if failed:
        node.enter(NodeState.ERROR)
    assert not node.is_silent
    node.stop(drain=drain)
    assert node.is_silent is silent
    node.stop(drain=not drain)
    assert node.is_silent is silent, "what ends a drain does not undo that it leaves"


@pytest.mark.feature("static-member-bounces")
def test_a_static_member_that_may_be_back_says_so_once_as_if_nothing_else_had_changed() -> None:
    node = ownership()
    node.enter(NodeState.RUNNING)
    assert not node.heartbeat(("h", 1), {}, {}).returns
    assert not node.owes_word
    node.stop(drain=False)
    node.enter(NodeState.PENDING_SHUTDOWN)
    assert node.owes_word
    last = node.heartbeat(("h", 1), {}, {})
    assert (last.returns, last.state) == (True, NodeState.RUNNING), "one that leaves would lose its tasks"
    node.word_given()
    assert not node.owes_word
    assert node.is_silent


def test_who_leaves_or_is_fenced_does_not_say_that_it_will_be_back() -> None:
    leaving, fenced = ownership(), ownership()
    leaving.stop(drain=True)
    assert not leaving.owes_word
    assert not leaving.heartbeat(("h", 1), {}, {}).returns
    fenced.succeed()
    for heartbeat in range(2):
        fenced.take_member(*encode_member(Member("me", "bb", "h", 1, 2_000, heartbeat=heartbeat)), 0, 0)
    fenced.stop(drain=False)
    assert not fenced.owes_word


def test_a_fenced_node_says_nothing_more() -> None:
    node = ownership()
    node.succeed()
    for heartbeat in range(2):
        node.take_member(*encode_member(Member("me", "bb", "h", 1, 2_000, heartbeat=heartbeat)), 0, 0)
    assert node.is_silent


@pytest.mark.feature("control-topic-deleted")
def test_a_node_whose_topic_was_recreated_claims_nothing_until_it_has_an_assignment() -> None:
    node = ownership()
    assert node.is_confirmed(1.0)
    publish(node, 9, TaskAssignment("me"), TaskAssignment("other"))
    assert node.is_confirmed(1.0)
    node.assignments_begin_anew()
    assert not node.is_confirmed(0.0)
    assert (node.epoch, node.wanted) == (9, {A: Role.ACTIVE}), "it keeps what it holds"
    assert node.assignments_read() is None
    assert not node.is_confirmed(0.0)
    publish(node, 1, TaskAssignment("other", ("me",)), TaskAssignment("me"))
    assert (node.epoch, node.wanted) == (1, {A: Role.STANDBY, B: Role.ACTIVE})
    assert node.is_confirmed(1.0)
    assert not node.is_confirmed(10.0)


@pytest.mark.feature("records-control-topics")
def test_a_time_that_can_not_be_true_supersedes_nobody() -> None:
    """A process that claimed to start in the far future would be the newest for ever."""
    hour_ms = 3_600_000
    node = ownership(1_000 * hour_ms)
    now_ms = 1_000 * hour_ms
    for ahead_h in (108, 167, 169, 10_000):
        record = encode_member(Member("me", "ff", "h", 1, (1_000 + ahead_h) * hour_ms))
        for written_at_ms in (now_ms, (1_000 + ahead_h) * hour_ms):
            with pytest.raises(ContractError, match="started"):
                node.take_member(*record, written_at_ms, now_ms)
    node.take_member(*encode_member(Member("me", "ff", "h", 1, 1_107 * hour_ms)), now_ms, now_ms)
    node.succeed()
    assert node.superseded_by is None
    assert node.started_at_ms == 1_107 * hour_ms + 1
    key, value = encode_member(node.heartbeat(("h", 1), {}, {}))
    behind_ms = now_ms - 60 * hour_ms
    assert decode_member(key, value, now_ms, behind_ms).started_at_ms == node.started_at_ms, "others believe it"


def test_who_writes_a_record_can_not_make_a_far_start_true_by_its_timestamp() -> None:
    hour_ms = 3_600_000
    now_ms = 1_000 * hour_ms
    node = ownership(now_ms)
    node.succeed()
    for written_at_ms in (1_200 * hour_ms, 2**63 - 1):
        with pytest.raises(ContractError, match="started"):
            node.take_member(*encode_member(Member("me", "ff", "h", 1, 1_169 * hour_ms)), written_at_ms, now_ms)
    assert node.superseded_by is None


def test_a_record_under_another_key_is_refused() -> None:
    node = ownership()
    _, value = encode_member(Member("other", "bb", "h", 1))
    with pytest.raises(ContractError, match="its key"):
        node.take_member(b"me", value, 0, 0)
    assert not node.members


@pytest.mark.parametrize("node_days", [-2, 0, 2])
@pytest.mark.parametrize("reader_days", [-2, 0, 2])
def test_clocks_that_differ_by_days_hide_no_node(node_days: int, reader_days: int) -> None:
    day_ms, true_ms = 24 * 3_600_000, 10**12
    node = ownership(true_ms + node_days * day_ms)
    earlier = Member("me", "ff", "h", 1, true_ms + 2 * day_ms)  # by the clock that the machine had then
    node.take_member(*encode_member(earlier), earlier.started_at_ms, node.started_at_ms)
    node.succeed()
    assert node.superseded_by is None
    key, value = encode_member(node.heartbeat(("h", 1), {}, {}))
    written_ms = true_ms + node_days * day_ms
    taken = decode_member(key, value, written_ms, true_ms + reader_days * day_ms)
    assert taken.incarnation_order > earlier.incarnation_order, "it succeeds whatever the clocks say"
