"""Heartbeats: what is written is read, states of newer versions are passed on, and nothing else names states."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from statehouse.contract.membership import (
    LEAVING_STATES,
    GlobalReport,
    Member,
    NodeState,
    ReplicaReport,
    StorePosition,
    TaskState,
    decode_member,
    encode_member,
)
from statehouse.contract.topology import Role, TaskId

TASK = TaskId(0, 1)
MEMBER = Member("a", "1st", "host", 7, state=NodeState.RUNNING)
_ROOT = Path(__file__).parents[4]
_CODE = ("statehouse", "processor", "query_service", "router", "bench", "examples", "tests/support", "tests/simulation")


def _read_back(member: Member) -> Member:
    key, value = encode_member(member)
    assert key == member.instance_id.encode()
    return decode_member(key, value, 0, 0)


@pytest.mark.feature("members-topic-nodes")
@pytest.mark.parametrize("state", [*TaskState, "from-the-future"])
def test_only_a_replica_that_runs_is_restored(state: str) -> None:
    positions = {"counts": StorePosition(3, 5)}
    member = replace(
        MEMBER,
        replicas={TASK: ReplicaReport(Role.ACTIVE, state, positions)},
        global_replicas={"players": GlobalReport(state, {0: StorePosition(1)})},
    )
    read = _read_back(member)
    assert read == member
    for report in (read.replicas[TASK], read.global_replicas["players"]):
        assert report.state == state
    assert read.replicas[TASK].is_restored == (state == TaskState.RUNNING)


@pytest.mark.parametrize("state", [*NodeState, "FROM_THE_FUTURE"])
def test_only_states_that_are_known_to_be_ends_are_a_leave(state: str) -> None:
    read = _read_back(replace(MEMBER, state=state))
    assert read.state == state
    assert (read.state in LEAVING_STATES) == (state in {"PENDING_SHUTDOWN", "NOT_RUNNING", "ERROR"})


def test_no_code_compares_a_task_state_with_a_text() -> None:
    states = {state.value for state in TaskState}
    found = [
        f"{path.relative_to(_ROOT)}:{node.lineno}"
        for folder in _CODE
        for path in (_ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
        if isinstance(side, ast.Constant) and side.value in states
    ]
    assert found == []
