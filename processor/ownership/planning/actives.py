"""Chooses the active node of each task: which node answers now, and to which node balance will move it.

There are two steps. First each active goes to a node with the state: a lost or lagging active is replaced immediately,
without regard to balance. Then as few actives as possible move to balance the counts: a move to a caught-up replica
happens immediately; for any other move the active stays where it is, and gets a target.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence

from processor.ownership.planning.model import LiveNodes, Readiness, Slot
from processor.ownership.planning.shares import exact_shares


def seat_actives(slots: Sequence[Slot], fleet: LiveNodes) -> None:
    """Put the active of each task on its most caught-up node; a task that no node holds gets no active."""
    load = Counter(slot.was.active for slot in slots)
    for slot in slots:
        previous = slot.was.active
        slot.active = _seat(slot, fleet, load)
        if slot.active != previous:
            load[previous] -= 1
            load[slot.active] += 1


def _seat(slot: Slot, fleet: LiveNodes, load: Counter[str | None]) -> str | None:
    """Return the node that is active now. The incumbent stays unless another node has a better readiness.

    Live nodes are compared by readiness, not by lag: two replicas near the end of a log overtake each other all the
    time, and each hand-over makes the caches behind it useless.
    """
    incumbent = slot.was.active if slot.was.active in fleet.live else None
    others = [node for node in (*slot.was.standbys, *slot.was.warm_ups) if node in fleet.live and node != incumbent]
    if incumbent is None:
        pool = list(dict.fromkeys((*others, *slot.views)))
        if not pool:
            return None
        heir = min(
            pool,
            key=lambda node: (
                fleet.readiness(slot, node),
                node not in fleet.accepting,
                fleet.rank(slot, node),
                node not in others,
                fleet.fill(load[node], node),
                node,
            ),
        )
        cause = "" if slot.was.active is None else f"{slot.was.active} is gone; "
        slot.reasons.append(f"active on {heir}: {cause}{heir} {fleet.describe(slot, heir)}")
        return heir
    readiness = fleet.readiness(slot, incumbent)
    bar = Readiness.CAUGHT_UP if readiness is not Readiness.CAUGHT_UP else None
    if readiness > Readiness.RESTORED and not any(fleet.is_caught_up(slot, node) for node in others):
        bar = Readiness.RESTORED
    leaving = incumbent not in fleet.accepting
    if leaving and bar is None:
        others = [node for node in others if node in fleet.accepting]
        bar = Readiness.CAUGHT_UP
    heirs = [node for node in others if bar is not None and fleet.readiness(slot, node) <= bar]
    if not heirs:
        return incumbent
    heir = min(
        heirs,
        key=lambda node: (node not in fleet.accepting, fleet.rank(slot, node), fleet.fill(load[node], node), node),
    )
    cause = fleet.why_not_accepting(incumbent) if leaving else f"{incumbent} {fleet.describe(slot, incumbent)}"
    slot.reasons.append(f"active from {incumbent} to {heir}: {cause}; {heir} {fleet.describe(slot, heir)}")
    return heir


def balance_actives(slots: Sequence[Slot], fleet: LiveNodes) -> None:
    """Bring each accepting node to its share of actives, with as few moves as possible."""
    load = Counter(slot.active for slot in slots if slot.active in fleet.accepting)
    shares = exact_shares(len(slots), fleet.accepting, most=len(slots)).rounded(load)
    room = {node: share - load[node] for node, share in shares.items()}
    if all(free == 0 for free in room.values()):
        return
    movable = [slot for slot in slots if slot.active not in room or room[slot.active] < 0]
    for slot, node in _cheapest_first(movable, room, fleet):
        _take(slot, node, room, fleet)
    # The remaining tasks move to nodes without their state. Partition-major, so that a new node gets some tasks of
    # every sub-topology and not all of the first.
    left = [slot for slot in movable if slot.target is None]
    if any(slot.active is not None for slot in left):
        left.sort(key=lambda slot: (slot.active in fleet.accepting, slot.task.partition, slot.task.sub_topology))
    heap = [(-fleet.fill(free, node), node) for node, free in room.items() if free > 0]
    heapq.heapify(heap)
    for slot in left:
        if not heap:
            break
        if not _may_give(slot, room):
            continue
        _, node = heapq.heappop(heap)
        _take(slot, node, room, fleet)
        if room[node] > 0:
            heapq.heappush(heap, (-fleet.fill(room[node], node), node))
    for slot in movable:
        _settle(slot, fleet)


def _cheapest_first(movable: Iterable[Slot], room: dict[str, int], fleet: LiveNodes) -> Iterable[tuple[Slot, str]]:
    """Yield moves to nodes that have some state: first caught-up, then restoring, then by the state on disk.

    Among immediate moves, those of actives that this plan moves anyway come first: they disturb nobody more.
    """
    moves = []
    for slot in movable:
        for node in dict.fromkeys((*slot.was.warm_ups, *slot.was.standbys, *slot.views)):
            if room.get(node, 0) > 0 and node != slot.active:
                ready = _is_ready(slot, node, fleet)
                order = 0 if ready else 1 if node in slot.was.warm_ups else 2
                stays = slot.active in fleet.accepting
                settled = ready and slot.active == slot.was.active
                moves.append((order, stays, settled, fleet.rank(slot, node), slot.task, node, slot))
    moves.sort(key=lambda move: move[:6])
    for *_, node, slot in moves:
        if slot.target is None and room[node] > 0 and _may_give(slot, room):
            yield slot, node


def _may_give(slot: Slot, room: dict[str, int]) -> bool:
    return slot.active not in room or room[slot.active] < 0


def _take(slot: Slot, node: str, room: dict[str, int], fleet: LiveNodes) -> None:
    """Set a node as the target of a task's active."""
    if slot.active in fleet.accepting and slot.active is not None:
        room[slot.active] += 1
    room[node] -= 1
    slot.target = node


def _is_ready(slot: Slot, node: str, fleet: LiveNodes) -> bool:
    """Whether the active may move there in this epoch: the node was assigned the task, and reports it caught up."""
    return fleet.is_caught_up(slot, node) and (node in slot.was.standbys or node in slot.was.warm_ups)


def _settle(slot: Slot, fleet: LiveNodes) -> None:
    """Make the moves that need no warm-up."""
    node = slot.target
    if node is None:
        return
    if slot.active is None:
        slot.reasons.append(f"active on {node}: no node holds anything of it, {node} has the fewest actives")
    elif _is_ready(slot, node, fleet):
        why = "for balance" if slot.active in fleet.accepting else fleet.why_not_accepting(slot.active)
        slot.reasons.append(f"active from {slot.active} to {node}: {why}, {node} {fleet.describe(slot, node)}")
    elif not slot.views:
        # No node has state yet, so a warm-up would be useless.
        slot.reasons.append(f"active from {slot.active} to {node}: for balance, nobody holds anything of it yet")
    else:
        return
    slot.active, slot.target = node, None
