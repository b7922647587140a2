"""Avro and Protobuf as other programs write them: names from elsewhere, and values that Python's types can't hold."""

from __future__ import annotations

import base64
import io
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from itertools import permutations
from typing import Any

import fastavro
import pytest
from google.protobuf import any_pb2, descriptor_pb2, duration_pb2, struct_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from processor.operators.registry_records import _decoded, _serdes
from statehouse.serdes.plugins import SerdeOptions
from statehouse.serdes.registry.avro import AvroSerde, decoder
from statehouse.serdes.registry.client import RegisteredText
from statehouse.serdes.registry.protobuf import MessageTypes, ProtobufSerde
from statehouse.serdes.registry.wire_format import framed
from tests.support.protobuf_indexes import with_indexes


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "namespace": "shop",
        "fields": [{"name": field, "type": kind} for field, kind in fields.items()],
    }


def logical(name: str, physical: str, **more: Any) -> dict[str, Any]:
    return {"type": physical, "logicalType": name, **more}


def plain(schema: Any) -> Any:
    """Return the schema without logical types: what a writer of another language puts there."""
    if isinstance(schema, list):
        return [plain(each) for each in schema]
    if isinstance(schema, dict):
        return {name: plain(each) for name, each in schema.items() if name != "logicalType"}
    return schema


def decoded(schema: Any, value: Any, *references: Any) -> Any:
    named: dict[str, Any] = {}
    for each in references:
        fastavro.parse_schema(plain(each), named_schemas=named)
    around = {"type": "record", "name": "around", "fields": [{"name": "value", "type": plain(schema)}]}
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(around, named_schemas=named), {"value": value})
    texts = tuple((f"r{number}", json.dumps(each)) for number, each in enumerate(references))
    return decoder(RegisteredText(json.dumps(schema), texts))(target.getvalue())


PRICE = record("Price", amount="long", currency={"type": "enum", "name": "Currency", "symbols": ["EUR", "CHF"]})
ORDER = record("Order", id="int", price="shop.Price")
REFUND = record("Refund", order="shop.Order", currency="shop.Currency")
AN_ORDER = {"id": 5, "price": {"amount": 7, "currency": "CHF"}}
A_REFUND = {"order": AN_ORDER, "currency": "EUR"}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("shop.Refund", A_REFUND),
        (["null", "shop.Order", "shop.Refund"], A_REFUND),
        (["null", "shop.Order", "shop.Refund"], None),
        ({"type": "array", "items": ["shop.Refund", "shop.Price"]}, [A_REFUND, AN_ORDER["price"]]),
        ({"type": "map", "values": {"type": "array", "items": "shop.Order"}}, {"k": [AN_ORDER]}),
        (record("Envelope", of=["null", "shop.Refund"], currencies={"type": "array", "items": "shop.Currency"}), None),
        (record("Node", order="shop.Order", next=["null", "shop.Node"]), None),
    ],
)
def test_names_are_found_wherever_they_stand_and_in_whichever_order_they_come(schema: Any, value: Any):
    if isinstance(schema, dict) and schema.get("name") == "Envelope":
        value = {"of": A_REFUND, "currencies": ["EUR", "CHF"]}
    if isinstance(schema, dict) and schema.get("name") == "Node":
        value = {"order": AN_ORDER, "next": {"order": AN_ORDER, "next": None}}
    expected = decoded(schema, value, PRICE, ORDER, REFUND)
    assert expected == value
    body = io.BytesIO()
    named: dict[str, Any] = {}
    for each in (PRICE, ORDER, REFUND):
        fastavro.parse_schema(each, named_schemas=named)
    around = {"type": "record", "name": "around", "fields": [{"name": "value", "type": schema}]}
    fastavro.schemaless_writer(body, fastavro.parse_schema(around, named_schemas=named), {"value": value})
    for order in permutations((PRICE, ORDER, REFUND)):
        references = tuple((each["name"], json.dumps(each)) for each in order)
        assert decoder(RegisteredText(json.dumps(schema), references))(body.getvalue()) == value


