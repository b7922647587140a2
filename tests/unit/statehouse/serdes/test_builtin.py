"""Serdes: bytes as Kafka's serializers write them, and clear refusals."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import pytest
from google.protobuf import json_format

from statehouse.serdes import SERDES, DocumentSerde, JsonValue, Serde
from statehouse.v1 import query_service_pb2


@pytest.mark.feature("keys-text-parsed")
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


class Documents(DocumentSerde):
    def document(self, data: bytes) -> JsonValue:
        found: JsonValue = json.loads(data)
        return found


NESTED: dict[str, Callable[[int], bytes]] = {
    "objects": lambda depth: b'{"a":' * depth + b"1" + b"}" * depth,
    "lists": lambda depth: b"[" * depth + b"]" * depth,
}


@pytest.mark.parametrize(("form", "most"), [("objects", 30), ("lists", 45)])
@pytest.mark.parametrize("named", [SERDES["json"], Documents()], ids=["json", "documents"])
def test_a_document_is_shown_if_whoever_gets_it_can_read_it(named: Serde, form: str, most: int) -> None:
    """Or one value that is nested too deep would make a whole page unreadable."""
    value = named.value(NESTED[form](most))
    # What holds a value the deepest, and a proxy's frame around it.
    results = query_service_pb2.BatchGetResponse(
        results=[query_service_pb2.BatchGetResult(response=query_service_pb2.GetResponse(value=value))]
    )
    assert query_service_pb2.BatchGetResponse.FromString(results.SerializeToString()) == results
    windows = query_service_pb2.ScanWindowsResponse(
        windows=[query_service_pb2.KeyedWindow(window=query_service_pb2.Window(value=value))]
    )
    assert query_service_pb2.ScanWindowsResponse.FromString(windows.SerializeToString()) == windows
    for depth in (most + 2, 50, 990, 100_000):
        with pytest.raises(ValueError, match="nested too deep"):
            named.value(NESTED[form](depth))


def test_a_key_that_is_nested_too_deep_is_refused() -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        SERDES["json"].parse("[" * 100_000 + "]" * 100_000)
    with pytest.raises(ValueError, match="nested too deep"):
        Documents().text(b"[" * 100_000 + b"]" * 100_000)


def test_these_are_built_in() -> None:
    assert set(SERDES) == {"string", "long", "double", "bytes", "json"}
