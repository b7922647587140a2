"""A bank: accounts whose total never changes, and sums of them in a second store of the same query.

An account only trades with its partner, so each pair's total is constant, too. An account without money is deleted.
`sums` has the balance of each group of accounts, and the id of the batch that wrote it.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from statehouse.contract.partitioning import partition_for
from tests.support.batches import Placed

ACCOUNTS, SUMS = "accounts", "sums"
NUMBER: Final = 32
GROUPS: Final = 4
OPENING: Final = 100
PAIR_TOTAL: Final = 2 * OPENING
TOTAL: Final = NUMBER * OPENING
BATCH: Final = "batch"
"""The key in `sums` of the batch's id."""
NEWEST: Final = "newest"
"""The key in `sums` of the newest transfer's time, epoch milliseconds, where Spark computes them."""
_TRANSFERS: Final = 5

State = Mapping[str, int]
"""What a store has, by key."""
Asked = Mapping[str, Sequence[str]]
"""Keys, by store."""


@dataclass(frozen=True, slots=True)
class Seen:
    """An answer: what it shows of what was asked for. `batch`: the one that it names, None if it names none."""

    shown: Mapping[str, State]
    asked: Asked
    batch: int | None = None


def pair_of(number: int) -> tuple[str, str]:
    """Return the accounts of a pair."""
    return str(2 * number), str(2 * number + 1)


def group_of(account: str) -> str:
    """Return the key in `sums` of an account's group."""
    return f"group-{int(account) % GROUPS}"


def members(group: int) -> list[str]:
    """Return the accounts of a group."""
    return [str(number) for number in range(NUMBER) if number % GROUPS == group]


def is_balanced(seen: Seen) -> bool:
    """Whether each pair that was asked for has its money, and each group with all of its accounts its sum."""
    accounts, sums = (seen.shown.get(store, {}) for store in (ACCOUNTS, SUMS))
    asked = {store: set(keys) for store, keys in seen.asked.items()}
    of_accounts, of_sums = (asked.get(store, set()) for store in (ACCOUNTS, SUMS))

    def money(keys: Sequence[str]) -> int:
        return sum(accounts.get(each, 0) for each in keys)

    pairs = (pair_of(number) for number in range(NUMBER // 2))
    groups = (members(group) for group in range(GROUPS))
    return all(money(pair) == PAIR_TOTAL for pair in pairs if of_accounts.issuperset(pair)) and all(
        money(group) == sums.get(group_of(group[0]), 0)
        for group in groups
        if group_of(group[0]) in of_sums and of_accounts.issuperset(group)
    )


class Bank:
    """What each batch does, and what both stores are after it. A batch that runs again does the same."""

    def __init__(self, partitions: int, seed: int = 0) -> None:
        self._partitions, self._random = partitions, random.Random(seed)
        opened = {str(number): OPENING for number in range(NUMBER)}
        self.states: list[dict[str, State]] = [{ACCOUNTS: opened, SUMS: _sums(opened, 0)}]
        """By batch, and then by store."""

    def records(self, batch_id: int) -> list[Placed]:
        """Return the records of a batch; of the first one, which opens the accounts, or of one after those known."""
        while len(self.states) <= batch_id:
            self._trade()
        before: dict[str, State] = self.states[batch_id - 1] if batch_id else {ACCOUNTS: {}, SUMS: {}}
        return list(self._changes(before, self.states[batch_id]))

    def _trade(self) -> None:
        accounts = dict(self.states[-1][ACCOUNTS])
        for pair in self._random.sample(range(NUMBER // 2), _TRANSFERS):
            payer, payee = self._random.sample(pair_of(pair), 2)
            # All of it, often: then the payer's account is deleted, and the next payment to it opens it again.
            balance = accounts.pop(payer, 0)
            amount = self._random.choice((balance, self._random.randint(0, balance)))
            after = {payer: balance - amount, payee: accounts.pop(payee, 0) + amount}
            accounts |= {account: value for account, value in after.items() if value}
        self.states.append({ACCOUNTS: accounts, SUMS: _sums(accounts, len(self.states))})

    def _changes(self, before: Mapping[str, State], after: Mapping[str, State]) -> Iterator[Placed]:
        for store, state in after.items():
            for key in sorted(state.keys() | before[store].keys()):
                if state.get(key) != before[store].get(key):
                    value = struct.pack(">q", state[key]) if key in state else None
                    yield Placed(store, partition_for(key.encode(), self._partitions), key.encode(), value)


def _sums(accounts: State, batch_id: int) -> State:
    sums = {f"group-{group}": sum(accounts.get(each, 0) for each in members(group)) for group in range(GROUPS)}
    return sums | {BATCH: batch_id}