def test_a_name_that_nobody_defines_is_named():
    with pytest.raises(ValueError, match=r"can't be parsed.*shop\.Order"):
        decoder(RegisteredText('["null", "shop.Order"]', (("Refund", json.dumps(REFUND)),)))


@pytest.mark.parametrize(
    ("kind", "written", "shown"),
    [
        (logical("date", "int"), 2_932_897, 2_932_897),
        (logical("date", "int"), -719_163, -719_163),
        (logical("date", "int"), 2**31 - 1, 2**31 - 1),
        (logical("date", "int"), 0, "1970-01-01"),
        (logical("timestamp-millis", "long"), 253_402_300_800_000, 253_402_300_800_000),
        (logical("timestamp-millis", "long"), 0, "1970-01-01T00:00:00+00:00"),
        (logical("timestamp-micros", "long"), 2**63 - 1, 2**63 - 1),
        (logical("timestamp-micros", "long"), -(2**63), -(2**63)),
        (logical("local-timestamp-millis", "long"), 2**62, 2**62),
        (logical("local-timestamp-micros", "long"), 2**62, 2**62),
        (logical("timestamp-nanos", "long"), 5, 5),
        (logical("time-millis", "int"), 86_400_000, 86_400_000),
        (logical("time-millis", "int"), -1, -1),
        (logical("time-millis", "int"), 1_000, "00:00:01"),
        (logical("time-micros", "long"), 2**62, 2**62),
        (logical("uuid", "string"), "n/a", "n/a"),
        (logical("uuid", "string"), "", ""),
        (logical("decimal", "bytes"), b"\5", "BQ=="),
        (logical("decimal", "bytes", precision=4, scale=9), b"\5", "BQ=="),
        (logical("decimal", "bytes", precision="4"), b"\5", "BQ=="),
        (logical("decimal", "bytes", precision=10**9, scale=10**9), b"\5", "BQ=="),
        (logical("decimal", "bytes", precision=4, scale=2), b"\x01\xe2\x40", "1234.56"),
        (logical("decimal", "bytes", precision=4, scale=2), b"\xff", "-0.01"),
        (logical("decimal", "bytes", precision=4, scale=2), b"", "0.00"),
        ({"type": "fixed", "name": "Cents", "size": 2, "logicalType": "decimal", "precision": 4}, b"\x01\0", "256"),
        ({"type": "fixed", "name": "Span", "size": 12, "logicalType": "duration"}, bytes(12), "AAAAAAAAAAAAAAAA"),
        (logical("of-the-future", "string"), "x", "x"),
        (logical("date", "string"), "x", "x"),
        ("double", float("nan"), "NaN"),
        ("float", float("-inf"), "-Infinity"),
    ],
)
def test_what_a_type_cannot_hold_is_shown_as_written_and_the_rest_as_usual(kind: Any, written: Any, shown: Any):
    around = {"id": 7, "at": "1970-01-02"}
    day = logical("date", "int")
    assert decoded(record("R", id="int", v=kind, at=day), {"id": 7, "v": written, "at": 1}) == {**around, "v": shown}
    several = {"type": "array", "items": record("R", v=["null", kind], at=day)}
    assert decoded(several, [{"v": written, "at": 1}]) == [{"v": shown, "at": "1970-01-02"}]
    if isinstance(kind, dict) and kind["type"] != "fixed":
        assert decoded({"type": "map", "values": kind}, {"k": written}) == {"k": shown}


@given(st.integers(-(2**31), 2**31 - 1))
def test_days_are_dates_or_numbers(day: int):
    found = decoded(record("R", day=logical("date", "int")), {"day": day})["day"]
    assert found == day if isinstance(found, int) else date.fromisoformat(found) - date(1970, 1, 1) == timedelta(day)


