"""Values by schemas that a registry has: what they are in JSON, and what is refused."""

from __future__ import annotations

import base64
import io
import json
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError
from google.protobuf import descriptor_pb2, struct_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from statehouse.client.conversion import from_value
from statehouse.serdes import FetchNeeded, SerdeUnavailable
from statehouse.serdes.plugins import SerdeOptions
from statehouse.serdes.registry.avro import AvroSerde, decoder
from statehouse.serdes.registry.client import RegisteredText, RegistryClient
from statehouse.serdes.registry.json_schema import JsonSchemaSerde
from statehouse.serdes.registry.protobuf import MessageTypes, ProtobufSerde
from statehouse.serdes.registry.wire_format import framed
from tests.support.protobuf_indexes import with_indexes

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "raw", "type": "bytes"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "note", "type": ["null", "string"]},
        {"name": "token", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}


def written(schema: Any, value: Any) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), value)
    return target.getvalue()


def test_logical_types_are_text_and_a_large_long_is_too() -> None:
    token = uuid.UUID(int=5)
    value = {
        "id": 2**60,
        "raw": b"\x00\xff",
        "at": datetime(2024, 1, 2, tzinfo=UTC),
        "price": Decimal("12.50"),
        "note": None,
        "token": token,
    }
    serde = AvroSerde(SerdeOptions())
    data = framed(3, written(ORDER, value))
    with pytest.raises(FetchNeeded):
        serde.value(data)
    serde._schemas._known[3] = decoder(RegisteredText(json.dumps(ORDER)))
    assert from_value(serde.value(data)) == {
        "id": str(2**60),
        "raw": base64.b64encode(b"\x00\xff").decode(),
        "at": "2024-01-02T00:00:00+00:00",
        "price": "12.50",
        "note": None,
        "token": str(token),
    }
    # Where numbers aren't 64-bit floats it is one: `parse_avro` reads the text.
    assert json.loads(serde.text(data))["id"] == 2**60
    with pytest.raises(ValueError, match="not what schema 3 says"):
        serde.value(data[:-3])
    with pytest.raises(ValueError, match="does not begin with a zero byte"):
        serde.value(b"\x01" + data)


def test_a_key_has_no_text_form_and_the_error_says_what_to_send() -> None:
    with pytest.raises(ValueError, match="send raw bytes"):
        AvroSerde(SerdeOptions()).parse('{"id":1}')


def test_an_avro_schema_refers_to_others() -> None:
    inner = {"type": "record", "name": "In", "fields": [{"name": "n", "type": "int"}]}
    outer = {"type": "record", "name": "Out", "fields": [{"name": "inner", "type": "In"}]}
    decode = decoder(RegisteredText(json.dumps(outer), (("In", json.dumps(inner)),)))
    assert decode(b"\x04") == {"inner": {"n": 2}}


@pytest.mark.parametrize("text", ["nothing", '{"type":"record"}', '"bytes"', '{"type":"bytes"}'])
def test_schemas_that_say_too_little_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"can't be parsed|bare bytes"):
        decoder(RegisteredText(text))


