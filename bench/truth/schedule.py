"""What goes wrong, and when: one seeded schedule for all systems. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Fault(StrEnum):
    """What goes wrong in a part of a run."""

    NONE = "none"
    KILL = "kill"
    """A serving process is killed, and started again after a while."""
    FREEZE = "freeze"
    """A serving process stands still (SIGSTOP), and goes on."""
    CUT = "cut"
    """No bytes pass between what serves and what it is filled from."""
    WRITER = "writer"
    """Spark's driver is killed in the middle of a batch, and started again after a while."""
    DRIVER = "driver"
    """Spark's driver is asked to end, and started again."""


SAID: Final = {
    Fault.NONE: "no fault",
    Fault.KILL: "a serving process killed",
    Fault.FREEZE: "a serving process frozen",
    Fault.CUT: "cut from its source",
    Fault.WRITER: "writer killed in a batch",
    Fault.DRIVER: "driver restarted",
}
_REPEATS: Final = {Fault.KILL: 2, Fault.FREEZE: 2, Fault.WRITER: 3}
_LASTS_S: Final = {Fault.NONE: 12.0, Fault.KILL: 3.0, Fault.FREEZE: 8.0, Fault.CUT: 8.0, Fault.WRITER: 3.0}


@dataclass(frozen=True, slots=True)
class Blow:
    """One fault.

    Attributes:
        after_s: how long all is well before it.
        lasts_s: for how long what is hit is away.
        victim: which of the serving processes, counted modulo their number.
        fraction: how far into a batch, by how long one takes.

    """

    fault: Fault
    after_s: float
    lasts_s: float
    victim: int
    fraction: float


Schedule = Callable[[Fault, int], Sequence[Blow]]
"""What happens in the part of a fault, by a seed."""


def schedule(fault: Fault, seed: int) -> Sequence[Blow]:
    """Return what happens in the part of a run that has to do with a fault; the same alone as in a whole run."""
    rng = random.Random(f"{fault}-{seed}")  # noqa: S311 - nothing secret
    first = rng.randrange(4)
    return [
        Blow(
            fault,
            after_s=round(rng.uniform(4.0, 6.0), 2),
            lasts_s=_LASTS_S.get(fault, 0.0),
            victim=first + 2 * number,  # of ours, a node and a router
            fraction=round(rng.uniform(0.3, 0.9), 2),
        )
        for number in range(_REPEATS.get(fault, 1))
    ]
