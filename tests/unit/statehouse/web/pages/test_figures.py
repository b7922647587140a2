"""Numbers and values as people read them."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from statehouse.web.pages.figures import folded, number, rate

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(), each, max_size=4),
    max_leaves=12,
)


@given(st.integers(0, 999))
def test_counts_below_a_thousand_are_exact(count: int):
    assert number(count) == rate(count) == str(count)


def test_rates_keep_a_decimal_and_hardly_anything_is_not_nothing():
    assert [rate(each) for each in (0.0, 0.01, 0.31, 45.5, 312.4, 1_234.5)] == [
        "0", "<0.1", "0.3", "45.5", "312.4", "1,234",
    ]  # fmt: skip


@given(st.lists(JSON, min_size=1, max_size=4) | st.dictionaries(st.text(), JSON, min_size=1, max_size=4))
def test_json_is_indented_and_stays_the_same(value: object):
    found = folded(json.dumps(value, ensure_ascii=False))
    assert found is not None
    assert json.loads(found.indented) == value
    assert "\n" in found.indented


@given(st.text())
def test_other_texts_stay_as_they_are(text: str):
    found = folded(text)
    assert found is None or json.dumps(json.loads(found.indented), ensure_ascii=False) == text


def test_what_would_not_read_the_same_is_not_touched():
    for text in ('{"a": 1.10}', '{"a": 1, "a": 2}', "{}", "[1, 2", "[" * 100_000):
        assert folded(text) is None
    assert folded('{"a": 1}').summary == "1 field"  # type: ignore[union-attr]
