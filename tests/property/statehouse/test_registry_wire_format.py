"""The registry's wire format: what is framed is unframed, as Confluent's own serializers write it."""

from __future__ import annotations

import io
import json
import math
from contextlib import suppress

import fastavro
import pytest
from confluent_kafka.schema_registry.serde import SchemaId
from hypothesis import given
from hypothesis import strategies as st

from statehouse.serdes import json_value, named_floats
from statehouse.serdes.registry.avro import decoder
from statehouse.serdes.registry.client import RegisteredText
from statehouse.serdes.registry.wire_format import framed, split_indexes, unframed
from tests.support.protobuf_indexes import with_indexes

IDS = st.integers(0, 2**32 - 1)
PATHS = st.lists(st.integers(0, 2**20), min_size=1, max_size=8)


@given(IDS, st.binary())
def test_what_is_framed_is_unframed(schema_id: int, payload: bytes) -> None:
    assert unframed(framed(schema_id, payload)) == (schema_id, payload)


@given(PATHS, st.binary())
def test_a_path_comes_back_before_any_payload(path: list[int], payload: bytes) -> None:
    assert split_indexes(with_indexes(path, payload)) == (tuple(path), payload)


@given(st.integers(0, 2**31 - 1), PATHS)
def test_confluents_own_writer_agrees(schema_id: int, path: list[int]) -> None:
    theirs = SchemaId("PROTOBUF", schema_id, None, path).id_to_bytes()
    assert framed(schema_id, with_indexes(path, b"")) == theirs


@given(st.binary(max_size=20))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(ValueError):
        unframed(data)
    with suppress(ValueError):
        path, rest = split_indexes(data)
        assert data.endswith(rest)
        assert all(step >= 0 for step in path)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=5), st.data())
def test_a_path_that_ends_early_is_refused(path: list[int], data: st.DataObject) -> None:
    whole = with_indexes(path, b"")
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(ValueError, match="path to its message"):
        split_indexes(whole[:cut])


# A few types that nest, and values of them.
_LEAVES = st.sampled_from(["null", "boolean", "int", "long", "double", "string"])
_TYPES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        inner.map(lambda each: {"type": "array", "items": each}),
        inner.map(lambda each: {"type": "map", "values": each}),
    ),
    max_leaves=4,
)
_VALUES = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(),
    "string": st.text(),
}


def _values(of: object) -> st.SearchStrategy[object]:
    if isinstance(of, str):
        return _VALUES[of]
    assert isinstance(of, dict)
    if of["type"] == "array":
        return st.lists(_values(of["items"]), max_size=3)
    return st.dictionaries(st.text(max_size=5), _values(of["values"]), max_size=3)


def _same(found: object, expected: object) -> bool:
    if isinstance(expected, float) and not math.isfinite(expected):
        return found == ("NaN" if math.isnan(expected) else "Infinity" if expected > 0 else "-Infinity")
    if isinstance(expected, list):
        return isinstance(found, list) and all(map(_same, found, expected))
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(_same(found[name], each) for name, each in expected.items())
    return type(found) is type(expected) and found == expected


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_float_that_json_lacks_is_text(number: float) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": "double"}]}
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), {"f": number})
    assert _same(decoder(RegisteredText(json.dumps(schema)))(written.getvalue()), {"f": number})


@given(_TYPES, st.data())
def test_any_avro_value_is_decoded_whole_or_refused(of: object, data: st.DataObject) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": of}]}
    value = data.draw(_values(of))
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), {"f": value})
    decode = decoder(RegisteredText(json.dumps(schema)))
    document = decode(written.getvalue())
    assert _same(document, {"f": value})
    json_value(named_floats(document))
    with pytest.raises(ValueError, match="bytes follow the value"):
        decode(written.getvalue() + b"x")
