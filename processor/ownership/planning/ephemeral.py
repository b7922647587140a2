"""Places ephemeral tasks: each has one active and no other copy.

Their stores start empty on every node, so there is no state to move near to, no warm-up and no hand-over. A move loses
the content, so an active stays while its node lives, even if balance would move it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Mapping

from processor.ownership.planning.loads import Loads
from processor.ownership.planning.model import LiveNodes
from processor.ownership.planning.shares import exact_shares
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.topology import TaskId


def seat_ephemeral(
    tasks: Collection[TaskId], current: Mapping[TaskId, TaskAssignment], fleet: LiveNodes, loads: Loads
) -> dict[TaskId, TaskAssignment]:
    """Return the holder of each task. `loads` counts the replicas of other tasks, and decides between equal nodes."""
    nothing = TaskAssignment()
    was = {task: current.get(task, nothing) for task in sorted(set(tasks))}
    staying = Counter(holders.active for holders in was.values() if holders.active in fleet.accepting)
    shares = exact_shares(len(was), fleet.accepting, most=len(was))
    excesses = [(staying[node] * shares.one - share, loads.excess(node), node) for node, share in shares.of.items()]
    heapq.heapify(excesses)
    planned = {}
    for task, holders in was.items():
        if holders.active not in fleet.accepting:
            excess, others, node = excesses[0]
            heapq.heapreplace(excesses, (excess + shares.one, others, node))
            planned[task] = TaskAssignment(
                node, reason=f"active on {node}: {_cause(holders, fleet)}, it has the fewest for its capacity"
            )
        elif holders.replicas != (holders.active,):
            planned[task] = TaskAssignment(holders.active, reason="an ephemeral store has no standbys")
        else:
            planned[task] = holders
    return planned


def _cause(was: TaskAssignment, fleet: LiveNodes) -> str:
    if was.active is None:
        return "nobody has it yet"
    return fleet.why_not_accepting(was.active) if was.active in fleet.live else f"{was.active} is gone"
