"""The last epochs of the assignment, and what each moved: enough to show the fleet as it was at any of them. Pure.

Only the newest placement is kept whole. An earlier one is made from it by taking moves back, so an epoch costs as much
memory as it moved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from statehouse.client.answers import Fleet

EPOCHS_MAX: Final = 50
MOVES_MAX: Final = 100_000
"""Of all epochs that are kept: the start of a large fleet alone moves all its tasks."""
OLDER_MAX: Final = 5
"""So many answers in a row with an epoch before the newest mean that the assignment began anew. A single one comes from
a router that is behind."""


@dataclass(frozen=True, slots=True)
class Holders:
    """The nodes that hold a task, by instance id."""

    active: str | None
    standbys: tuple[str, ...] = ()
    warm_ups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Move:
    """A task whose holders an epoch changed. `before` is None for a new task, `after` for one that is gone."""

    task: str
    before: Holders | None
    after: Holders | None
    reason: str

    @property
    def moves_active(self) -> bool:
        """Whether the active is another node than before."""
        return self.before is not None and self.after is not None and self.before.active != self.after.active


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch, as this process saw it come.

    `missed`: how many epochs passed unseen before it; their moves are among its own. `is_first`: nothing was known
    before it.
    """

    number: int
    seen_at_ms: int
    reason: str
    moves: tuple[Move, ...] = ()
    missed: int = 0
    is_first: bool = False


class EpochLog:
    """The epochs since this process started, at most EPOCHS_MAX."""

    def __init__(self) -> None:
        """Start without any."""
        self._epochs: deque[Epoch] = deque()
        self._holders: dict[str, Holders] = {}
        self._older = 0
        self._version: str | None = None

    @property
    def newest_first(self) -> tuple[Epoch, ...]:
        """The epochs that are known."""
        return tuple(reversed(self._epochs))

    def take(self, fleet: Fleet, at_ms: int) -> bool:
        """Take the fleet as a router tells of it. Return whether it is of the newest epoch."""
        if fleet.version != self._version:  # another version of the application serves, whose epochs count on their own
            self._epochs.clear()
            self._version, self._older = fleet.version, 0
        newest = self._epochs[-1].number if self._epochs else None
        if newest is not None and fleet.epoch < newest:
            self._older += 1
            if self._older < OLDER_MAX:
                return False
            self._epochs.clear()
            newest = None
        self._older = 0
        if newest == fleet.epoch:
            return True
        holders = {
            task.task: Holders(task.active, task.standbys, task.warm_ups)
            for task in fleet.tasks
            if task.active is not None or task.standbys
        }
        if newest is None:
            epoch = Epoch(fleet.epoch, at_ms, fleet.reason, is_first=True)
        else:
            moves = _moves(self._holders, holders, {task.task: task.reason for task in fleet.tasks})
            epoch = Epoch(fleet.epoch, at_ms, fleet.reason, moves, missed=fleet.epoch - newest - 1)
        self._epochs.append(epoch)
        self._holders = holders
        self._forget()
        return True

    def find(self, number: int) -> Epoch | None:
        """Return an epoch, None if it is not known, or no longer."""
        return next((epoch for epoch in self._epochs if epoch.number == number), None)

    def holders_at(self, number: int) -> Mapping[str, Holders]:
        """Return the holders of each task as they were at a known epoch."""
        holders = dict(self._holders)
        for epoch in reversed(self._epochs):
            if epoch.number <= number:
                break
            for move in epoch.moves:
                if move.before is None:
                    holders.pop(move.task, None)
                else:
                    holders[move.task] = move.before
        return holders

    def _forget(self) -> None:
        while len(self._epochs) > EPOCHS_MAX or (
            len(self._epochs) > 1 and sum(len(epoch.moves) for epoch in self._epochs) > MOVES_MAX
        ):
            self._epochs.popleft()


def _moves(before: Mapping[str, Holders], after: Mapping[str, Holders], reasons: Mapping[str, str]) -> tuple[Move, ...]:
    return tuple(
        Move(task, before.get(task), after.get(task), reasons.get(task, ""))
        for task in sorted(before.keys() | after.keys(), key=task_order)
        if before.get(task) != after.get(task)
    )


def task_order(task: str) -> tuple[str, int]:
    """Return a sort key of task ids: by number within their sub-topology."""
    sub_topology, _, partition = task.rpartition("_")
    return sub_topology, int(partition) if partition.isdigit() else -1
