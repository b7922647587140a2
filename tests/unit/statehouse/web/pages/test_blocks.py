"""Long rows of partitions as blocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from statehouse.web.pages.blocks import Span, blocks, within


@given(st.integers(1, 20_000), st.integers(1, 300), st.data())
def test_blocks_are_few_and_cover_each_partition_once(count: int, most: int, data: st.DataObject):
    first = data.draw(st.integers(0, count - 1))
    span = within(count, first, data.draw(st.integers(first, count + 5)))
    assert span is not None
    parts = list(blocks(span, most))
    assert len(parts) <= most
    assert [place for part in parts for place in part.places] == list(span.places)
    assert len({part.count for part in parts[:-1]}) <= 1


def test_what_somebody_asks_for_is_brought_within_what_there_is():
    assert within(0, None, None) is None
    assert within(5, None, None) == Span(0, 4)
    assert within(5, 9, 2) == Span(4, 4)
    assert within(5, 1, 99) == Span(1, 4)


def test_sizes_are_round():
    assert [part.name for part in blocks(Span(0, 10_000), 200)][:2] == ["0–99", "100–199"]  # noqa: RUF001 - dashes
    assert [part.name for part in blocks(Span(3, 5), 200)] == ["3", "4", "5"]
