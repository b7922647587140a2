"""Places standbys and warm-ups: the copies besides the active, spread over nodes and racks.

Missing copies are made immediately. A copy on the wrong node moves with a warm-up, within the budget: the new copy is
built first, and the old one is dropped when the new one is as good (KIP-441). Racks come before balance (KIP-708).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from processor.ownership.planning.loads import Loads
from processor.ownership.planning.model import LiveNodes, Readiness, Slot, spread


def place_standbys(slots: Sequence[Slot], fleet: LiveNodes) -> Loads:
    """Choose the standbys of each task from its holders, and add missing ones; return the resulting loads."""
    loads = Loads(len(slots), fleet)
    crowded: list[tuple[Slot, list[str]]] = []
    for slot in slots:
        holders = _holders(slot, fleet)
        staying = [node for node in holders if node in fleet.accepting]
        slot.surplus = [node for node in holders if node not in fleet.accepting]
        loads.add(_owner(slot), 1)
        if len(staying) > wanted(slot, fleet):
            crowded.append((slot, staying))
        else:
            slot.standbys = staying
            loads.add_all(_beside_owner(slot), 1)
            loads.pair(slot)
    for slot, staying in crowded:
        slot.standbys = _best(slot, staying, loads, fleet)
        slot.surplus += [node for node in staying if node not in slot.standbys]
        loads.add_all(_beside_owner(slot), 1)
        loads.pair(slot)
    for slot in slots:
        for _ in range(wanted(slot, fleet) - len(slot.standbys)):
            _add_standby(slot, loads, fleet)
    _even_out(slots, loads, fleet)
    return loads


def wanted(slot: Slot, fleet: LiveNodes) -> int:
    """Return the number of standbys that a task can have, at most the number asked for."""
    others = len(fleet.accepting) - (slot.active in fleet.accepting)
    return min(fleet.settings.num_standby_replicas, others)


def _holders(slot: Slot, fleet: LiveNodes) -> list[str]:
    """Return the nodes that may be standbys: standbys, the previous active, and caught-up warm-ups."""
    ready = (node for node in slot.was.warm_ups if node != slot.target and fleet.readiness(slot, node) == 0)
    before = () if slot.was.active is None else (slot.was.active,)
    candidates = dict.fromkeys((*slot.was.standbys, *before, *ready))
    return [node for node in candidates if node in fleet.live and node != slot.active]


def _owner(slot: Slot) -> str | None:
    """Return the node of the active after its move; loads count there."""
    return slot.target or slot.active


def _beside_owner(slot: Slot) -> list[str]:
    """Return the nodes of the standbys after the active's move."""
    if slot.target is None or slot.target not in slot.standbys:
        return slot.standbys
    swapped = slot.active if slot.active is not None else slot.target
    return [swapped if node == slot.target else node for node in slot.standbys]


def _best(slot: Slot, nodes: Sequence[str], loads: Loads, fleet: LiveNodes) -> list[str]:
    """Return the holders to keep: in distinct racks, then the most caught-up, then the least loaded.

    A warm-up that is ready goes first: it was begun by the loads of all tasks, and not all are known here.
    """
    racks = {fleet.rack(slot.active)} if slot.active is not None else set()
    left, chosen = list(nodes), []
    for _ in range(wanted(slot, fleet)):
        node = min(
            left,
            key=lambda node: (
                node != slot.target,
                bool(fleet.racks) and fleet.rack(node) in racks,
                fleet.readiness(slot, node),
                node not in slot.was.warm_ups,
                loads.excess(node),
                node,
            ),
        )
        left.remove(node)
        chosen.append(node)
        racks.add(fleet.rack(node))
    return [node for node in nodes if node in chosen]


def _add_standby(slot: Slot, loads: Loads, fleet: LiveNodes) -> None:
    """Add a missing standby: where a copy is being built, where state is on disk, or on the least loaded node."""
    taken = {node for node in (slot.active, *slot.standbys, *slot.surplus) if node is not None}
    racks = {fleet.rack(node) for node in taken if node not in slot.surplus} if fleet.racks else set()
    pool = [node for node in dict.fromkeys((*slot.was.warm_ups, slot.target, *slot.views)) if node in fleet.accepting]
    begun = [
        node
        for node in pool
        if node is not None
        and node not in taken
        and (node in slot.was.warm_ups or node == slot.target or loads.has_room(node))
        and (not fleet.racks or fleet.rack(node) not in racks)
    ]
    node = min(
        begun,
        key=lambda node: (node not in slot.was.warm_ups, node != slot.target, fleet.rank(slot, node), node),
        default=None,
    )
    if node is None:
        node = loads.least(taken, racks, slot.active)
    if node is None:
        return
    slot.standbys.append(node)
    if node == slot.target:
        # The target of the move is also the missing copy, and the present active will stay as a standby.
        loads.add(slot.active, 1)
    else:
        loads.add(node, 1)
    loads.pair(slot, node)


def _even_out(slots: Sequence[Slot], loads: Loads, fleet: LiveNodes) -> None:
    """Move badly placed new copies, one task after the other; no node has started to build them."""
    new = [
        slot
        for slot in slots
        if slot.target is None
        and slot.standbys
        and not any(node in slot.views or node in slot.was.replicas for node in slot.standbys)
    ]
    moved = True
    while moved:  # A move may make another one useful. It ends: each gains racks, or lessens a difference.
        moved = False
        for slot, node in _standby_moves(new, loads, fleet):
            replaced = _replaced_by(slot, node, loads, fleet)
            if replaced is not None:
                loads.move(replaced, node)
                slot.standbys[slot.standbys.index(replaced)] = node
                moved = True


