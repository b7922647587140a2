"""Which kept moments of a store partition stay: by their ids, or because a walk is on its way through them. Pure.

Ids name the same at all replicas (`moments.covers`). A walk of a large store takes longer than its batch stays by that.
So a moment that was read lately has a lease: neither its id nor its age ends it. Nobody asks for one. Routers read a
walk's moment at all of its store's replicas as long as pages come (`router/lookups/walks.py`).

Most reads of a moment are of a new one, and soon over; of a walk's the last one is long after it was kept. So where too
many have been read lately, those have the leases that were used for the longest time. A lease never holds back more
than may be written since the oldest moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LEASE_MS: Final = 60_000
"""From the last read on. A walk whose reader was killed can be gone on with for so long."""
LEASED_MAX: Final = 16
WANTED_MAX: Final = 48
"""As many as ids name."""
AGE_MAX_MS: Final = 600_000


@dataclass(frozen=True, slots=True)
class KeptState:
    """A kept moment.

    Attributes:
        is_wanted: its ids say that it stays.
        age_ms: since it was kept.
        idle_ms: since it was read the last time; negative: it never was.
        written: the bytes that were written since.

    """

    is_wanted: bool
    age_ms: int
    idle_ms: int
    written: int

    @property
    def used_ms(self) -> int:
        """For how long it was read after it was kept."""
        return self.age_ms - self.idle_ms


def staying(kept: Sequence[KeptState], max_bytes: int) -> list[bool]:
    """Return which moments of a store partition stay, oldest first; `max_bytes` may be written since the oldest one."""
    stay = [False] * len(kept)
    wanted = 0
    leased: list[tuple[int, int]] = []
    for place in range(len(kept) - 1, -1, -1):
        each = kept[place]
        if each.written > max_bytes:
            break
        if each.is_wanted and each.age_ms < AGE_MAX_MS and wanted < WANTED_MAX:
            stay[place] = True
            wanted += 1
        elif 0 <= each.idle_ms < LEASE_MS:
            leased.append((each.used_ms, place))
    for _, place in sorted(leased, reverse=True)[:LEASED_MAX]:
        stay[place] = True
    return stay
