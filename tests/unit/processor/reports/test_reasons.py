"""Which reasons of dead letters a report names."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.reports.reasons import NAMED_MAX, OTHERS, most_frequent
from statehouse.contract.processor_reports import decode_commit
from statehouse.control.v1 import commits_pb2


def test_the_most_frequent_are_named_and_the_others_counted() -> None:
    counts = Counter({f"reason {number}": number for number in range(1, NAMED_MAX + 4)})
    named = most_frequent(counts)
    assert len(named) == NAMED_MAX + 1
    assert (named["reason 23"], named[OTHERS]) == (23, 1 + 2 + 3)


@pytest.mark.feature("dead-letters-by-reason")
@given(st.dictionaries(st.text(max_size=300), st.integers(1, 2**40)).map(Counter))
def test_readers_take_the_report_of_any_reasons_and_none_is_lost(counts: Counter[str]) -> None:
    named = most_frequent(counts)
    assert sum(named.values()) == counts.total()
    figures = commits_pb2.QueryFigures(dead_letters_by_reason=named)
    commit = commits_pb2.Commit(store="s", query="q", figures=figures)
    assert decode_commit(b"s", commit.SerializeToString()).figures.dead_letters_by_reason == named
