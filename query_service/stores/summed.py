"""Sums of a store's entries, part by part: see `statehouse.contract.store_sums`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from statehouse.contract.store_sums import EVERY_ENTRY, StoreSums, SumBounds, SummedEntry, digest_of


@dataclass(frozen=True, slots=True)
class WantedSums:
    """What is summed: into how many buckets, which of them have their entries listed, and which entries count."""

    buckets: int
    listed: Collection[int] = ()
    bounds: SumBounds = EVERY_ENTRY


@dataclass(slots=True)
class SummedPart:
    """A part of a sum: how many entries it has, the bytes of their keys and values, and those that are listed.

    `passed_over`: the bytes of entries that were read and don't count. `sums`: of all parts; None as long as there are
    more.
    """

    entries: int = 0
    size: int = 0
    passed_over: int = 0
    listed: list[tuple[bytes, SummedEntry]] = field(default_factory=list)
    sums: StoreSums | None = None


class Summing(Protocol):
    """A sum that is being made. All is done on the thread that began it."""

    def go_on(self, most_bytes: int) -> SummedPart:
        """Sum entries that take about so many bytes, from where the part before has ended.

        Raises:
            StoreClosed: the store waits for its reads to end.
            MomentGone: the batch that is to be summed isn't kept any more.
            LookupFailure: TASK_FAILED, the store is damaged.

        """


class SummingHere:
    """A sum over entries that come one by one, each with what an engine holds for it."""

    def __init__(
        self,
        entries: Iterator[tuple[bytes, bytes]],
        wanted: WantedSums,
        counts: Callable[[bytes, bytes], bool] = lambda _key, _stored: True,
    ) -> None:
        """`counts(key, stored)`: whether an entry does."""
        self._entries, self._counts = entries, counts
        self._sums, self._listed = StoreSums.empty(wanted.buckets), frozenset(wanted.listed)

    def go_on(self, most_bytes: int) -> SummedPart:
        """Sum entries that take about so many bytes."""
        part = SummedPart()
        for key, stored in self._entries:
            if self._counts(key, stored):
                if self._sums.add(key, digest_of(key, stored)) in self._listed:
                    part.listed.append((key, SummedEntry.of(key, stored)))
                part.entries += 1
                part.size += len(key) + len(stored)
            else:
                part.passed_over += len(key) + len(stored)
            if part.size + part.passed_over >= most_bytes:
                return part
        part.sums = self._sums
        return part
