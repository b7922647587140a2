"""What is wrong with an answer, and how often that was. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from bench.truth.bank import PAIR_TOTAL, Transfer


class Ledger:
    """What has happened to each account, and since when the source has it. One thread writes it, others read."""

    def __init__(self) -> None:
        self._sent: dict[str, int] = defaultdict(int)
        self._acknowledged: dict[str, list[float]] = defaultdict(list)

    def send(self, transfer: Transfer) -> None:
        """Note a transfer that is about to be written."""
        for account in transfer.accounts:
            self._sent[account] += 1

    def acknowledge(self, transfer: Transfer, at: float) -> None:
        """Note that the source has a transfer; those of a pair come in their order."""
        for account in transfer.accounts:
            self._acknowledged[account].append(at)

    def sent(self, account: str) -> int:
        """Return how many transfers an account may have had by now."""
        return self._sent[account]

    def acknowledged(self, account: str) -> Sequence[float]:
        """Return when the source had each transfer of an account."""
        return self._acknowledged[account]


@dataclass(frozen=True, slots=True)
class Shown:
    """What an answer shows of a pair: balances and counters, None for what is not found."""

    balances: tuple[int | None, int | None]
    counters: tuple[int | None, int | None]


def is_falsely_absent(shown: Shown) -> bool:
    """Whether a counter is "not found": they are there before anybody reads, and nothing deletes them."""
    return None in shown.counters


def is_torn(shown: Shown) -> bool:
    """Whether a pair is seen in the middle of a transfer: its money or its counters don't match."""
    first, second = shown.counters
    return not is_falsely_absent(shown) and (
        sum(balance or 0 for balance in shown.balances) != PAIR_TOTAL or first != second
    )


def is_doubled(shown: Shown, pair: Sequence[str], ledger: Ledger) -> bool:
    """Whether a counter is above all that was ever sent; to be asked after the answer has come."""
    return any(
        counter is not None and counter > ledger.sent(account)
        for account, counter in zip(pair, shown.counters, strict=True)
    )


def age_s(shown: Shown, pair: Sequence[str], ledger: Ledger, asked_at: float) -> float:
    """Return for how long the source had had the oldest transfer that an answer lacks, when it was asked for."""
    oldest = asked_at
    for account, counter in zip(pair, shown.counters, strict=True):
        had = ledger.acknowledged(account)
        if counter is not None and counter < len(had):
            oldest = min(oldest, had[counter])
    return asked_at - oldest


@dataclass
class Tally:
    """How often a sort of read was answered, and what was wrong with that.

    Attributes:
        refused: the system said that it can't hold the bound.
        failed: there was no answer in time, and no such word.
        too_old: answers older than the bound that was asked for; None: the system takes no bound.
        oldest_s: the greatest age of an answer.

    """

    reads: int = 0
    absent: int = 0
    torn: int = 0
    doubled: int = 0
    failed: int = 0
    refused: int = 0
    too_old: int | None = None
    oldest_s: float = 0.0

    def take(self, shown: Shown, pair: Sequence[str], ledger: Ledger, asked_at: float, bound_s: float | None) -> None:
        """Judge an answer."""
        age = age_s(shown, pair, ledger, asked_at)
        self.reads += 1
        self.absent += is_falsely_absent(shown)
        self.torn += is_torn(shown)
        self.doubled += is_doubled(shown, pair, ledger)
        self.oldest_s = max(self.oldest_s, age)
        if bound_s is not None:
            self.too_old = (self.too_old or 0) + (age > bound_s)

    def __add__(self, other: Tally) -> Tally:
        """Return both together."""
        counts = {name: getattr(self, name) + getattr(other, name) for name in _COUNTS}
        known = [each.too_old for each in (self, other) if each.too_old is not None]
        too_old = sum(known) if known else None
        return Tally(**counts, too_old=too_old, oldest_s=max(self.oldest_s, other.oldest_s))

    def record(self) -> Mapping[str, float | None]:
        """Return the figures by their names."""
        return {**asdict(self), "oldest_s": round(self.oldest_s, 3)}


_COUNTS = ("reads", "absent", "torn", "doubled", "failed", "refused")


def count_wrong(shown: Mapping[tuple[str, str], Shown], balances: Mapping[str, int], ledger: Ledger) -> int:
    """Return how many accounts aren't what they are in truth, once all has happened."""
    return sum(
        (balance or 0) != balances[account] or counter != ledger.sent(account)
        for pair, of in shown.items()
        for account, balance, counter in zip(pair, of.balances, of.counters, strict=True)
    )
