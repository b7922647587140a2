"""How long a checkpoint that was made for other nodes is kept, and how many there are. No I/O, no clock.

While one is there, it keeps files on the disk that the store has merged away since.
"""

from __future__ import annotations

from typing import Final

REUSED_S: Final = 30.0
"""For so long one is given to further nodes: a newer one would save them few records."""
KEPT_S: Final = 120.0
"""One from which nobody has begun to read a file for so long goes: a file takes seconds."""
LONGEST_S: Final = 3_600.0
"""One of this age goes in any case."""
_LEAST: Final = 4
_SHARE: Final = 8


def is_reusable(made_at: float, now: float) -> bool:
    """Whether a checkpoint is young enough to be given to another node. Times are of one clock, in seconds."""
    return now - made_at <= REUSED_S


def is_over(made_at: float, used_at: float, now: float) -> bool:
    """Whether a checkpoint is to be removed."""
    return now - used_at > KEPT_S or now - made_at > LONGEST_S


def most_given(tasks: int) -> int:
    """Return how many checkpoints a node with so many tasks may have: a part of its stores, but several."""
    return max(_LEAST, tasks // _SHARE)