def start_warm_ups(slots: Sequence[Slot], loads: Loads, fleet: LiveNodes) -> None:
    """Keep the warm-ups that are still useful, and start new ones within the budget."""
    budget = fleet.settings.max_warmup_replicas
    for slot in slots:
        if slot.target is not None and slot.target in slot.was.warm_ups and slot.target not in slot.standbys:
            slot.warm_up = slot.target if budget > 0 else None
            budget -= slot.warm_up is not None
    budget -= _continue_warm_ups(slots, loads, fleet, budget)
    for slot in slots:
        for node in slot.was.warm_ups:
            if node in fleet.live and not slot.is_on(node):
                slot.surplus.append(node)
    waiting = [slot for slot in slots if slot.target is not None and not slot.is_on(slot.target)]
    waiting.sort(key=lambda slot: (slot.active in fleet.accepting, fleet.rank(slot, slot.target or ""), slot.task))
    for slot in waiting:
        if budget > 0 and not _is_crowded(slot, fleet):
            slot.warm_up = slot.target
            budget -= 1
            stays = slot.active is None or slot.active in fleet.accepting
            why = "for balance" if stays else fleet.why_not_accepting(slot.active or "")
            slot.reasons.append(f"warm-up on {slot.warm_up}: the active is to move there from {slot.active}, {why}")
    if budget > 0:
        _move_standbys(slots, loads, fleet, budget)


def _continue_warm_ups(slots: Sequence[Slot], loads: Loads, fleet: LiveNodes, budget: int) -> int:
    """Keep those of standbys that are still useful; return how many."""
    moving = [slot for slot in slots if slot.was.warm_ups and slot.warm_up is None and slot.target is None]
    count, before = 0, -1
    while before < count:  # One that is kept may make another one useful, as when both began.
        before = count
        for slot in moving:
            if slot.warm_up is None and count < budget:
                slot.warm_up = _continued(slot, loads, fleet)
                count += slot.warm_up is not None
    return count


def _is_crowded(slot: Slot, fleet: LiveNodes) -> bool:
    """Whether an earlier move of this task still has copies to drop; then it gets no new ones."""
    return any(node in fleet.accepting for node in slot.surplus)


def _continued(slot: Slot, loads: Loads, fleet: LiveNodes) -> str | None:
    """Return the warm-up if it still makes a better standby than the one that it replaces, else None."""
    for node in slot.was.warm_ups:
        if node in fleet.accepting and not slot.is_on(node):
            replaced = _replaced_by(slot, node, loads, fleet)
            if replaced is not None:
                loads.move(replaced, node)
                return node
    return None


def _replaced_by(slot: Slot, node: str, loads: Loads, fleet: LiveNodes) -> str | None:
    """Return the standby that a node should replace: one in an already used rack, or on an overloaded node."""
    copies = [*([] if slot.active is None else [slot.active]), *slot.standbys]
    now = spread(copies, fleet) if fleet.racks else 0
    best: tuple[int, int, str] | None = None
    for old in slot.standbys:
        gain = 0
        if fleet.racks:
            gain = spread([*(copy for copy in copies if copy != old), node], fleet) - now
        excess = loads.excess(old) - loads.excess(node)
        if gain > 0 or (gain == 0 and excess > loads.one):
            best = max(best, (gain, excess, old)) if best is not None else (gain, excess, old)
    return None if best is None else best[2]


def _move_standbys(slots: Sequence[Slot], loads: Loads, fleet: LiveNodes, budget: int) -> None:
    """Start warm-ups for standbys in the wrong rack, or on a node above its share."""
    free = [
        slot
        for slot in slots
        if slot.target is None
        and slot.warm_up is None
        and slot.standbys
        and not _is_crowded(slot, fleet)
        and all(fleet.readiness(slot, node) == Readiness.CAUGHT_UP for node in slot.standbys)
    ]
    for slot, node in _standby_moves(free, loads, fleet):
        replaced = None if slot.warm_up else _replaced_by(slot, node, loads, fleet)
        if replaced is None:
            continue
        loads.move(replaced, node)
        slot.warm_up = node
        slot.reasons.append(f"warm-up on {node}: to be standby in place of {replaced}, for balance and distinct racks")
        budget -= 1
        if budget <= 0:
            return


def _standby_moves(slots: Sequence[Slot], loads: Loads, fleet: LiveNodes) -> Iterable[tuple[Slot, str]]:
    """Yield standby moves to try: for racks first, then to nodes with state on disk, then to the least loaded."""
    attainable = min(len(fleet.racks), fleet.settings.num_standby_replicas + 1)
    for slot in slots if fleet.racks else ():
        copies = _copies(slot)
        if spread(copies, fleet) < attainable:
            node = loads.least(copies, {fleet.rack(copy) for copy in copies}, slot.active, strict=True)
            if node is not None:
                yield slot, node
    if loads.is_even():
        return
    kept = [
        (fleet.rank(slot, node), slot.task, node, slot)
        for slot in slots
        for node in slot.views
        if node in fleet.accepting and not slot.is_on(node)
    ]
    for *_, node, slot in sorted(kept, key=lambda move: move[:3]):
        yield slot, node
    for slot in sorted(slots, key=lambda slot: -max(loads.excess(node) for node in slot.standbys)):
        if loads.is_even():
            return
        top = max(slot.standbys, key=loads.excess)
        if loads.excess(top) - loads.lowest > loads.one:
            copies = _copies(slot)
            racks = {fleet.rack(copy) for copy in copies if copy != top} if fleet.racks else set()
            node = loads.least(copies, racks, slot.active)
            if node is not None:
                yield slot, node


def _copies(slot: Slot) -> Collection[str]:
    return [node for node in (slot.active, *slot.standbys, *slot.surplus) if node is not None]
