"""Ranges of serialized keys hold exactly the keys that satisfy comparisons as Spark makes them."""

from __future__ import annotations

import math
import struct
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.contract.key_ranges import Comparison, KeyValue, Operator, common_ranges, key_value, ranges_of
from statehouse.contract.paging import KeyRange
from statehouse.serdes import SERDES

COMPARED: Final = [each for each in Operator if each not in {Operator.PREFIX, Operator.ONE_OF}]
# Few letters, so that values meet; one of each length in UTF-8.
TEXTS: Final = st.text("\0a\u00e9\uffff\U0001f600", max_size=3)
LONGS: Final = st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1])
DOUBLES: Final = st.floats(allow_nan=True) | st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 1.5, -1.5])
VALUES: Final[dict[str, st.SearchStrategy[Any]]] = {
    "string": TEXTS,
    "json": TEXTS,
    "bytes": st.binary(max_size=3),
    "long": LONGS | st.sampled_from([-(2**63) - 1, 2**63]),
    "double": DOUBLES | st.integers(-3, 3),
}
KEYS: Final = VALUES | {"long": LONGS, "double": DOUBLES}


def serialized(key: KeyValue) -> bytes:
    match key:
        case str():
            return key.encode()
        case bytes():
            return key
        case int():
            return struct.pack(">q", key)
        case _:
            return struct.pack(">d", key)


def ordered(key: KeyValue) -> Any:
    """Return what Spark orders keys by: text by its bytes, NaN above all numbers."""
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, float | int):
        return (math.isnan(key), 0.0 if math.isnan(key) else key)
    return key


def satisfies(key: KeyValue, comparison: Comparison) -> bool:
    value: Any = comparison.value
    if comparison.operator is Operator.ONE_OF:
        return any(ordered(key) == ordered(each) for each in value)
    if comparison.operator is Operator.PREFIX:
        return serialized(key).startswith(serialized(value))
    one, other = ordered(key), ordered(value)
    return {
        Operator.EQUAL: one == other,
        Operator.LESS: one < other,
        Operator.AT_MOST: one <= other,
        Operator.GREATER: one > other,
        Operator.AT_LEAST: one >= other,
    }[comparison.operator]


def holds(ranges: tuple[KeyRange, ...], key: bytes) -> int:
    return sum(each.start <= key and (each.stop is None or key < each.stop) for each in ranges)


@st.composite
def comparisons(draw: st.DrawFn, serde: str) -> Comparison:
    has_prefix = serde in {"string", "json", "bytes"}
    operator = draw(st.sampled_from([*COMPARED, Operator.ONE_OF, *([Operator.PREFIX] if has_prefix else [])]))
    if operator is Operator.ONE_OF:
        return Comparison(operator, tuple(draw(st.lists(VALUES[serde], max_size=4))))
    return Comparison(operator, draw(VALUES[serde]))


@pytest.mark.feature("store-live-dataframe")
@pytest.mark.parametrize("serde", VALUES)
@given(data=st.data())
def test_ranges_hold_the_keys_that_satisfy_all_comparisons_and_each_once(serde: str, data: st.DataObject) -> None:
    asked = data.draw(st.lists(comparisons(serde), max_size=3))
    keys = data.draw(st.lists(KEYS[serde], min_size=1, max_size=8))
    ranges = ranges_of(serde, asked)
    assert list(ranges) == sorted(ranges, key=lambda each: each.start)
    for key in keys:
        assert holds(ranges, serialized(key)) == all(satisfies(key, each) for each in asked)


@given(st.sampled_from(COMPARED), DOUBLES)
def test_a_nan_of_any_form_is_above_all_numbers(operator: Operator, value: float) -> None:
    ranges = ranges_of("double", [Comparison(operator, value)])
    for bits in (0x7FF0000000000001, 0x7FF8000000000000, 0xFFF0000000000001, 0xFFF8000000000000, 2**64 - 1):
        assert holds(ranges, struct.pack(">Q", bits)) == satisfies(math.nan, Comparison(operator, value))


@given(st.data())
def test_what_is_in_both_ranges_is_in_the_common_ones(data: st.DataObject) -> None:
    some, others = (ranges_of("bytes", data.draw(st.lists(comparisons("bytes"), max_size=2))) for _ in range(2))
    common = common_ranges(some, others)
    for key in data.draw(st.lists(st.binary(max_size=3), max_size=8)):
        assert holds(common, key) == holds(some, key) * holds(others, key)


@pytest.mark.parametrize("serde", VALUES)
@given(data=st.data())
def test_a_key_written_as_text_is_the_key_of_that_text(serde: str, data: st.DataObject) -> None:
    key = data.draw(KEYS[serde])
    if isinstance(key, float) and math.isnan(key):
        key = math.nan  # the other forms of NaN have no text
    read = key_value(serde, SERDES[serde].text(serialized(key)))
    assert serialized(read) == serialized(key) or (math.isnan(key) and isinstance(read, float) and math.isnan(read))


@pytest.mark.parametrize(
    ("serde", "operator", "value"),
    [
        ("avro", Operator.EQUAL, "a"),
        ("string", Operator.EQUAL, 1),
        ("string", Operator.ONE_OF, "a"),
        ("string", Operator.LESS, ("a",)),
        ("bytes", Operator.EQUAL, "a"),
        ("long", Operator.EQUAL, "1"),
        ("long", Operator.EQUAL, True),
        ("long", Operator.EQUAL, 1.5),
        ("long", Operator.PREFIX, 1),
        ("double", Operator.EQUAL, "1"),
        ("double", Operator.PREFIX, 1.0),
        ("double", Operator.PREFIX, math.nan),
    ],
)
def test_what_can_not_be_compared_is_refused(serde: str, operator: Operator, value: Any) -> None:
    with pytest.raises(ValueError, match=r"compare|prefix"):
        ranges_of(serde, [Comparison(operator, value)])
    if serde == "avro":
        with pytest.raises(ValueError, match="avro"):
            key_value(serde, "a")
