"""How each partition does, from the fleet as a router tells of it and what nodes say of themselves. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from statehouse.client.answers import Replica, Store, Task
from statehouse.contract.membership import TaskState
from statehouse.web.pages.contacts import Contact, NodeContact

BEHIND: Final = 10_000
"""From this lag on a partition is shown as behind: the default of acceptable_recovery_lag, from which on a replica
isn't made active."""


class Condition(IntEnum):
    """How a partition does; the greater, the worse."""

    UNKNOWN = 0
    WELL = 1
    THIN = 2
    BEHIND = 3
    RESTORING = 4
    SILENT = 5
    NOBODY = 6
    FAILED = 7

    @property
    def glyph(self) -> str:
        """A sign that tells it without colour."""
        return "·●◕▲◐◌○✕"[self]

    @property
    def words(self) -> str:
        """What it means."""
        return _WORDS[self]


_WORDS: Final[Mapping[Condition, str]] = {
    Condition.UNKNOWN: "not known",
    Condition.WELL: "runs",
    Condition.THIN: "runs; a copy is not ready",
    Condition.BEHIND: "runs, far behind",
    Condition.RESTORING: "active restores",
    Condition.SILENT: "active is silent",
    Condition.NOBODY: "no active",
    Condition.FAILED: "active has failed",
}


@dataclass(frozen=True, slots=True)
class PartitionNow:
    """A partition of a store; of a global store the whole of it, as partition 0. `lag` is the active's."""

    store: str
    partition: int
    task: str
    condition: Condition
    active: str | None
    standbys: tuple[str, ...]
    warm_ups: tuple[str, ...]
    ready: int
    """Copies that run, the active included."""
    lag: int | None
    reason: str


Contacts = Mapping[str, NodeContact]


def task_of(store: Store, partition: int) -> str:
    """Return the id of the task that has a partition."""
    return f"global/{store.name}" if store.is_global else f"{store.sub_topology}_{partition}"


def partition_count(store: Store) -> int:
    """Return how many places of a store are shown: every node has all partitions of a global one."""
    return 1 if store.is_global else store.partition_count


def partitions_of(
    store: Store, tasks: Mapping[str, Task], contacts: Contacts, places: Sequence[int] | range
) -> Iterator[PartitionNow]:
    """Return partitions of a store."""
    for partition in places:
        name = task_of(store, partition)
        task = tasks.get(name)
        if task is None:
            yield PartitionNow(store.name, partition, name, Condition.UNKNOWN, None, (), (), 0, None, "")
            continue
        active = next((each for each in task.replicas if each.instance_id == task.active), None)
        ready = sum(each.state == TaskState.RUNNING for each in task.replicas)
        condition = _of_copies(task) if store.is_global else condition_of(task, active, ready, contacts)
        lag = max((each.lag or 0 for each in task.replicas), default=None) if store.is_global else _lag(active)
        standbys = tuple(each.instance_id for each in task.replicas) if store.is_global else task.standbys
        yield PartitionNow(
            store.name, partition, name, condition, task.active, standbys, task.warm_ups, ready, lag, task.reason
        )


def condition_of(task: Task, active: Replica | None, ready: int, contacts: Contacts) -> Condition:
    """Return how a task does. `active`: the report of its active, `ready`: how many of its copies run."""
    if task.active is None:
        return Condition.NOBODY
    if _is_silent(contacts, task.active):
        return Condition.SILENT
    if active is None or active.state != TaskState.RUNNING:
        return Condition.FAILED if active is not None and active.state == TaskState.ERROR else Condition.RESTORING
    if active.lag is not None and active.lag >= BEHIND:
        return Condition.BEHIND
    others = (*task.standbys, *task.warm_ups)
    return Condition.THIN if ready < 1 + len(others) or _is_silent(contacts, *others) else Condition.WELL


def _of_copies(task: Task) -> Condition:
    """Return how a global store does: every node should have all of it."""
    states = {each.state for each in task.replicas}
    if not states:
        return Condition.NOBODY
    if TaskState.RUNNING not in states:
        return Condition.FAILED if TaskState.ERROR in states else Condition.RESTORING
    return Condition.WELL if states == {TaskState.RUNNING} else Condition.THIN


def _is_silent(contacts: Contacts, *instance_ids: str) -> bool:
    """Whether one of these nodes is."""
    return any(each in contacts and contacts[each].contact is Contact.SILENT for each in instance_ids)


def _lag(replica: Replica | None) -> int | None:
    return None if replica is None else replica.lag