def descriptor() -> descriptor_pb2.FileDescriptorProto:
    """Return `message A {} message B { message C { int64 n = 1; Timestamp at = 2; map<string, int64> m = 3; } }`."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="anything.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    file.message_type.add(name="A").field.add(name="s", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    nested = file.message_type.add(name="B").nested_type.add(name="C")
    nested.field.add(name="big_n", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    nested.field.add(
        name="at",
        number=2,
        type=field.TYPE_MESSAGE,
        label=field.LABEL_OPTIONAL,
        type_name=".google.protobuf.Timestamp",
    )
    nested.field.add(
        name="m", number=3, type=field.TYPE_MESSAGE, label=field.LABEL_REPEATED, type_name=".shop.B.C.MEntry"
    )
    entry = nested.nested_type.add(name="MEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    nested.field.add(name="ns", number=4, type=field.TYPE_INT64, label=field.LABEL_REPEATED)
    return file


def as_registered(file: descriptor_pb2.FileDescriptorProto) -> RegisteredText:
    return RegisteredText(base64.b64encode(file.SerializeToString()).decode())


def message_of(file: descriptor_pb2.FileDescriptorProto, name: str) -> Any:
    pool = DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(name))()


def test_a_nested_message_is_found_by_its_path_and_integers_are_numbers() -> None:
    message = message_of(descriptor(), "shop.B.C")
    message.big_n, message.at.seconds, message.m["k"] = 2**60, 1, 5
    message.ns.append(-3)
    serde = ProtobufSerde(SerdeOptions())
    serde._schemas._known[9] = MessageTypes(as_registered(descriptor()))
    data = framed(9, with_indexes([1, 0], message.SerializeToString()))
    assert serde.document(data) == {"big_n": 2**60, "at": "1970-01-01T00:00:01Z", "m": {"k": 5}, "ns": [-3]}
    assert from_value(serde.value(data)) == {
        "big_n": str(2**60),
        "at": "1970-01-01T00:00:01Z",
        "m": {"k": 5},
        "ns": [-3],
    }
    assert serde.document(framed(9, with_indexes([0], b""))) == {"s": ""}
    for path in ([2], [0, 0], [1, 0, 1]):
        with pytest.raises(ValueError, match="no message at"):
            serde.value(framed(9, with_indexes(path, b"")))
    with pytest.raises(ValueError, match="not what schema 9 says"):
        serde.value(framed(9, with_indexes([0], b"\x0a\xff")))


def test_a_protobuf_schema_as_text_is_refused_with_advice() -> None:
    with pytest.raises(ValueError, match="format=serialized"):
        MessageTypes(RegisteredText('syntax = "proto3"; message M {}'))


def test_json_needs_no_registry() -> None:
    serde = JsonSchemaSerde(SerdeOptions())
    assert from_value(serde.value(framed(1, b'{"n": 9007199254740993}'))) == {"n": "9007199254740993"}
    assert serde.text(framed(1, b'{"b": 1, "a": "\xc3\xa9"}')) == '{"a":"é","b":1}'
    for wrong in (b'{"n": 1}', framed(1, b"{"), framed(1, b"\xff"), b""):
        with pytest.raises(ValueError, match=r".+"):
            serde.value(wrong)


def connected(schema_type: str, form: str | None = None) -> tuple[RegistryClient, Any]:
    """Return a client of the mock that Confluent's library has."""
    mock = SchemaRegistryClient.new_client({"url": "mock://"})
    found = RegistryClient(SerdeOptions("http://127.0.0.1:1"), schema_type, form=form)
    found._client = mock
    return found, mock


def test_references_come_before_those_that_need_them() -> None:
    found, mock = connected("AVRO")
    mock.register_schema("a", Schema('{"type":"enum","name":"A","symbols":["x"]}', "AVRO"))
    inner = '{"type":"record","name":"B","fields":[{"name":"a","type":"A"}]}'
    mock.register_schema("b", Schema(inner, "AVRO", [SchemaReference("A", "a", 1)]))
    outer = '{"type":"record","name":"C","fields":[{"name":"b","type":"B"},{"name":"a","type":"A"}]}'
    references = [SchemaReference("B", "b", 1), SchemaReference("A", "a", 1)]
    schema_id = mock.register_schema("c", Schema(outer, "AVRO", references))
    schema = found.schema(schema_id)
    assert [name for name, _ in schema.references] == ["A", "B"]
    assert decoder(schema)(b"\x00\x00") == {"b": {"a": "x"}, "a": "x"}


def test_what_the_registry_lacks_or_has_of_another_type_is_told_from_what_it_cannot_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, mock = connected("PROTOBUF")
    with pytest.raises(ValueError, match="has no schema 12"):
        found.schema(12)
    schema_id = mock.register_schema("a", Schema('"string"', "AVRO"))
    with pytest.raises(ValueError, match="is of type AVRO, not PROTOBUF"):
        found.schema(schema_id)

    def refuse(*_: object, **__: object) -> None:
        raise SchemaRegistryError(401, 40101, "who are you?")

    monkeypatch.setattr(mock, "get_schema", refuse)
    with pytest.raises(SerdeUnavailable, match=r"answered 401: who are you\?"):
        found.schema(1)
    assert found._client is None  # made anew with the file as it then is


def test_the_registry_is_named_where_there_is_none() -> None:
    with pytest.raises(SerdeUnavailable, match="set schema_registry_url"):
        RegistryClient(SerdeOptions(), "AVRO").schema(1)
    unreachable = SerdeOptions("http://127.0.0.1:1", timeout_s=0.5)
    with pytest.raises(SerdeUnavailable, match=r"http://127\.0\.0\.1:1 can't be read"):
        RegistryClient(unreachable, "AVRO").schema(1)
