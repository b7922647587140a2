"""The order of the assignment's epochs, which are counted in a circle. Pure.

A writer of manifests can write one with the largest epoch, and readers that are started later take it, as a compacted
log may begin with any. If epochs were only numbers, none could follow. So the count goes on with 1 after
EPOCH_MAX, and only those shortly before an epoch are older than it: every epoch has a following one that all readers
take, whatever each of them has read so far (docs/adr/0029-control-records-are-bounded-and-signed.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from statehouse.errors.checked import COUNT_MAX

EPOCH_MAX: Final = COUNT_MAX
OLDER_MAX: Final = 2**20
"""So many epochs before an epoch are older than it. No fleet has had so many while a process was running."""


def is_newer(epoch: int, than: int) -> bool:
    """Whether an epoch comes after another one. 0 is before the first, and older than all."""
    if not epoch or not than:
        return epoch > than
    return (than - epoch) % EPOCH_MAX >= OLDER_MAX


def newest(epoch: int, other: int) -> int:
    """Return the second epoch if it is newer than the first, else the first."""
    return other if is_newer(other, epoch) else epoch


def following(epoch: int, known: Iterable[int] = ()) -> int:
    """Return the next epoch after one, that is newer than each of those known, too.

    `known`: what processes say that they act on. They may have learned other epochs than the log now has.
    """
    at = epoch
    others = set(known)
    while (blocking := next((each for each in others if not is_newer(at % EPOCH_MAX + 1, each)), None)) is not None:
        others.discard(blocking)
        at = blocking
    return at % EPOCH_MAX + 1
