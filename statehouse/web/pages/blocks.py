"""A long row of partitions as blocks that a person can take in, and that can be opened. Pure.

A store of ten thousand partitions is shown as some hundred blocks; a block opened is shown the same way. Long tables
have pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Span:
    """Partitions from `first` to `last`, both included."""

    first: int
    last: int

    @property
    def count(self) -> int:
        """How many there are."""
        return self.last - self.first + 1

    @property
    def name(self) -> str:
        """How people call it."""
        return str(self.first) if self.first == self.last else f"{self.first}–{self.last}"  # noqa: RUF001 - a dash

    @property
    def places(self) -> range:
        """The partitions."""
        return range(self.first, self.last + 1)


def paged(rows: Sequence[T], a_page: int, page: int) -> tuple[int, int, Sequence[T]]:
    """Return the number of the page that is shown, how many there are, and its rows; beyond the last is the last."""
    pages = max(1, -(-len(rows) // a_page))
    page = min(max(page, 1), pages)
    return page, pages, rows[(page - 1) * a_page : page * a_page]


def within(count: int, first: int | None, last: int | None) -> Span | None:
    """Return the partitions of `count` that somebody asked for; None if there are none."""
    if count == 0:
        return None
    low = min(max(first or 0, 0), count - 1)
    high = count - 1 if last is None else min(max(last, low), count - 1)
    return Span(low, high)


def blocks(span: Span, most: int) -> Iterator[Span]:
    """Divide a span into at most so many parts, each of a round number of partitions; one each if they are few."""
    size = _round_up(-(-span.count // most))
    for first in range(span.first, span.last + 1, size):
        yield Span(first, min(first + size - 1, span.last))


def _round_up(size: int) -> int:
    """Return the next of 1, 2, 5, 10, 20, 50 and so on."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power >= size:
                return factor * power
        power *= 10
