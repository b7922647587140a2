"""Plans the next assignment: a pure function of the present assignment and the nodes' reports.

It is KIP-441 without timers. Kafka Streams checks every ten minutes whether a warm-up has caught up; here each report
that allows a change causes a plan, so a promotion follows immediately. Standbys are spread over racks as in KIP-708.

Every plan keeps these rules. Every task has exactly one active while any node lives. No node holds a task twice. An
active is caught up if any assigned replica of its task is. A copy is dropped only if the remaining copies are at least
as good, so the last caught-up one is never dropped. There are at most `max_warmup_replicas` warm-ups. An ephemeral task
has only its active, which stays while its node lives. The same input gives the same output. A plan is one step; the
next plan, made when reports have changed, continues.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from processor.ownership.planning.actives import balance_actives, seat_actives
from processor.ownership.planning.ephemeral import seat_ephemeral
from processor.ownership.planning.model import LiveNodes, NodeView, Plan, PlannerSettings, Slot, slots_of
from processor.ownership.planning.standbys import place_standbys, start_warm_ups
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.topology import TaskId


def plan(
    tasks: Collection[TaskId],
    nodes: Mapping[str, NodeView],
    current: Mapping[TaskId, TaskAssignment],
    settings: PlannerSettings,
    lingering: Collection[TaskId] = frozenset(),
    ephemeral: Collection[TaskId] = frozenset(),
) -> Plan:
    """Return the next assignment.

    Args:
        tasks: all tasks.
        nodes: the live nodes, as they report themselves.
        current: the assignment in force; it may name nodes that are gone.
        settings: the aims of the planner.
        lingering: tasks with a recent hand-over; they drop no copy yet, because routers still send lookups by the
            previous epoch.
        ephemeral: the tasks with ephemeral stores: each has an active and no other copy. They are balanced among
            themselves, without regard to the actives of other tasks.

    """
    fleet = LiveNodes(nodes, settings)
    without_copies = frozenset(ephemeral)
    slots = slots_of((task for task in tasks if task not in without_copies), current, fleet)
    if not fleet.live:
        # No node is live. The last holders have the state, and may have lost contact only with Kafka: routers that
        # still reach them should continue to use them.
        nothing = TaskAssignment()
        return Plan({task: current.get(task, nothing) for task in tasks}, tuple(slot.task for slot in slots))
    seat_actives(slots, fleet)
    balance_actives(slots, fleet)
    loads = place_standbys(slots, fleet)
    start_warm_ups(slots, loads, fleet)
    copies = 1 + settings.num_standby_replicas
    deferred = []
    planned = {}
    for slot in slots:
        if slot.surplus and not _drop_surplus(slot, fleet, fresh=slot.task in lingering or _is_hand_over(slot)):
            deferred.append(slot.task)
        planned[slot.task] = _assembled(slot, fleet)
    return Plan(
        planned | seat_ephemeral(without_copies, current, fleet, loads),
        tuple(task for task, holders in planned.items() if 1 + len(holders.standbys) < copies),
        tuple(deferred),
    )


def _is_hand_over(slot: Slot) -> bool:
    """Whether this plan changes the active: the old one stays as a standby, and only a later epoch drops it."""
    return slot.active != slot.was.active or any(
        node in slot.was.warm_ups for node in (*slot.standbys, *slot.surplus) if node not in slot.was.standbys
    )


def _drop_surplus(slot: Slot, fleet: LiveNodes, *, fresh: bool) -> bool:
    """Drop surplus copies if the wanted ones are as good; False if only the recent hand-over forbids it."""
    kept = [*([] if slot.active is None else [slot.active]), *slot.standbys]
    weakest = max(fleet.readiness(slot, node) for node in kept)
    enough = len(slot.standbys) >= fleet.settings.num_standby_replicas
    may_go = [
        node
        for node in slot.surplus
        # A leaving node serves until it leaves, if its copy is one of those asked for.
        if fleet.readiness(slot, node) >= weakest and (enough or node in fleet.accepting)
    ]
    if fresh:
        return not may_go
    for node in may_go:
        slot.surplus.remove(node)
        role = "warm-up" if node in slot.was.warm_ups else "standby"
        slot.reasons.append(f"{role} on {node} dropped: the copies that stay are as good")
    return True


def _assembled(slot: Slot, fleet: LiveNodes) -> TaskAssignment:
    """Return the task's new assignment; the same object if nothing changed, so that its record isn't rewritten."""
    was = slot.was
    standbys = [*slot.standbys, *slot.surplus]
    warm_ups = () if slot.warm_up is None else (slot.warm_up,)
    if slot.active == was.active and warm_ups == was.warm_ups and set(standbys) == set(was.standbys):
        return was
    place = {node: number for number, node in enumerate(was.standbys)}
    standbys.sort(key=lambda node: place.get(node, len(place)))
    gone = [f"{node} is gone" for node in (*was.standbys, *was.warm_ups) if node not in fleet.live]
    ready = [
        f"standby on {node}: its warm-up is over" for node in standbys if node in was.warm_ups and node in slot.standbys
    ]
    added = [
        f"standby on {node}: a copy was missing, {node} {fleet.describe(slot, node)}"
        for node in slot.standbys
        if node not in was.replicas
    ]
    reasons = list(dict.fromkeys((*gone, *slot.reasons, *ready, *added))) or [
        "unneeded warm-up kept as standby for now"
    ]
    return TaskAssignment(slot.active, tuple(standbys), warm_ups, "; ".join(reasons))
