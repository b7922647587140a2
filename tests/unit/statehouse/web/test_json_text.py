"""Bodies: any JSON, and stored documents as they are."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.web.api.json_text import document, encode

_LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
_JSON = st.recursive(_LEAVES, lambda each: st.lists(each) | st.dictionaries(st.text(), each), max_leaves=30)


@given(_JSON)
def test_what_is_written_is_read_as_it_was(value: Any):
    assert json.loads(encode(value)) == value


@given(_JSON)
def test_a_document_is_copied(value: Any):
    stored = json.dumps(value, indent=1, ensure_ascii=False).encode("utf-8", "surrogatepass")
    try:
        stored.decode()
    except UnicodeDecodeError:
        return
    assert encode({"a": [document(stored)]}) == b'{"a":[' + stored + b"]}"


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"{", b"NaN", b"-Infinity", b"1 2", "[1]".encode("utf-16"), b"[" * 10**5]
)
def test_what_is_no_document(data: bytes):
    with pytest.raises(ValueError, match=r"."):
        document(data)


def test_bytes_and_numbers_that_json_lacks_are_shown():
    assert json.loads(encode([b"\x00\xff", float("nan"), float("-inf"), "\ud800"])) == [
        {"base64": "AP8="},
        "NaN",
        "-Infinity",
        "\ud800",
    ]
