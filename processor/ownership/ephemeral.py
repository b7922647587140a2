"""Ephemeral tasks: one active each, and nothing beside it.

Their stores begin empty wherever they are opened, so that there is no state to be near to, nothing to warm up and
nobody to hand over from. A move forgets what was there: an active stays while its node does, even where balance would
have it elsewhere.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Mapping

from processor.ownership.model import Fleet
from statehouse.assignment import TaskAssignment
from statehouse.topology import TaskId


def seat_ephemeral(
    tasks: Collection[TaskId], current: Mapping[TaskId, TaskAssignment], fleet: Fleet, replicas: Mapping[str, int]
) -> dict[TaskId, TaskAssignment]:
    """Return who holds each task. `replicas`: how many of other tasks each node holds; it decides between equals."""
    nothing = TaskAssignment()
    was = {task: current.get(task, nothing) for task in sorted(set(tasks))}
    staying = Counter(holders.active for holders in was.values() if holders.active in fleet.accepting)
    room = [(staying[node], replicas[node], node) for node in fleet.accepting]
    heapq.heapify(room)
    planned = {}
    for task, holders in was.items():
        if holders.active not in fleet.accepting:
            count, others, node = room[0]
            heapq.heapreplace(room, (count + 1, others, node))
            planned[task] = TaskAssignment(
                node, reason=f"active on {node}: {_cause(holders, fleet)}, it has the fewest"
            )
        elif holders.replicas != (holders.active,):
            planned[task] = TaskAssignment(holders.active, reason="an ephemeral store has no standbys")
        else:
            planned[task] = holders
    return planned


def _cause(was: TaskAssignment, fleet: Fleet) -> str:
    if was.active is None:
        return "nobody has it yet"
    return fleet.why_not_accepting(was.active) if was.active in fleet.live else f"{was.active} is gone"
