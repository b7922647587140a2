"""Keys by their columns: the same text, whichever caller gives them, and a reason for what is none."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.errors import LookupFailure, Reason
from statehouse.keys.columns import KeyColumn, can_be_named, column_of_text, columns_of_text, key_text

COLUMNS = [KeyColumn("user", "string"), KeyColumn("at", "timestamp"), KeyColumn("amount", "decimal(6,2)")]
TYPES = [
    *("tinyint", "smallint", "int", "bigint", "float", "double", "decimal(6,2)", "timestamp", "timestamp_ntz", "date"),
    *("boolean", "binary", "string", "struct<a:int,b:array<string>>", "array<int>", "interval day to second"),
]


def of(kind: str, value: Any) -> Any:
    return json.loads(key_text("s", [KeyColumn("c", kind)], {"c": value}))["c"]


@pytest.mark.feature("keys-several-columns")
def test_columns_make_the_key_that_the_writer_has_written() -> None:
    expected = '{"user":"zoë","at":"2026-10-25T01:30:00.500000Z","amount":"46.50"}'
    texts = {"amount": "46.5", "user": "zoë", "at": "2026-10-25T02:30:00.5+01:00"}
    assert key_text("s", COLUMNS, texts) == expected
    at = datetime(2026, 10, 25, 2, 30, 0, 500_000, timezone(timedelta(hours=1)))
    assert key_text("s", COLUMNS, {"user": "zoë", "at": at, "amount": Decimal("46.5")}) == expected
    assert key_text("s", COLUMNS, columns_of_text(expected)) == expected
    assert key_text("s", COLUMNS, columns_of_text("amount=46.5&user=zoë&at=2026-10-25T01:30:00.5Z")) == expected


@pytest.mark.parametrize(
    ("given_columns", "says"),
    [
        ({"user": "a", "at": "2026-10-25T01:30:00Z"}, "lacks column 'amount'"),
        ({"user": "a", "at": "2026-10-25T01:30:00Z", "amount": "1", "no": "1"}, "has no column 'no'"),
        ({"user": "a", "at": "2026-10-25T01:30:00", "amount": "1"}, "column at is a timestamp: say its zone"),
        ({"user": "a", "at": "yesterday", "amount": "1"}, "column at is a timestamp"),
        ({"user": "a", "at": "2026-10-25T01:30:00Z", "amount": "1.005"}, "has more digits"),
        ({"user": "a", "at": "2026-10-25T01:30:00Z", "amount": 1.5}, "give a Decimal"),
        ({"user": 5, "at": "2026-10-25T01:30:00Z", "amount": "1"}, "give text"),
    ],
)
def test_what_is_no_key_is_refused_with_the_column(given_columns: dict[str, Any], says: str) -> None:
    with pytest.raises(LookupFailure, match=says) as refused:
        key_text("s", COLUMNS, given_columns)
    assert refused.value.reason is Reason.INVALID_KEY


def test_a_store_without_columns_says_so() -> None:
    with pytest.raises(LookupFailure, match="not made of columns"):
        key_text("s", (), {"a": 1})
    with pytest.raises(LookupFailure, match="NAME=VALUE"):
        column_of_text("user")


@pytest.mark.parametrize("text", ["user=a&user=b", '{"user":"a","user":"b"}', '{"at":{"a":1,"a":2}}'])
def test_a_column_that_is_given_twice_is_refused(text: str) -> None:
    with pytest.raises(LookupFailure, match="given twice") as refused:
        columns_of_text(text)
    assert refused.value.reason is Reason.INVALID_KEY


def test_null_is_typed_where_no_text_can_be_meant() -> None:
    assert of("bigint", "null") is None
    assert of("string", "null") == "null"
    assert of("struct<a:string>", '{"a":"null"}') == {"a": "null"}
    assert of("struct<a:string>", '{"a":null}') == {"a": None}


def test_base64_that_looks_like_hex_is_base64() -> None:
    data = base64.b64decode("0xAB")
    assert of("binary", "0xAB") == of("binary", data) == "0xAB"


def test_nanoseconds_are_refused_rather_than_cut() -> None:
    at = pd.Timestamp("2026-10-25T01:30:00.000000001Z")
    with pytest.raises(LookupFailure, match="nanoseconds"):
        of("timestamp", at)
    assert of("timestamp", at.floor("us")) == "2026-10-25T01:30:00.000000Z"


def test_structs_are_given_by_their_fields_in_any_order() -> None:
    kind = "struct<start:timestamp,end:timestamp>"
    expected = {"start": "2026-10-25T01:30:00.000000Z", "end": "2026-10-25T01:31:00.000000Z"}
    given_span = {"end": "2026-10-25T01:31:00Z", "start": datetime(2026, 10, 25, 1, 30, tzinfo=UTC)}
    assert list(of(kind, given_span).items()) == list(expected.items())
    assert of(kind, json.dumps(expected)) == expected


def test_a_fraction_can_not_be_named() -> None:
    """Its text depends on the version of Java: another one would be a key that nobody has written."""
    assert not can_be_named("double")
    assert not can_be_named("struct<a:int,b:float>")
    assert can_be_named("struct<a:int,b:array<struct<c:decimal(6,2)>>>")
    with pytest.raises(LookupFailure, match="give the whole key"):
        of("double", 1e7)


def test_controls_are_written_as_spark_writes_them() -> None:
    assert key_text("s", [KeyColumn("c", "string")], {"c": "\x1f\\u001f\n"}) == '{"c":"\\u001F\\\\u001f\\n"}'


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("timestamp", "2026-10-25T01:30:00.1234567Z"),
        ("timestamp", "+12026-10-25T01:30:00.000000Z"),
        ("decimal(6,2)", "1_0"),
        ("decimal(6,2)", " 1 "),
        ("date", "2026-W48-5"),
        ("struct<a:int>", "[" * 100_000),
    ],
)
def test_what_only_python_reads_is_refused(kind: str, text: str) -> None:
    with pytest.raises(LookupFailure) as refused:
        of(kind, text)
    assert refused.value.reason is Reason.INVALID_KEY


@given(st.binary())
def test_bytes_of_a_text_are_typed_and_given_alike(data: bytes) -> None:
    shown = of("string", data)
    assert of("string", shown) == shown, "what is shown can be typed"
    assert of("binary", data) == base64.b64encode(data).decode() == of("binary", "hex:" + data.hex())


@given(st.binary(), st.binary())
def test_no_two_texts_are_one_key(one: bytes, other: bytes) -> None:
    assert (of("string", one) == of("string", other)) == (one == other)


@given(st.integers(-(2**63), 2**63 - 1))
def test_whole_numbers_are_given_as_numbers_or_typed(number: int) -> None:
    assert of("bigint", number) == of("bigint", str(number)) == number


@given(st.integers(-62_000_000_000_000_000, 250_000_000_000_000_000), st.integers(-14, 14))
def test_a_time_is_the_same_in_every_zone(micros: int, hours: int) -> None:
    at = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)
    elsewhere = at.astimezone(timezone(timedelta(hours=hours)))
    expected = at.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    assert of("timestamp", elsewhere) == of("timestamp", elsewhere.isoformat()) == expected


@given(st.sampled_from(TYPES), st.text() | st.integers() | st.floats() | st.binary() | st.booleans() | st.none())
def test_everything_is_a_key_or_has_a_reason(kind: str, value: Any) -> None:
    failures: list[LookupFailure] = []
    shown = None
    try:
        shown = of(kind, value)
    except LookupFailure as failure:
        failures.append(failure)
    assert [failure.reason for failure in failures] in ([], [Reason.INVALID_KEY])
    assert all(kind in failure.message for failure in failures)
    assert failures or of(kind, shown) == shown, "what is shown can be given"
