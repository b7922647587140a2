"""At how many old moments of a store the walks of a caller may be. Pure.

Nodes keep so many moments for walks (`statehouse/contract/moment_leases.py`), and don't know whose walks they are:
their caller is a router. So routers see to it that one caller's walks leave places for those of others. As with
watches, a caller is an address, and each router counts for itself.
A moment that stays by its id needs no place.
"""

from __future__ import annotations

from typing import Final

from statehouse.contract.batch_cuts import is_kept
from statehouse.contract.moment_leases import LEASE_MS, LEASED_MAX
from statehouse.contract.moments import MomentBound
from statehouse.errors import LookupFailure, Reason
from statehouse.runtime.address_limits import AddressLimit, caller_at

PLACE_S: Final = LEASE_MS / 1_000
"""A walk that was not ended keeps its place for so long after its last page, as nodes keep its moment."""

Walked = tuple[str, str, int]
"""A moment of a store: the store, the query, the batch."""


def walked_in(store: str, bound: MomentBound | None, newest: tuple[str, int] | None) -> Walked | None:
    """Return the moment that a page needs a place for, None if it needs none.

    `newest`: the query of the store, and its newest batch; None: not known, and nothing is refused.
    """
    if bound is None or newest is None:
        return None
    query_id, newest_batch = newest
    batch_id = bound.exactly(query_id)
    return None if batch_id is None or is_kept(batch_id, newest_batch) else (store, query_id, batch_id)


class WalkShares:
    """The places of callers' walks, `LEASED_MAX` for each store. Times are seconds of one clock.

    A caller may have as many as are left for others; one alone has half. Walks at the same moment share a place.
    """

    def __init__(self) -> None:
        self._limits: dict[str, AddressLimit] = {}
        # When a page was asked for, the longest ago first.
        self._asked_at: dict[tuple[str, Walked], float] = {}

    def taken(self, store: str) -> int:
        """Return how many places of a store are taken."""
        limit = self._limits.get(store)
        return 0 if limit is None else limit.taken

    def enter(self, address: str, walked: Walked, now_s: float) -> None:
        """Take a place, or keep the one that the caller has.

        Raises:
            LookupFailure: OVERLOADED, there is none left for this caller.

        """
        self._expire(now_s)
        place = caller_at(address), walked
        if self._asked_at.pop(place, None) is None:
            store = walked[0]
            limit = self._limits.get(store) or AddressLimit(LEASED_MAX, None)
            if limit.enter(place[0]) is not None:
                raise LookupFailure(
                    Reason.OVERLOADED,
                    f"walks from this address are at as many old moments of store {store} as may be kept for them: end "
                    "some, or begin again with the newest one",
                    {"store": store},
                )
            self._limits[store] = limit
        self._asked_at[place] = now_s

    def leave(self, address: str, walked: Walked) -> None:
        """Give a place back: a walk has ended. The next page of the caller's others at the moment takes it again."""
        place = caller_at(address), walked
        if self._asked_at.pop(place, None) is not None:
            self._release(place)

    def _expire(self, now_s: float) -> None:
        while self._asked_at:
            place, asked_at = next(iter(self._asked_at.items()))
            if now_s - asked_at < PLACE_S:
                return
            del self._asked_at[place]
            self._release(place)

    def _release(self, place: tuple[str, Walked]) -> None:
        caller, (store, _, _) = place
        limit = self._limits[store]
        limit.leave(caller)
        if not limit.taken:
            del self._limits[store]
