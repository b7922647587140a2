"""Batches: nothing is lost or out of order, no bound is exceeded but by one entry alone, and none is half empty."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.errors import LookupFailure, Reason
from statehouse.runtime.batches import (
    MAX_ENTRIES,
    BatchCapacity,
    chunks,
    fits,
    fitting,
    halves,
    is_too_big,
    kept_within,
)
from statehouse.settings import NodeSettings

sizes_of_entries = st.lists(st.integers(0, 60), max_size=30)
overheads = st.integers(0, 5)


@pytest.mark.feature("batches-pages-bounded")
@given(sizes_of_entries, st.integers(1, 8), st.integers(1, 100), overheads)
def test_entries_are_split_into_batches_that_are_as_full_as_can_be(
    sizes: list[int], most: int, max_bytes: int, overhead: int
) -> None:
    entries = list(enumerate(sizes))
    batches = list(chunks(entries, lambda entry: entry[1], lambda: BatchCapacity(most, max_bytes, overhead)))
    assert [entry for batch in batches for entry in batch] == entries
    totals = [sum(size + overhead for _, size in batch) for batch in batches]
    for batch, total in zip(batches, totals, strict=True):
        assert 1 <= len(batch) <= most
        assert total <= max_bytes or len(batch) == 1
    for batch, total, following in zip(batches, totals, batches[1:], strict=False):
        assert len(batch) == most or total + following[0][1] + overhead > max_bytes


@given(sizes_of_entries, st.integers(1, 8), st.integers(1, 100), overheads)
def test_the_first_batch_has_as_many_as_fit(sizes: list[int], most: int, max_bytes: int, overhead: int) -> None:
    count = fitting(sizes, BatchCapacity(most, max_bytes, overhead))
    first = next(chunks(sizes, lambda size: size, lambda: BatchCapacity(most, max_bytes, overhead)), [])
    assert sizes[:count] == first


@pytest.mark.parametrize(
    ("sizes", "most", "max_bytes", "overhead", "count"),
    [
        ([], 9, 9, 0, 0),
        ([3, 3, 3], 9, 9, 0, 3),
        ([3, 3, 3], 9, 8, 0, 2),
        ([3, 3, 3], 9, 9, 1, 2),
        ([3, 3, 3], 2, 9, 0, 2),
        ([30, 0, 3], 9, 9, 0, 1),
        ([9, 0, 0], 9, 9, 0, 3),
        ([9, 0, 0], 9, 9, 1, 1),
        ([1], 0, 9, 0, 0),
    ],
)
def test_what_goes_into_a_batch(sizes: list[int], most: int, max_bytes: int, overhead: int, count: int) -> None:
    assert fitting(sizes, BatchCapacity(most, max_bytes, overhead)) == count


def test_an_entry_that_finds_no_room_takes_none() -> None:
    room = BatchCapacity(3, 10)
    assert [room.takes(size) for size in (4, 7, 6, 1, 0, 0)] == [True, False, True, False, True, False]


@given(st.lists(st.integers()))
def test_halves_are_all_and_shorter(entries: list[int]) -> None:
    first, second = halves(entries)
    assert [*first, *second] == entries
    assert 0 <= len(second) - len(first) <= 1


@pytest.mark.parametrize(
    ("reason", "count", "may_be_halved"),
    [
        (Reason.MESSAGE_TOO_LARGE, 2, True),
        (Reason.INVALID_REQUEST, 2, True),
        (Reason.MESSAGE_TOO_LARGE, 1, False),
        (Reason.INVALID_REQUEST, 1, False),
        (Reason.OVERLOADED, 2, False),
        (Reason.UNREACHABLE, 1_000, False),
    ],
)
def test_only_a_batch_that_is_too_big_is_halved(reason: Reason, count: int, may_be_halved: bool) -> None:
    assert is_too_big(LookupFailure(reason, ""), count) is may_be_halved


@given(sizes_of_entries, st.integers(1, 40), st.integers(0, 600), overheads)
def test_answers_are_kept_as_long_as_the_later_ones_can_be_refused(
    sizes: list[int], refusal: int, max_bytes: int, overhead: int
) -> None:
    kept = kept_within(sizes, refusal, max_bytes, overhead)
    assert len(kept) == len(sizes)
    assert all(is_kept for size, is_kept in zip(sizes, kept, strict=True) if size <= refusal)
    sent = [size if is_kept else refusal for size, is_kept in zip(sizes, kept, strict=True)]
    assert all(kept) or not fits(sizes, max_bytes, overhead)
    if (
        fits([min(size, refusal) for size in sizes], max_bytes, overhead)
        and (refusal + overhead) * len(sizes) <= max_bytes
    ):
        assert fits(sent, max_bytes, overhead)
    for number, is_kept in enumerate(kept):
        if not is_kept:
            instead = [*sent[:number], sizes[number], *[refusal] * (len(sizes) - number - 1)]
            assert not fits(instead, max_bytes, overhead), "it would have had room"


def test_an_answer_that_leaves_no_room_for_refusals_is_refused_itself() -> None:
    assert kept_within([50, 5, 50, 5], 10, 100, 0) == [True, True, False, True]
    assert kept_within([50, 5, 50, 5], 10, 110, 0) == [True, True, True, True]
    assert kept_within([50, 50], 10, 60, 0) == [True, False]
    assert kept_within([50, 50], 10, 59, 0) == [False, False]
    assert kept_within([50, 50], 10, 63, 2) == [False, False]
    assert kept_within([50, 5], 10, 0, 0) == [False, True]


@pytest.mark.parametrize(("max_bytes", "do_fit"), [(9, False), (10, True), (11, True)])
def test_answers_fit_with_their_framing(max_bytes: int, do_fit: bool) -> None:
    assert fits([1, 3], max_bytes, 3) is do_fit


def test_a_call_holds_what_nodes_take_by_default() -> None:
    assert NodeSettings.max_batch_entries == MAX_ENTRIES
