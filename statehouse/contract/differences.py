"""How the stores of two versions differ: which keys one of them lacks, and which have other values. Pure.

Both are read in the order of their keys, entry by entry, so that stores of any size can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Generic, TypeVar

V = TypeVar("V")

RANGES: Final = 16
"""Ranges of keys that are told apart, at most."""
SAMPLES: Final = 10
"""Differences that are shown."""


class Difference(StrEnum):
    """What is different about a key."""

    MISSING = "missing"
    """Only the first store has it."""
    EXTRA = "extra"
    """Only the second store has it."""
    OTHER = "other"
    """Both have it, with other values."""


@dataclass(frozen=True, slots=True)
class Differing(Generic[V]):
    """A key that differs. A value is None where the store lacks the key."""

    key: bytes
    difference: Difference
    first: V | None
    second: V | None


@dataclass(slots=True)
class KeyRangeCount:
    """A range of keys, from the first to the last that was read: how many there are, and how many of them differ."""

    first: bytes
    last: bytes
    keys: int = 0
    differing: int = 0


@dataclass(slots=True)
class Differences(Generic[V]):
    """What a comparison has found.

    Attributes:
        keys: that either store has.
        counts: of those that differ, by what is different.
        samples: the first ones that differ, in the order of their keys.
        ranges: of keys, in their order; each but the last has equally many keys.

    """

    most_samples: int = SAMPLES
    most_ranges: int = RANGES
    keys: int = 0
    counts: dict[Difference, int] = field(default_factory=lambda: dict.fromkeys(Difference, 0))
    samples: list[Differing[V]] = field(default_factory=list)
    ranges: list[KeyRangeCount] = field(default_factory=list)
    _size: int = 1

    @property
    def differing(self) -> int:
        """How many keys differ."""
        return sum(self.counts.values())

    def take(self, key: bytes, found: Differing[V] | None) -> None:
        """Take the next key, and how it differs; None: it doesn't."""
        self.keys += 1
        if found is not None:
            self.counts[found.difference] += 1
            if len(self.samples) < self.most_samples:
                self.samples.append(found)
        if not self.ranges or self.ranges[-1].keys >= self._size:
            if len(self.ranges) == self.most_ranges:
                self._halve()
            self.ranges.append(KeyRangeCount(key, key))
        last = self.ranges[-1]
        last.last = key
        last.keys += 1
        last.differing += found is not None

    def _halve(self) -> None:
        """Make one range of each two."""
        pairs = zip(self.ranges[::2], self.ranges[1::2], strict=True)
        self.ranges = [
            KeyRangeCount(one.first, two.last, one.keys + two.keys, one.differing + two.differing) for one, two in pairs
        ]
        self._size *= 2


def compared(
    first: Iterable[tuple[bytes, V]],
    second: Iterable[tuple[bytes, V]],
    is_same: Callable[[V, V], bool],
    most_samples: int = SAMPLES,
    most_ranges: int = RANGES,
) -> Differences[V]:
    """Compare two stores, each in ascending order of its keys, without any twice. `most_ranges` is even.

    Raises:
        ValueError: a key isn't behind the one before it.

    """
    found = Differences[V](most_samples, most_ranges)
    for key, one, two in _paired(first, second):
        found.take(key, _difference(key, one, two, is_same))
    return found


def _difference(
    key: bytes, one: tuple[V] | None, two: tuple[V] | None, is_same: Callable[[V, V], bool]
) -> Differing[V] | None:
    if one is None:
        return None if two is None else Differing(key, Difference.EXTRA, None, two[0])
    if two is None:
        return Differing(key, Difference.MISSING, one[0], None)
    return None if is_same(one[0], two[0]) else Differing(key, Difference.OTHER, one[0], two[0])


def _paired(
    first: Iterable[tuple[bytes, V]], second: Iterable[tuple[bytes, V]]
) -> Iterator[tuple[bytes, tuple[V] | None, tuple[V] | None]]:
    """Yield each key with its values; None where a store lacks it."""
    ones, twos = _ascending(first), _ascending(second)
    one, two = next(ones, None), next(twos, None)
    while one is not None or two is not None:
        key = min(each[0] for each in (one, two) if each is not None)
        is_in_one, is_in_two = one is not None and one[0] == key, two is not None and two[0] == key
        yield (
            key,
            (one[1],) if one is not None and is_in_one else None,
            (two[1],) if two is not None and is_in_two else None,
        )
        if is_in_one:
            one = next(ones, None)
        if is_in_two:
            two = next(twos, None)


def _ascending(entries: Iterable[tuple[bytes, V]]) -> Iterator[tuple[bytes, V]]:
    before: bytes | None = None
    for key, value in entries:
        if before is not None and key <= before:
            raise ValueError(f"key {key!r} comes behind {before!r}")
        before = key
        yield key, value
