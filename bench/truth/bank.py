"""A bank whose money never changes: accounts trade in pairs, and each counts its transfers. Pure.

A transfer is one record of the source, so a system that reads it has both halves. An account without money is deleted;
its counter stays. Both counters of a pair are equal: each counts the opening of its account as well.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from statehouse.contract.partitioning import partition_for

PAIRS: Final = 200
OPENING: Final = 100
PAIR_TOTAL: Final = 2 * OPENING


@dataclass(frozen=True, slots=True)
class Transfer:
    """Money from one account of a pair to the other; without a payer it opens the payee's account."""

    pair: int
    payer: str
    payee: str
    amount: int

    @property
    def accounts(self) -> tuple[str, ...]:
        """The accounts that count it."""
        return (self.payer, self.payee) if self.payer else (self.payee,)

    @property
    def text(self) -> str:
        """The value of its record."""
        return f"{self.payer},{self.payee},{self.amount}"


def pairs(partitions: int) -> list[tuple[str, str]]:
    """Return the names of each pair's accounts: the two are in different partitions of a store."""
    found = []
    for number in range(PAIRS):
        first = f"{number}a"
        others = (f"{number}b{each}" for each in range(1_000))
        found.append((first, next(each for each in others if _place(each, partitions) != _place(first, partitions))))
    return found


def _place(account: str, partitions: int) -> int:
    return partition_for(account.encode(), partitions)


class Bank:
    """What happens, by a seed."""

    def __init__(self, named: list[tuple[str, str]], seed: int) -> None:
        self._pairs, self._random = named, random.Random(seed)  # noqa: S311 - nothing secret
        self.balances: dict[str, int] = {}

    def opened(self) -> Iterator[Transfer]:
        """Open all accounts."""
        for number, pair in enumerate(self._pairs):
            for account in pair:
                self.balances[account] = OPENING
                yield Transfer(number, "", account, OPENING)

    def traded(self, count: int) -> Iterator[Transfer]:
        """Make so many transfers. Often all of an account's money goes, and the account with it."""
        for _ in range(count):
            number = self._random.randrange(len(self._pairs))
            payer, payee = self._random.sample(self._pairs[number], 2)
            if not self.balances[payer]:
                payer, payee = payee, payer
            balance = self.balances[payer]
            amount = self._random.choice((balance, self._random.randint(1, balance)))
            self.balances[payer] -= amount
            self.balances[payee] += amount
            yield Transfer(number, payer, payee, amount)
