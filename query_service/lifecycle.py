"""The life cycles of a node and of its tasks: states, legal transitions, and what a new assignment asks for.

No I/O. The node's states are Kafka Streams' (`KafkaStreams.State`), less those that belong to its threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from statehouse.errors import StatehouseError
from statehouse.topology import HeldId, Role


class InvalidTransition(StatehouseError):
    """A state was to follow one that it can't follow."""


class NodeState(StrEnum):
    """What a node is doing as a whole."""

    CREATED = "CREATED"
    REBALANCING = "REBALANCING"
    RUNNING = "RUNNING"
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    NOT_RUNNING = "NOT_RUNNING"
    ERROR = "ERROR"


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


class TaskState(StrEnum):
    """What a task's replica is doing."""

    CREATED = "created"
    RESTORING = "restoring"
    RUNNING = "running"
    SUSPENDED = "suspended"
    CLOSED = "closed"
    ERROR = "error"


_TASK_TRANSITIONS: Mapping[TaskState, frozenset[TaskState]] = {
    TaskState.CREATED: frozenset({TaskState.RESTORING, TaskState.ERROR, TaskState.CLOSED}),
    TaskState.RESTORING: frozenset({TaskState.RUNNING, TaskState.SUSPENDED, TaskState.ERROR}),
    TaskState.RUNNING: frozenset({TaskState.SUSPENDED, TaskState.ERROR}),
    TaskState.ERROR: frozenset({TaskState.SUSPENDED}),
    TaskState.SUSPENDED: frozenset({TaskState.CLOSED}),
    TaskState.CLOSED: frozenset(),
}


def next_node_state(current: NodeState, wanted: NodeState) -> NodeState:
    """Return `wanted`.

    Raises:
        InvalidTransition: it can't follow `current`.

    """
    if wanted not in _NODE_TRANSITIONS[current]:
        raise InvalidTransition(f"a node can't go from {current} to {wanted}")
    return wanted


def next_task_state(current: TaskState, wanted: TaskState) -> TaskState:
    """Return `wanted`.

    Raises:
        InvalidTransition: it can't follow `current`.

    """
    if wanted not in _TASK_TRANSITIONS[current]:
        raise InvalidTransition(f"a task can't go from {current} to {wanted}")
    return wanted


def settled_state(current: NodeState, task_states: Iterable[TaskState], *, assigned: bool) -> NodeState:
    """Return the state a live node should be in: REBALANCING while a task of its is being opened or restored.

    `assigned`: whether the node has seen a complete assignment; before that it stays CREATED.
    """
    if current not in {NodeState.CREATED, NodeState.REBALANCING, NodeState.RUNNING} or not assigned:
        return current
    busy = any(state in {TaskState.CREATED, TaskState.RESTORING} for state in task_states)
    return NodeState.REBALANCING if busy else NodeState.RUNNING


def role_changes(held: Mapping[HeldId, Role], assigned: Mapping[HeldId, Role]) -> dict[HeldId, Role]:
    """Return the new roles of what stays; a task that stays keeps its state whatever becomes of its role."""
    return {task: role for task, role in assigned.items() if task in held and held[task] is not role}
