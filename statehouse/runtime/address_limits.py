"""Places for what callers have open at the same time: so many in all, and a share for each address. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from enum import StrEnum
from ipaddress import IPv6Address
from typing import Final

_NETWORK_BYTES: Final = 8
"""The bytes of an IPv6 address that count: a /64 is one caller's."""


class Bound(StrEnum):
    """What was refused for want of a place: by which bound."""

    ALL = "all"
    ADDRESS = "address"


class AddressLimit:
    """Counts what is open, in all and of each address.

    `most_of_address` None: an address has as many as are left for others; one alone has half.
    """

    def __init__(self, most: int, most_of_address: int | None) -> None:
        self._most, self._most_of_address = most, most_of_address
        self._of: Counter[str] = Counter()
        self.taken = 0

    def enter(self, address: str) -> Bound | None:
        """Take a place; if there is none, return what bounds it."""
        left = self._most - self.taken
        if left <= 0:
            return Bound.ALL
        caller = caller_at(address)
        if self._of[caller] >= (left if self._most_of_address is None else self._most_of_address):
            return Bound.ADDRESS
        self._of[caller] += 1
        self.taken += 1
        return None

    def leave(self, address: str) -> None:
        """Give a place back."""
        caller = caller_at(address)
        self.taken -= 1
        self._of[caller] -= 1
        if not self._of[caller]:
            del self._of[caller]


class WaitingLimit:
    """Places that are never refused: if there is none, the one who has waited longest gives theirs up.

    That is one of the address which has most, so that who comes with little is not driven out by who comes with much.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: defaultdict[str, dict[int, None]] = defaultdict(dict)
        self._caller: dict[int, str] = {}

    @property
    def taken(self) -> int:
        """How many wait."""
        return len(self._caller)

    def enter(self, waiter: int, address: str) -> int | None:
        """Take a place; return who has lost theirs for it. `waiter`: a number that nobody else has."""
        caller = self._caller[waiter] = caller_at(address)
        self._of[caller][waiter] = None
        if len(self._caller) <= self._most:
            return None
        greedy = max(self._of.values(), key=len)
        loser = next(iter(greedy))
        self.leave(loser)
        return loser

    def leave(self, waiter: int) -> None:
        """Give a place back, if it wasn't lost."""
        caller = self._caller.pop(waiter, None)
        if caller is None:
            return
        del self._of[caller][waiter]
        if not self._of[caller]:
            del self._of[caller]


def caller_at(address: str) -> str:
    """Return what an address counts as: with IPv6 its /64; an IPv4 one may be written as IPv6."""
    if ":" not in address:
        return address
    try:
        found = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found.ipv4_mapped or found.packed[:_NETWORK_BYTES].hex())