@given(st.integers(-(2**63), 2**63 - 1) | st.integers(-(10**17), 10**18))
def test_times_are_exact_or_numbers(micros: int):
    schema = record("R", at=logical("timestamp-micros", "long"), time=logical("time-micros", "long"))
    shown = decoded(schema, {"at": micros, "time": micros})
    if not isinstance(shown["at"], int):
        since = datetime.fromisoformat(shown["at"]) - datetime(1970, 1, 1, tzinfo=UTC)
        assert since == timedelta(microseconds=micros)
    else:
        assert shown["at"] == micros
    is_a_time_of_day = 0 <= micros < 86_400 * 10**6
    exact = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).time() if is_a_time_of_day else None
    assert shown["time"] == (micros if exact is None else exact.isoformat())


@given(st.binary(max_size=40), st.integers(1, 60), st.data())
def test_decimals_have_all_their_digits(data: bytes, precision: int, more: st.DataObject):
    scale = more.draw(st.integers(0, precision))
    shown = decoded(record("R", d=logical("decimal", "bytes", precision=precision, scale=scale)), {"d": data})["d"]
    exact = Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale, Context(prec=200))
    assert shown == format(exact, "f")


def test_other_readers_of_avro_in_the_process_see_no_change():
    schema = fastavro.parse_schema(record("R", day=logical("date", "int")))
    assert fastavro.schemaless_reader(io.BytesIO(b"\0"), schema, None) == {"day": date(1970, 1, 1)}


def test_a_message_names_the_field():
    inner = record("Inner", id="int", word="string")
    schema = record("R", id="int", inner=inner, again=["null", "shop.Inner"])
    decode = decoder(RegisteredText(json.dumps(schema)))
    with pytest.raises(ValueError, match=r"^field inner\.word: UnicodeDecodeError"):
        decode(b"\2\4\2\xff\0")
    with pytest.raises(ValueError, match=r"^field again: "):
        decode(b"\2\4\2a\2\4")
    with pytest.raises(ValueError, match=r"^field id: "):
        decode(b"")
    with pytest.raises(ValueError, match=r"^1 bytes follow"):
        decode(b"\2\4\2a\0\0")


def test_nodes_and_processors_show_the_same():
    options = SerdeOptions(registry_url="http://127.0.0.1:1")
    serde = _serdes(options)("avro")
    assert isinstance(serde, AvroSerde)
    serde._schemas._known[3] = decoder(RegisteredText(json.dumps(record("R", id="int", day=logical("date", "int")))))
    target = io.BytesIO()
    fastavro.schemaless_writer(
        target, fastavro.parse_schema(record("R", id="int", day="int")), {"id": 7, "day": 2**31 - 1}
    )
    data = framed(3, target.getvalue())
    assert serde.document(data) == {"id": 7, "day": 2**31 - 1}
    assert _decoded("avro", options, data) == {"document": '{"id": 7, "day": 2147483647}', "fault": None}


FIELD = descriptor_pb2.FieldDescriptorProto
BUILT_IN = (timestamp_pb2, duration_pb2, any_pb2, struct_pb2)


