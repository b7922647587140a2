"""Batches on the wire: counted without being parsed, and never refused for what the parser would take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.serdes.wire import LOOKUP_BYTES_MAX, framed, frames, is_too_much
from statehouse.v1 import query_service_pb2

ELEMENTS = st.lists(st.binary(max_size=300), max_size=60)
UNKNOWN = st.sampled_from([b"", b"\x10\x01", b"\x19" + bytes(8), b"\x25" + bytes(4), b"\x12\x03abc"])


@given(ELEMENTS, st.integers(0, 60), UNKNOWN, UNKNOWN)
def test_it_counts_as_the_parser_does_whatever_fields_stand_between(
    elements: list[bytes], most: int, before: bytes, after: bytes
) -> None:
    data = before + framed(elements[:5]) + after + framed(elements[5:])
    assert is_too_much(data, most) == (len(frames(data)) > most)


@given(ELEMENTS, st.integers(0, 60), st.integers(0, 2_000))
def test_a_beginning_has_no_more_than_the_whole(elements: list[bytes], most: int, end: int) -> None:
    data = framed(elements)
    assert is_too_much(data, most) or not is_too_much(data[:end], most)


@given(st.binary(max_size=200), st.integers(0, 3))
def test_what_is_no_message_is_left_to_the_parser_or_has_too_many_before_it_breaks(data: bytes, most: int) -> None:
    assert isinstance(is_too_much(data, most), bool)


def test_half_a_million_are_not_read() -> None:
    batch = framed([query_service_pb2.GetRequest(store="s").SerializeToString()] * 500_000)
    assert is_too_much(batch, 1_000)
    assert not is_too_much(batch, 500_000)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("data", [b"\xff" * 16_000_000, b"\x10\x01" * 8_000_000, b"\x0a" + b"\xff" * 16_000_000])
def test_what_is_made_to_take_long_is_left_to_the_parser_at_once(data: bytes) -> None:
    assert not is_too_much(data, 1_000)


def test_one_of_megabytes_is_too_much() -> None:
    assert is_too_much(framed([b"", bytes(LOOKUP_BYTES_MAX + 1)]), 1_000)
    assert is_too_much(framed([b"", bytes(LOOKUP_BYTES_MAX + 1)])[:100], 1_000), "its length is at its beginning"
    assert not is_too_much(framed([b"", bytes(LOOKUP_BYTES_MAX)]), 1_000)
