"""Which actives moved in a rolling upgrade, and which of these moves it needed. Pure.

A move is needed if the node that gives the active up is leaving or gone. Any other is needed only if it evens the
actives out: the giver ends with fewer than it would have had, the taker with more, and with no more than the giver. So
an active may move between two nodes while a third is updated, whose standbys were all on one of them. All nodes have
the same capacity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.robustness.history import EpochRecord, FaultRecord

_GIVEN_EVENED_OUT_AND_GIVEN_BACK = 3


@dataclass(frozen=True, slots=True)
class Move:
    """An active that moved.

    Attributes:
        update: number of the last update that had begun, from 0.
        during: what was being updated, empty if nothing was any more.
        cause: of the epoch, for people.

    """

    partition: int
    before: str
    after: str
    update: int
    during: str
    is_needed: bool
    cause: str = ""


def moves(epochs: Sequence[EpochRecord], updates: Sequence[FaultRecord]) -> Iterator[Move]:
    """Yield the actives that moved since the first update began.

    Earlier moves don't count: the nodes of a new fleet come one after the other, and an active goes to the replica that
    is restored first.
    """
    drained = set[int]()
    for before, after in pairwise(epochs):
        begun = [number for number, update in enumerate(updates) if update.began_at <= after.at]
        if not begun:
            continue
        update = begun[-1]
        during = updates[update].target if after.at <= updates[update].ended_at else ""
        if during not in before.actives:
            drained.add(update)
        leaving = "" if update in drained else during
        for partition, is_needed in judged(before, after, leaving).items():
            gave, took = before.actives[partition], after.actives[partition]
            yield Move(partition, gave, took, update, during, is_needed, after.reason)


def judged(before: EpochRecord, after: EpochRecord, leaving: str = "") -> Mapping[int, bool]:
    """Return the partitions whose active moved, and whether that was needed; the node `leaving` gives up its own."""
    pairs = enumerate(zip(before.actives, after.actives, strict=True))
    moved = {partition: (gave, took) for partition, (gave, took) in pairs if gave and gave != took}
    there = {node for replicas in after.replicas for node in replicas}
    must = {gave for gave, _ in moved.values() if gave == leaving or gave not in there}
    had, has = Counter(before.actives), Counter(after.actives)
    for gave, took in moved.values():
        if gave in must:
            had[gave] -= 1
            had[took] += 1
    return {
        partition: gave in must or (took != leaving and had[gave] > has[gave] >= has[took] > had[took])
        for partition, (gave, took) in moved.items()
    }


def most_moves(partitions: int, nodes: int) -> int:
    """Return the most moves that the update of a node takes.

    Each active of its share is given up, may have another one moved to even out, and has one given back.
    """
    return _GIVEN_EVENED_OUT_AND_GIVEN_BACK * -(-partitions // nodes)


def restless(moved: Sequence[Move], most: int) -> dict[int, int]:
    """Return the updates with more than so many moves, and how many these were."""
    return {update: count for update, count in Counter(move.update for move in moved).items() if count > most}