def event() -> descriptor_pb2.FileDescriptorProto:
    """Return a message `E` with one field of each kind that holds a built-in message."""
    file = descriptor_pb2.FileDescriptorProto(
        name="event.proto", package="shop", syntax="proto3", dependency=[each.DESCRIPTOR.name for each in BUILT_IN]
    )
    message = file.message_type.add(name="E")
    entry = message.nested_type.add(name="ByIdEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=FIELD.TYPE_BOOL, label=FIELD.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=FIELD.TYPE_MESSAGE, label=FIELD.LABEL_OPTIONAL, type_name=".shop.E")
    message.field.add(name="id", number=1, type=FIELD.TYPE_INT64, label=FIELD.LABEL_OPTIONAL)
    message.oneof_decl.add(name="kind")
    for number, (name, type_name, label) in enumerate(
        [
            ("at", ".google.protobuf.Timestamp", FIELD.LABEL_OPTIONAL),
            ("took", ".google.protobuf.Duration", FIELD.LABEL_OPTIONAL),
            ("details", ".google.protobuf.Any", FIELD.LABEL_OPTIONAL),
            ("document", ".google.protobuf.Struct", FIELD.LABEL_OPTIONAL),
            ("times", ".google.protobuf.Timestamp", FIELD.LABEL_REPEATED),
            ("by_id", ".shop.E.ByIdEntry", FIELD.LABEL_REPEATED),
            ("inner", ".shop.E", FIELD.LABEL_OPTIONAL),
        ],
        2,
    ):
        field = message.field.add(name=name, number=number, type=FIELD.TYPE_MESSAGE, label=label, type_name=type_name)
        if name in {"at", "inner"}:
            field.oneof_index = 0
    return file


def shown_event(references: tuple[tuple[str, str], ...] = (), **fields: Any) -> Any:
    pool = DescriptorPool()
    for each in BUILT_IN:
        pool.AddSerializedFile(each.DESCRIPTOR.serialized_pb)
    pool.Add(event())
    made = GetMessageClass(pool.FindMessageTypeByName("shop.E"))

    def filled(values: dict[str, Any]) -> Any:
        message = made(id=values.get("id", 0))
        for name, value in values.items():
            if name == "inner":
                message.inner.CopyFrom(filled(value))
            elif name == "by_id":
                for key, each in value.items():
                    message.by_id[key].CopyFrom(filled(each))
            elif name == "times":
                for each in value:
                    message.times.add(seconds=each)
            elif name != "id":
                getattr(message, name).ParseFromString(value.SerializeToString())
        return message

    serde = ProtobufSerde(SerdeOptions())
    text = base64.b64encode(event().SerializeToString()).decode()
    serde._schemas._known[9] = MessageTypes(RegisteredText(text, references))
    found = serde.document(framed(9, with_indexes([0], filled(fields).SerializeToString())))
    assert isinstance(found, dict)
    return {name: value for name, value in found.items() if value not in ([], {}, None) or name in fields}


BEYOND = 253_402_300_800
"""The first second of the year 10000."""


def test_parts_of_a_message_that_json_has_no_form_for_are_shown_as_written():
    shown = shown_event(
        id=7,
        at=timestamp_pb2.Timestamp(seconds=BEYOND),
        took=duration_pb2.Duration(seconds=2**60, nanos=5),
        details=any_pb2.Any(type_url="type.googleapis.com/shop.Unknown", value=b"\1"),
        document=struct_pb2.Struct(fields={"n": struct_pb2.Value(number_value=float("nan"))}),
        times=[1, BEYOND, -(2**62)],
    )
    assert shown == {
        "id": 7,
        "at": BEYOND,
        "took": f"{2**60} s and 5 ns",
        "details": {"@type": "type.googleapis.com/shop.Unknown", "value": "AQ=="},
        "document": base64.b64encode(
            struct_pb2.Struct(fields={"n": struct_pb2.Value(number_value=float("nan"))}).SerializeToString()
        ).decode(),
        "times": ["1970-01-01T00:00:01Z", BEYOND, -(2**62)],
    }


def test_parts_of_nested_messages_too():
    beyond = {"id": 2**60, "at": timestamp_pb2.Timestamp(seconds=BEYOND, nanos=7)}
    shown = shown_event(id=1, inner={"id": 2, "by_id": {True: beyond, False: {"id": 3}}})
    assert shown["inner"]["by_id"]["true"]["at"] == f"{BEYOND} s and 7 ns"
    assert shown["inner"]["by_id"]["true"]["id"] == 2**60
    assert shown["inner"]["by_id"]["false"]["id"] == 3


def test_a_built_in_file_may_be_registered_as_well():
    registered = (
        timestamp_pb2.DESCRIPTOR.name,
        base64.b64encode(timestamp_pb2.DESCRIPTOR.serialized_pb).decode(),
    )
    other = descriptor_pb2.FileDescriptorProto(
        name="other.proto", syntax="proto3", dependency=[timestamp_pb2.DESCRIPTOR.name]
    )
    other_text = ("other.proto", base64.b64encode(other.SerializeToString()).decode())
    for references in ((registered, other_text), (other_text, registered)):
        assert shown_event(references, id=7)["id"] == 7
