"""Key encodings: order is kept, nothing is lost, Kafka Streams' layouts byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.errors import ContractError
from statehouse.keys import ordered as ordered_keys
from statehouse.keys.composite import SessionKey, WindowKey

KEY = st.lists(st.sampled_from([b"\0", b"\1", b"\xff", b"a"]), max_size=5).map(b"".join)
TIME = st.integers(0, 2**63 - 1)


@given(KEY, KEY, st.binary(max_size=3), st.binary(max_size=3))
def test_escaped_keys_order_before_what_follows(one: bytes, two: bytes, tail: bytes, other_tail: bytes) -> None:
    left, right = ordered_keys.escaped(one) + tail, ordered_keys.escaped(two) + other_tail
    assert ordered_keys.split(left) == (one, tail)
    if one != two:
        assert (left < right) == (one < two)


@pytest.mark.feature("key-layouts-those")
@given(KEY, TIME, st.integers(0, 2**31 - 1))
def test_window_key(key: bytes, start_ms: int, sequence: int) -> None:
    window = WindowKey(key, start_ms, sequence)
    assert WindowKey.from_bytes(window.to_bytes()) == window
    assert window.to_bytes() == key + start_ms.to_bytes(8, "big") + sequence.to_bytes(4, "big")


@pytest.mark.feature("key-layouts-those")
@given(KEY, TIME, TIME)
def test_session_key(key: bytes, one: int, two: int) -> None:
    session = SessionKey(key, min(one, two), max(one, two))
    assert SessionKey.from_bytes(session.to_bytes()) == session
    assert session.to_bytes() == key + session.end_ms.to_bytes(8, "big") + session.start_ms.to_bytes(8, "big")


def test_what_is_no_composite_key() -> None:
    for data in (b"", b"x" * 11, b"k" + b"\xff" * 8 + b"\0" * 4):
        with pytest.raises(ContractError):
            WindowKey.from_bytes(data)
    for data in (b"", b"x" * 15, b"k" + (1).to_bytes(8, "big") + (2).to_bytes(8, "big")):
        with pytest.raises(ContractError):
            SessionKey.from_bytes(data)
    with pytest.raises(ValueError, match="terminator"):
        ordered_keys.split(b"abc")
