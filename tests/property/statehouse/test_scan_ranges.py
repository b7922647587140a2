"""Ranges of keys that are numbers hold the keys that are between as numbers, page by page, in the order of bytes."""

from __future__ import annotations

import struct
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from statehouse.contract import paging
from statehouse.contract.paging import KeyRange, escaped_range
from statehouse.contract.scan_ranges import key_range, range_between, serialized_prefix
from statehouse.errors import LookupFailure, Reason
from statehouse.serdes import SERDES
from statehouse.v1 import query_service_pb2, types_pb2

FORMS: Final = {"long": ">q", "double": ">d"}
NUMBERS: Final[dict[str, st.SearchStrategy[Any]]] = {
    "long": st.integers(-4, 4) | st.sampled_from([-(2**63), 2**63 - 1, -256, 255, 256]),
    "double": st.sampled_from([-0.0, 0.0, 1.5, -1.5, float("inf"), float("-inf"), 5e-324, -5e-324]) | st.floats(-4, 4),
}


def text(number: Any) -> types_pb2.Key:
    return types_pb2.Key(text=repr(number))


def inside(keys: set[bytes], read: KeyRange) -> list[bytes]:
    found = []
    for part in read.parts():
        assert part.reverse == read.reverse
        of_part = [key for key in keys if key >= part.start and (part.stop is None or key < part.stop)]
        found += sorted(of_part, reverse=read.reverse)
    return found


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, set[Any], Any, Any]:
    serde = draw(st.sampled_from(sorted(FORMS)))
    numbers = NUMBERS[serde]
    return serde, draw(st.sets(numbers, max_size=20)), draw(st.none() | numbers), draw(st.none() | numbers)


@pytest.mark.feature("scan-ranges-prefixes")
@given(cases(), st.booleans(), st.integers(1, 5))
@example(("long", set(range(-3, 4)), -2, 2), False, 1)
@example(("long", set(range(-3, 4)), 2, -2), False, 1)
@example(("double", {-1.5, -0.0, 0.0, 1.5}, -1.0, 0.0), True, 1)
def test_pages_of_a_range_of_numbers(case: tuple[str, set[Any], Any, Any], reverse: bool, size: int) -> None:
    serde, numbers, low, high = case
    pack = struct.Struct(FORMS[serde]).pack
    keys = {pack(number) for number in numbers}
    request = query_service_pb2.ScanRequest(store="s", reverse=reverse)
    if low is not None:
        request.from_key.CopyFrom(text(low))
    if high is not None:
        request.to_key.CopyFrom(text(high))
    between = [number for number in numbers if (low is None or low <= number) and (high is None or number <= high)]
    expected = sorted(map(pack, between), reverse=reverse)
    if low is not None and high is not None and low > high and pack(low) > pack(high):
        with pytest.raises(LookupFailure, match="the first is after the last"):
            key_range(request, SERDES[serde])
        assert expected == []
        return
    got: list[bytes] = []
    for _ in range(len(keys) + 1):
        page = inside(keys, key_range(request, SERDES[serde]))[:size]
        got += page
        if not page:
            break
        request.page_token = paging.next_page_token(request, page[-1])
    assert got == expected


@given(cases(), st.booleans())
def test_entries_of_a_range_of_numbers(case: tuple[str, set[Any], Any, Any], reverse: bool) -> None:
    """Escaped, as windows, sessions and versions have their keys."""
    serde, numbers, low, high = case
    pack = struct.Struct(FORMS[serde]).pack
    try:
        read = range_between(low if low is None else text(low), high if high is None else text(high), SERDES[serde])
    except LookupFailure:
        return
    read = KeyRange(read.start, read.stop, reverse, read.gaps)
    entries = {paging.ordered_keys.escaped(pack(number)) + b"entry": pack(number) for number in numbers}
    found = [entries[entry] for entry in inside(set(entries), escaped_range(read))]
    assert found == inside({pack(number) for number in numbers}, read)


@pytest.mark.parametrize(
    ("serde", "low", "high"),
    [
        ("string", types_pb2.Key(text="b"), types_pb2.Key(text="a")),
        ("string", types_pb2.Key(text="a\0"), types_pb2.Key(text="a")),
        ("json", types_pb2.Key(text="2"), types_pb2.Key(text="10")),
        ("bytes", types_pb2.Key(text="01"), types_pb2.Key(text="00ff")),
        ("long", types_pb2.Key(text="5"), types_pb2.Key(text="2")),
        ("long", types_pb2.Key(text="-2"), types_pb2.Key(text="-5")),
        ("double", types_pb2.Key(text="1.5"), types_pb2.Key(text="1.0")),
        ("long", types_pb2.Key(raw=struct.pack(">q", -2)), types_pb2.Key(raw=struct.pack(">q", 2))),
        ("long", types_pb2.Key(raw=struct.pack(">q", -2)), types_pb2.Key(text="2")),
    ],
)
def test_a_range_that_no_key_can_be_in_is_refused(serde: str, low: types_pb2.Key, high: types_pb2.Key) -> None:
    with pytest.raises(LookupFailure, match="in the order of their bytes the first is after the last") as refused:
        range_between(low, high, SERDES[serde])
    assert refused.value.reason is Reason.INVALID_REQUEST
    range_between(high, low, SERDES[serde])


def test_raw_keys_are_compared_as_bytes() -> None:
    low, high = struct.pack(">q", 2), struct.pack(">q", -2)
    read = range_between(types_pb2.Key(raw=low), types_pb2.Key(raw=high), SERDES["long"])
    assert read == KeyRange(low, high + b"\0")


@pytest.mark.parametrize("serde", sorted(FORMS))
def test_numbers_have_no_prefix(serde: str) -> None:
    with pytest.raises(LookupFailure, match="numbers have no prefix"):
        serialized_prefix(types_pb2.Key(text="1"), SERDES[serde])
    assert serialized_prefix(types_pb2.Key(raw=b"\0"), SERDES[serde]) == b"\0"
