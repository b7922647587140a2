"""Life cycles: only the documented transitions, and what an assignment asks for."""

from __future__ import annotations

import itertools

import pytest

from query_service.states.lifecycle import (
    InvalidTransition,
    next_state,
    role_changes,
    settled_state,
)
from statehouse.contract.membership import NodeState, TaskState
from statehouse.contract.topology import Role, TaskId

ALLOWED = {
    "CREATED": "REBALANCING RUNNING PENDING_SHUTDOWN NOT_RUNNING",
    "REBALANCING": "RUNNING PENDING_SHUTDOWN ERROR",
    "RUNNING": "REBALANCING PENDING_SHUTDOWN ERROR",
    "ERROR": "PENDING_SHUTDOWN",
    "PENDING_SHUTDOWN": "NOT_RUNNING",
    "NOT_RUNNING": "",
}

TASKS_ALLOWED = {
    "CREATED": "RESTORING ERROR",
    "RESTORING": "RUNNING SUSPENDED ERROR",
    "RUNNING": "SUSPENDED ERROR",
    "ERROR": "SUSPENDED",
    "SUSPENDED": "CLOSED",
    "CLOSED": "",
}


@pytest.mark.feature("states-node-tasks")
@pytest.mark.parametrize(("old", "new"), list(itertools.product(NodeState, NodeState)))
def test_node_transitions(old: NodeState, new: NodeState) -> None:
    if new.value in ALLOWED[old.value].split():
        assert next_state(old, new) is new
    else:
        with pytest.raises(InvalidTransition, match=f"from {old} to {new}"):
            next_state(old, new)


@pytest.mark.feature("states-node-tasks")
@pytest.mark.parametrize(("old", "new"), list(itertools.product(TaskState, TaskState)))
def test_task_transitions(old: TaskState, new: TaskState) -> None:
    if new.name in TASKS_ALLOWED[old.name].split():
        assert next_state(old, new) is new
    else:
        with pytest.raises(InvalidTransition, match=f"from {old} to {new}"):
            next_state(old, new)


def test_settled_state() -> None:
    running, restoring = TaskState.RUNNING, TaskState.RESTORING
    assert settled_state(NodeState.CREATED, [], assigned=False) is NodeState.CREATED
    assert settled_state(NodeState.CREATED, [], assigned=True) is NodeState.RUNNING
    assert settled_state(NodeState.RUNNING, [running, restoring], assigned=True) is NodeState.REBALANCING
    assert settled_state(NodeState.REBALANCING, [running, TaskState.ERROR], assigned=True) is NodeState.RUNNING
    assert settled_state(NodeState.PENDING_SHUTDOWN, [restoring], assigned=True) is NodeState.PENDING_SHUTDOWN


def test_roles_change_for_what_stays() -> None:
    a, b, c = (TaskId(0, partition) for partition in range(3))
    assert role_changes({a: Role.ACTIVE, b: Role.STANDBY}, {a: Role.ACTIVE, c: Role.WARM_UP}) == {}
    assert role_changes({a: Role.STANDBY, b: Role.ACTIVE}, {a: Role.ACTIVE}) == {a: Role.ACTIVE}
