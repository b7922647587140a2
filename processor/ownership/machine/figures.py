"""How the fleet of an acting controller stands, in a few numbers, for monitoring. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from statehouse.contract.assignment import Assignment
from statehouse.contract.topology import TaskId


@dataclass(frozen=True, slots=True)
class PlacedTasks:
    """How the tasks of an assignment stand.

    Attributes:
        moves: tasks with a warm-up: it is being built so that the active can move to it.
        unplaced: tasks without an active.

    """

    moves: int = 0
    unplaced: int = 0

    @classmethod
    def of(cls, assignment: Assignment, tasks: Collection[TaskId]) -> PlacedTasks:
        """Count the tasks that there should be; one that the assignment doesn't name has no active."""
        placed = [holders for task in tasks if (holders := assignment.tasks.get(task)) is not None]
        return cls(
            moves=sum(1 for holders in placed if holders.warm_ups),
            unplaced=len(tasks) - sum(1 for holders in placed if holders.active is not None),
        )


@dataclass(frozen=True, slots=True)
class OwnershipFigures:
    """What an acting controller knows of its fleet.

    Attributes:
        epoch: of the assignment in force.
        live_nodes: nodes whose sessions last.
        damped_nodes: nodes that get nothing new, because their sessions keep ending.
        tasks: tasks that there should be.
        placed: how they stand.
        under_replicated: tasks with fewer copies than asked for, by the last plan.
        kafka_silence_s: seconds for which Kafka has been out of contact.

    """

    epoch: int
    live_nodes: int
    damped_nodes: int
    tasks: int
    placed: PlacedTasks
    under_replicated: int
    kafka_silence_s: float
