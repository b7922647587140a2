"""Texts of keys: a serde takes what it writes, and nothing that Python would take for it besides."""

from __future__ import annotations

import math
import struct
from decimal import Decimal, InvalidOperation
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.contract.paging import parsed_key
from statehouse.errors import LookupFailure, Reason
from statehouse.serdes import SERDES, shown_key

# What Python's constructors read, and no serde writes.
REFUSED: Final = {
    "long": (
        *("1_0", "\u0665", " 5", "5 ", "5\n", "\t5", "\uff15", "+5", "05", "-05", "-0", "--5", "- 5", "\u22125"),
        *("5.0", "5e0", "0x5", "5L", "", "-", "true", "9223372036854775808", "-9223372036854775809", "1" * 100_000),
    ),
    "double": (
        *("1_0.5", "\u0661.5", " 1", "1 ", "1\n", "+1", ".5", "5.", "1e", "1e+", "0x1p3", "", "-", "1,5", "1e1000"),
        *("NaN", "NAN", "-nan", "+inf", "Infinity", "-Infinity", "INF", "infinity", "1e400", "1e-400", "-1e400"),
        *("9007199254740993", "0.1000000000000000001", "1" * 100_000, "0." + "1" * 100_000),
    ),
    "bytes": ("0", "00 ff", " 00", "00\n", "0x00", "\u0660\u0660", "zz", "0_0"),
    "json": ("{", "", "\ufeff1"),
}
DECORATED: Final = st.tuples(
    st.sampled_from(["", " ", "+", "-", "0", "\t", "_", "\u0665"]),
    st.integers(-(2**70), 2**70).map(str) | st.integers(-3, 3).map(str),
    st.sampled_from(["", " ", "\n", "_0", ".0", "e0", "L", "\u0665"]),
).map("".join)
FLOATS: Final = st.floats(allow_nan=False) | st.sampled_from([0.0, -0.0, math.inf, -math.inf, 5e-324, 2.0**53])


@pytest.mark.parametrize(
    ("serde", "text"),
    [(serde, text) for serde, texts in REFUSED.items() for text in texts],
    ids=lambda each: repr(each)[:30],
)
def test_what_only_python_reads_is_no_key(serde: str, text: str) -> None:
    with pytest.raises(LookupFailure) as refused:
        parsed_key(text, SERDES[serde])
    assert refused.value.reason is Reason.INVALID_KEY
    assert len(refused.value.message) < 1_000


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_long_is_read_as_it_is_written(number: int) -> None:
    serde = SERDES["long"]
    assert serde.parse(str(number)) == struct.pack(">q", number)
    assert serde.text(serde.parse(str(number))) == str(number)


@given(DECORATED | st.text(max_size=5))
def test_a_text_is_a_long_only_if_the_serde_writes_it(text: str) -> None:
    serde = SERDES["long"]
    try:
        data = serde.parse(text)
    except ValueError:
        number = _as_long(text)
        assert number is None or str(number) != text
    else:
        assert serde.text(data) == text


def _as_long(text: str) -> int | None:
    try:
        number = int(text)
    except ValueError:
        return None
    return number if -(2**63) <= number < 2**63 else None


@given(FLOATS)
def test_every_double_is_read_as_it_is_written(number: float) -> None:
    serde = SERDES["double"]
    data = struct.pack(">d", number)
    assert serde.parse(serde.text(data)) == data


@given(
    st.binary(min_size=8, max_size=8)
    | st.integers(0x7FF0 << 48, (0x8000 << 48) - 1).map(lambda n: n.to_bytes(8, "big"))
)
def test_what_a_double_shows_is_its_own_text(data: bytes) -> None:
    serde = SERDES["double"]
    try:
        shown = serde.text(data)
    except ValueError:
        assert math.isnan(struct.unpack(">d", data)[0])
        assert shown_key(serde, data, raw=False).raw == data
        assert math.isnan(serde.value(data).double)
    else:
        assert serde.parse(shown) == data


@given(DECORATED | FLOATS.map(str) | st.decimals(allow_nan=False).map(str) | st.text(max_size=5))
def test_a_text_is_a_double_only_if_it_is_that_number(text: str) -> None:
    serde = SERDES["double"]
    try:
        shown = serde.text(serde.parse(text))
    except ValueError:
        return
    assert text.isascii()
    assert text == text.strip()
    try:
        assert text == shown or Decimal(text) == Decimal(shown)
    except InvalidOperation:
        assert text in {"nan", "inf", "-inf"}


@pytest.mark.parametrize("text", ["1", "1.0", "1e0", "10E-1", "1.00"])
def test_a_double_may_be_written_in_other_forms(text: str) -> None:
    assert SERDES["double"].parse(text) == struct.pack(">d", 1.0)
