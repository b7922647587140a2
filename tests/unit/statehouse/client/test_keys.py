"""Keys that callers give: each becomes what the store's key serde is, or it is refused immediately."""

from __future__ import annotations

import datetime as dt
import enum
import math
import uuid
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import numpy as np
import pytest

from statehouse.client.keys import KeyForm, needs_serde, prefix_key, to_key
from statehouse.errors import LookupFailure, Reason
from statehouse.serdes import SERDES


class Colour(enum.IntEnum):
    RED = 5


class Named(enum.StrEnum):
    A = "a"


NO_KEYS: Final = (
    *(None, True, False, np.bool_(True), [], [1], (1,), {}, {"a": 1}, {1}, object(), 1j, Decimal(5), Fraction(5)),
    *(uuid.uuid4(), dt.date(2026, 1, 1), dt.timedelta(1), range(3), iter(b""), np.array([1]), "a".encode),
    *(np.timedelta64(5), np.timedelta64(5, "ns"), np.datetime64(5, "ns"), np.complex64(1), np.void(b"a")),
)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        *((5, "5"), (-5, "-5"), (0, "0"), (2**63 - 1, str(2**63 - 1)), (-(2**63), str(-(2**63))), (Colour.RED, "5")),
        *((np.int64(-7), "-7"), (np.int8(3), "3"), (np.uint64(2**62), str(2**62))),
    ],
)
def test_integers_are_keys_of_a_long_store(key: Any, text: str) -> None:
    assert needs_serde(key)
    assert to_key(key, KeyForm("s", "long")).text == text
    SERDES["long"].parse(text)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        *((0.5, "0.5"), (-0.0, "-0.0"), (math.nan, "nan"), (math.inf, "inf"), (1e300, "1e+300"), (5, "5.0")),
        *((np.float64(0.1), "0.1"), (np.float32(0.5), "0.5"), (np.int32(2), "2.0"), (2**53, "9007199254740992.0")),
    ],
)
def test_numbers_are_keys_of_a_double_store(key: Any, text: str) -> None:
    assert to_key(key, KeyForm("s", "double")).text == text
    SERDES["double"].parse(text)


@pytest.mark.parametrize(
    ("serde", "key"),
    [("long", 2**63), ("long", -(2**63) - 1), ("long", 10**10_000), ("double", 2**53 + 1), ("double", 10**10_000)],
    ids=lambda each: each if isinstance(each, str) else f"{each.bit_length()} bits",
)
def test_a_number_that_the_serde_lacks_is_no_key(serde: str, key: int) -> None:
    with pytest.raises(LookupFailure, match="bits is no key of serde") as refused:
        to_key(key, KeyForm("s", serde))
    assert refused.value.reason is Reason.INVALID_KEY


@pytest.mark.parametrize("key", [np.longdouble(1) / 3, np.longdouble("1e4000")], ids=["a third", "beyond"])
def test_a_wider_float_is_not_rounded_to_a_key(key: Any) -> None:
    with pytest.raises(LookupFailure, match="it would be rounded") as refused:
        to_key(key, KeyForm("s", "double"))
    assert refused.value.reason is Reason.INVALID_KEY
    assert to_key(np.longdouble("nan"), KeyForm("s", "double")).text == "nan"
    assert to_key(np.longdouble(0.5), KeyForm("s", "double")).text == "0.5"


@pytest.mark.parametrize("make", [to_key, prefix_key])
@pytest.mark.parametrize("key", ["\ud800", "a\udcff", np.str_("\udfff")])
def test_half_a_character_is_no_text(key: Any, make: Any) -> None:
    with pytest.raises(LookupFailure, match="is no text") as refused:
        make(key)
    assert refused.value.reason is Reason.INVALID_KEY


@pytest.mark.parametrize(
    ("serde", "key", "gives"),
    [
        ("long", 5.0, "an int"),
        ("long", np.float64(5), "an int"),
        ("string", 5, "a str"),
        ("string", 5.5, "a str"),
        ("bytes", 5, "bytes"),
        ("json", 5, "the JSON as a str"),
        ("avro", 5, "the serialized bytes"),
    ],
)
def test_a_number_of_another_type_says_what_to_give(serde: str, key: Any, gives: str) -> None:
    with pytest.raises(TypeError, match=gives):
        to_key(key, KeyForm("s", serde))


@pytest.mark.parametrize("key", NO_KEYS, ids=lambda key: type(key).__name__)
@pytest.mark.parametrize("serde", ["", "long", "double", "string", "bytes"])
def test_nothing_else_is_a_key(key: Any, serde: str) -> None:
    with pytest.raises(TypeError, match="a key can't be of type"):
        needs_serde(key)
    with pytest.raises(TypeError, match="a key can't be of type"):
        to_key(key, KeyForm("s", serde))


@pytest.mark.parametrize("key", [b"\0\5", bytearray(b"\0\5"), memoryview(b"\0\5"), np.bytes_(b"\0\5")])
def test_bytes_go_as_they_are(key: Any) -> None:
    assert not needs_serde(key)
    assert to_key(key).raw == b"\0\5"
    assert prefix_key(key).raw == b"\0\5"


@pytest.mark.parametrize("key", ["a", Named.A, np.str_("a")])
def test_text_goes_as_it_is(key: Any) -> None:
    assert to_key(key).text == "a"
    assert prefix_key(key).text == "a"


@pytest.mark.parametrize("prefix", [*NO_KEYS[1:], 1, 0.5, np.int64(1)], ids=lambda key: type(key).__name__)
def test_a_prefix_is_text_or_bytes(prefix: Any) -> None:
    with pytest.raises(TypeError, match="a prefix can't be of type"):
        prefix_key(prefix)
