"""Offsets that are to be read share ranges with their neighbours."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from statehouse.kafka import ranges
from statehouse.kafka.ranges import OffsetRange, ranges_at, ranges_of


def test_offsets_that_are_close_share_a_range() -> None:
    made = ranges_of("t", 3, [1_000, 5, 7, 1_100, 5])
    assert made == [OffsetRange("t", 3, 5, 8), OffsetRange("t", 3, 1_000, 1_101)]
    assert ranges_of("t", 3, []) == []


def test_places_are_read_partition_by_partition() -> None:
    made = ranges_at([("t", 1, 9), ("s", 2, 4), ("t", 0, 7), ("t", 1, 8)])
    assert made == [OffsetRange("s", 2, 4, 5), OffsetRange("t", 0, 7, 8), OffsetRange("t", 1, 8, 10)]


@given(st.sets(st.integers(0, 5_000)))
def test_ranges_have_all_offsets_and_no_long_gap(offsets: set[int]) -> None:
    made = ranges_of("t", 0, offsets)
    covered = {offset for each in made for offset in range(each.begin, each.end)}
    assert offsets <= covered
    assert all(one.end + ranges._GAP <= two.begin for one, two in pairwise(made))
    assert all(each.begin in offsets and each.end - 1 in offsets for each in made)
    assert len(covered) <= len(offsets) * (ranges._GAP + 1)
