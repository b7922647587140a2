"""Input and output of the task machine: events, actions, and the task that they are about."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from query_service.states.faults import Fault
from query_service.states.ownership import Positions
from statehouse.contract.assignment import Assignment
from statehouse.contract.membership import TaskState
from statehouse.contract.topology import AnyTaskId, Role, StoreSpec

Partitions = tuple[tuple[StoreSpec, int], ...]
"""The store partitions of a task: (specification, partition)."""


@dataclass(slots=True, eq=False)
class NodeTask:
    """A task, or a copy of a global store, from the moment it is opened until it is closed.

    When the task is opened again, a new object stands for it. So the machine recognizes an event about a task that was
    closed meanwhile, and ignores it.

    Attributes:
        task: the task, or the global store.
        role: the node's role in the newest assignment.
        partitions: the store partitions to open.
        state: what the task is doing.
        error: why the task is in ERROR; empty if it isn't.
        stores: names of all open stores.
        restored: names of the stores whose restore has reached the end of the log.
        following: names of the stores that the follower reads for.
        is_retry_due: whether the pause after a failure is over.

    """

    task: AnyTaskId
    role: Role
    partitions: Partitions
    state: TaskState = TaskState.CREATED
    error: str = ""
    stores: frozenset[str] = frozenset()
    restored: set[str] = field(default_factory=set)
    following: set[str] = field(default_factory=set)
    is_retry_due: bool = False


@dataclass(frozen=True, slots=True)
class _OfTask:
    node_task: NodeTask


@dataclass(frozen=True, slots=True)
class _OfStore(_OfTask):
    store: str


# Events.


@dataclass(frozen=True, slots=True)
class Assigned:
    """There is a newer assignment. `wanted`: the tasks that this node should hold, with its role in each."""

    assignment: Assignment
    wanted: Mapping[AnyTaskId, Role]


@dataclass(frozen=True, slots=True)
class NodeStops:
    """The node stops: it must close everything, and ignore later assignments."""


@dataclass(frozen=True, slots=True)
class Opened(_OfTask):
    """The stores are open. `stores`: their names."""

    stores: frozenset[str]


class Restoring(_OfTask):
    """The restorer reads for all stores of the task."""


class EndReached(_OfStore):
    """The restorer has reached the end of a store's log. The event may come several times."""


class Following(_OfStore):
    """The follower now reads for a store."""


class CheckpointDue(_OfTask):
    """It is time to write a task's checkpoint."""


class Saved(_OfTask):
    """A checkpoint was written."""


@dataclass(frozen=True, slots=True)
class SaveFailed(_OfTask):
    """A checkpoint was not written. `is_copy`: the stores have it; only the readable copy was not written."""

    fault: Fault
    error: str
    is_copy: bool


@dataclass(frozen=True, slots=True)
class Failed(_OfTask):
    """A task can't go on. `ends_step`: a step has failed, and not a thread that reads the log."""

    fault: Fault
    error: str
    ends_step: bool = False


class RetryDue(_OfTask):
    """The pause after a failure is over."""


@dataclass(frozen=True, slots=True)
class Closed(_OfTask):
    """A task is closed. `on_disk`: the positions that its folder has now."""

    on_disk: Positions


@dataclass(frozen=True, slots=True)
class FoldersIdle:
    """These folders have been idle for the cleanup delay."""

    folders: Collection[AnyTaskId]


@dataclass(frozen=True, slots=True)
class Removed:
    """The removal of a folder has ended. `is_gone`: whether the folder is gone."""

    task: AnyTaskId
    is_gone: bool


Event = (
    Assigned
    | NodeStops
    | Opened
    | Restoring
    | EndReached
    | Following
    | CheckpointDue
    | Saved
    | SaveFailed
    | Failed
    | RetryDue
    | Closed
    | FoldersIdle
    | Removed
)

# Actions.


class Open(_OfTask):
    """Lock the folder and open the stores. This step ends with Opened or Failed."""


class Restore(_OfTask):
    """Make the restorer read for the stores. This step ends with Restoring or Failed."""


class Follow(_OfStore):
    """Have the follower, in place of the restorer, read for a store that has reached the end of its log.

    This step ends with Following or Failed.
    """


class Save(_OfTask):
    """Write the checkpoint. This step ends with Saved or SaveFailed."""


@dataclass(frozen=True, slots=True)
class Close(_OfTask):
    """Stop reading, write the checkpoint unless it `has_failed`, close the stores, release the folder.

    This step always ends with Closed.
    """

    has_failed: bool


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a folder that no task needs any more. This step ends with Removed."""

    task: AnyTaskId


@dataclass(frozen=True, slots=True)
class RetryAfter(_OfTask):
    """Bring RetryDue after a pause of `pause_s` seconds."""

    pause_s: float


class RoleChanged(_OfTask):
    """A held task now has another role."""


@dataclass(frozen=True, slots=True)
class StateChanged(_OfTask):
    """A task has gone from one state to another."""

    old: TaskState
    new: TaskState


@dataclass(frozen=True, slots=True)
class Stopped(_OfTask):
    """A task went to ERROR."""

    fault: Fault


@dataclass(frozen=True, slots=True)
class NotSaved(_OfTask):
    """The readable copy of a checkpoint was not written. The task goes on."""

    fault: Fault
    error: str


Action = Open | Restore | Follow | Save | Close | Remove | RetryAfter | RoleChanged | StateChanged | Stopped | NotSaved
