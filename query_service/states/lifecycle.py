"""The life cycles of a node, its tasks and its stores: which transitions are legal. Pure.

The states of nodes follow Kafka Streams' `KafkaStreams.State`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from statehouse.contract.membership import NodeState, TaskState
from statehouse.contract.topology import AnyTaskId, Role
from statehouse.errors import StatehouseError


class InvalidTransition(StatehouseError):
    """The node, task or store can't go from its present state to the wanted one."""


_NODE_TRANSITIONS: Mapping[NodeState, frozenset[NodeState]] = {
    NodeState.CREATED: frozenset(
        {NodeState.REBALANCING, NodeState.RUNNING, NodeState.PENDING_SHUTDOWN, NodeState.NOT_RUNNING}
    ),
    NodeState.REBALANCING: frozenset({NodeState.RUNNING, NodeState.PENDING_SHUTDOWN, NodeState.ERROR}),
    NodeState.RUNNING: frozenset({NodeState.REBALANCING, NodeState.PENDING_SHUTDOWN, NodeState.ERROR}),
    NodeState.ERROR: frozenset({NodeState.PENDING_SHUTDOWN}),
    NodeState.PENDING_SHUTDOWN: frozenset({NodeState.NOT_RUNNING}),
    NodeState.NOT_RUNNING: frozenset(),
}


_TASK_TRANSITIONS: Mapping[TaskState, frozenset[TaskState]] = {
    TaskState.CREATED: frozenset({TaskState.RESTORING, TaskState.ERROR}),
    TaskState.RESTORING: frozenset({TaskState.RUNNING, TaskState.SUSPENDED, TaskState.ERROR}),
    TaskState.RUNNING: frozenset({TaskState.SUSPENDED, TaskState.ERROR}),
    TaskState.ERROR: frozenset({TaskState.SUSPENDED}),
    TaskState.SUSPENDED: frozenset({TaskState.CLOSED}),
    TaskState.CLOSED: frozenset(),
}


class StoreState(StrEnum):
    """What a store's replica is doing. The state of a task follows from the states of all its stores."""

    RESTORING = "restoring"
    """The restorer reads the log for it, and has not yet reached the end of the log."""
    RESTORED = "restored"
    """It has reached the end, and moves from the restorer to the follower."""
    FOLLOWING = "following"
    """The follower reads the log for it."""
    LOST = "lost"
    """Reading further can't make it right. The thread that reads for it drops it, and its task fails."""
    CLOSING = "closing"
    """It waits until the reads that have begun end."""


_STORE_TRANSITIONS: Mapping[StoreState, frozenset[StoreState]] = {
    StoreState.RESTORING: frozenset({StoreState.RESTORED, StoreState.LOST, StoreState.CLOSING}),
    StoreState.RESTORED: frozenset({StoreState.FOLLOWING, StoreState.LOST, StoreState.CLOSING}),
    StoreState.FOLLOWING: frozenset({StoreState.LOST, StoreState.CLOSING}),
    StoreState.LOST: frozenset({StoreState.CLOSING}),
    StoreState.CLOSING: frozenset(),
}


AnyState = TypeVar("AnyState", NodeState, TaskState, StoreState)

# By type, as states of different kinds with one name are equal as text.
_FOLLOWING: Mapping[type, Mapping[Any, Collection[StrEnum]]] = {
    NodeState: _NODE_TRANSITIONS,
    TaskState: _TASK_TRANSITIONS,
    StoreState: _STORE_TRANSITIONS,
}


def can_follow(current: AnyState, wanted: AnyState) -> bool:
    """Whether `wanted` may follow `current`."""
    return wanted in _FOLLOWING[type(current)][current]


def next_state(current: AnyState, wanted: AnyState) -> AnyState:
    """Return `wanted` if it may follow `current`.

    Raises:
        InvalidTransition: it may not.

    """
    if not can_follow(current, wanted):
        what = type(current).__name__.removesuffix("State").lower()
        raise InvalidTransition(f"a {what} can't go from {current} to {wanted}")
    return wanted


def settled_state(current: NodeState, task_states: Iterable[TaskState], *, assigned: bool) -> NodeState:
    """Return the state that a live node should have: REBALANCING while one of its tasks is being opened or restored.

    `assigned` is whether the node has seen a complete assignment; before that the node stays CREATED.
    """
    if current not in {NodeState.CREATED, NodeState.REBALANCING, NodeState.RUNNING} or not assigned:
        return current
    busy = any(state in {TaskState.CREATED, TaskState.RESTORING} for state in task_states)
    return NodeState.REBALANCING if busy else NodeState.RUNNING


def role_changes(current: Mapping[AnyTaskId, Role], assigned: Mapping[AnyTaskId, Role]) -> dict[AnyTaskId, Role]:
    """Return the new role of each task that stays and gets another role. A task that stays keeps its state."""
    return {task: role for task, role in assigned.items() if task in current and current[task] is not role}
