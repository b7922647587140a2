"""Serdes: bytes as Kafka's serializers write them, and clear refusals."""

from __future__ import annotations

import json
import struct

import pytest
from google.protobuf import json_format

from statehouse.serdes import SERDES


@pytest.mark.parametrize(
    ("name", "text", "data"),
    [
        ("string", "grün", "grün".encode()),
        ("long", "-2", struct.pack(">q", -2)),
        ("double", "12.5", struct.pack(">d", 12.5)),
        ("bytes", "00ff", b"\x00\xff"),
        ("json", '{"a":1}', b'{"a":1}'),
    ],
)
def test_text_and_bytes(name: str, text: str, data: bytes) -> None:
    assert SERDES[name].parse(text) == data
    assert SERDES[name].text(data) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [("long", "x"), ("long", "1.5"), ("long", str(2**63)), ("double", "x"), ("bytes", "0"), ("json", "{")],
)
def test_text_that_is_not_of_the_type(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        SERDES[name].parse(text)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("string", b"\xff"),
        ("long", b"1234567"),
        ("double", b""),
        ("json", b"{"),
        ("json", b"NaN"),
        ("json", b"1" * 400),
        ("json", b"\xff"),
    ],
)
def test_bytes_that_are_not_of_the_type(name: str, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        SERDES[name].value(data)


def test_typed_values() -> None:
    assert SERDES["long"].value(struct.pack(">q", 7)).long == 7
    assert SERDES["double"].value(struct.pack(">d", 0.5)).double == 0.5
    assert SERDES["string"].value(b"x").text == "x"
    assert SERDES["bytes"].value(b"\x01").raw == b"\x01"
    document = {"a": [1, 2.5, None, True, "x"], "b": {"c": {}}}
    value = SERDES["json"].value(json.dumps(document).encode())
    assert json_format.MessageToDict(value.json) == document


def test_these_are_built_in() -> None:
    assert set(SERDES) == {"string", "long", "double", "bytes", "json"}
