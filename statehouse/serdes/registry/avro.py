"""Avro values, each by the schema that it was written with."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import date, datetime, time
from typing import Any, Final
from uuid import UUID

import fastavro
from fastavro.read import LOGICAL_READERS
from fastavro.schema import UnknownType, parse_schema

from statehouse.serdes import DocumentSerde, JsonValue
from statehouse.serdes.json_documents import named
from statehouse.serdes.plugins import SerdeOptions
from statehouse.serdes.registry.client import RegisteredText, RegistryClient
from statehouse.serdes.registry.schemas import Schemas
from statehouse.serdes.registry.wire_format import unframed

Decoder = Callable[[bytes], JsonValue]
AvroSchema = Any  # any JSON

_OURS: Final = "statehouse-"
"""In front of a logical type, so that our reader of it is asked, and nobody else's reader changes."""
_ROOT: Final = "statehouse_value"
"""A record around the schema. It adds no bytes, and lets the schema be anything: a union, a list, a name."""
_SCALE_MAX: Final = 10_000
"""Digits behind the point that a decimal is shown with; one that has more is shown as its bytes."""
_DAY_S: Final = 86_400
_NESTED_MAX: Final = 32
"""The most records within records for which a failure gives the names."""


class AvroSerde(DocumentSerde):
    """Avro in the registry's wire format. Each value is shown by the schema that it was written with."""

    def __init__(self, options: SerdeOptions) -> None:
        client = RegistryClient(options, "AVRO")
        self._schemas = Schemas(lambda schema_id: decoder(client.schema(schema_id)))

    def document(self, data: bytes) -> JsonValue:
        """Decode."""
        schema_id, payload = unframed(data)
        decode = self._schemas.decoder(schema_id)
        try:
            return decode(payload)
        except ValueError as error:
            raise ValueError(f"it is not what schema {schema_id} says: {error}") from error


def decoder(schema: RegisteredText) -> Decoder:
    """Return what decodes payloads of a schema.

    A field whose logical type can't hold what was written, a day of the year 10000 for example, is shown as what was
    written: a number, a text, or bytes in base64.

    Raises:
        ValueError: it is no Avro schema that can be read here.

    """
    try:
        root = json.loads(schema.text)
        parsed = _parsed(root, [json.loads(text) for _, text in schema.references])
    except Exception as error:
        raise ValueError(f"the schema can't be parsed: {type(error).__name__}: {error}") from error
    if _type_of(root) == "bytes":
        raise ValueError(
            "its schema is bare bytes, which some serializers write with their length and others without: read it raw"
        )

    def decode(payload: bytes) -> JsonValue:
        source = io.BytesIO(payload)
        try:
            found: Any = fastavro.schemaless_reader(source, parsed, None)
        except Exception as error:
            raise ValueError(f"{_failed_field(parsed, payload)}{type(error).__name__}: {error}") from error
        if source.tell() != len(payload):
            raise ValueError(f"{len(payload) - source.tell()} bytes follow the value")
        return _plain(found["value"])

    return decode


def _parsed(root: AvroSchema, references: Sequence[AvroSchema]) -> Any:  # noqa: ANN401 - fastavro's
    """Return what fastavro reads by. The references may come in any order.

    Raises:
        UnknownType: a name is defined nowhere.

    """
    named: dict[str, Any] = {}
    waiting = [_with_our_readers(each) for each in references]
    while waiting:
        again = []
        for each in waiting:
            before = dict(named)
            try:
                parse_schema(each, named_schemas=named)
            except UnknownType:
                named = before
                again.append(each)
        if len(again) == len(waiting):
            break  # the schema may do without them
        waiting = again
    return parse_schema(_record_of(_with_our_readers(root)), dict(named))


def _record_of(kind: AvroSchema) -> dict[str, Any]:
    return {"type": "record", "name": _ROOT, "fields": [{"name": "value", "type": kind}]}


def _type_of(root: AvroSchema) -> AvroSchema:
    return root.get("type") if isinstance(root, dict) else root


def _with_our_readers(schema: AvroSchema) -> AvroSchema:
    """Return a schema whose logical types have our readers."""
    if isinstance(schema, list):
        return [_with_our_readers(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    ours = {name: _with_our_readers(each) for name, each in schema.items() if name != "default"}
    logical = schema.get("logicalType")
    if isinstance(logical, str):
        ours["logicalType"] = _OURS + logical
    return ours


def _decimal(data: bytes, writer_schema: AvroSchema, _reader_schema: AvroSchema = None) -> str | bytes:
    """Return a decimal with all its digits. fastavro's own would round it to the schema's precision."""
    scale, precision = writer_schema.get("scale", 0), writer_schema.get("precision")
    # The specification has a logical type without sense ignored.
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= min(precision, _SCALE_MAX):
        return data
    unscaled = int.from_bytes(data, "big", signed=True)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    whole, behind = digits[: len(digits) - scale], digits[len(digits) - scale :]
    return f"{'-' if unscaled < 0 else ''}{whole}{'.' if scale else ''}{behind}"


def _within_a_day(read: Callable[..., Any], per_s: int) -> Callable[..., Any]:
    """Return a reader of times of day that leaves what is none. fastavro's own wraps them."""

    def reader(data: int, writer_schema: AvroSchema = None, reader_schema: AvroSchema = None) -> Any:  # noqa: ANN401 - fastavro's
        return read(data, writer_schema, reader_schema) if 0 <= data < _DAY_S * per_s else data

    return reader


def _lenient(read: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reader of a logical type that leaves what was written where `read` has no form for it."""

    def reader(data: Any, writer_schema: AvroSchema = None, reader_schema: AvroSchema = None) -> Any:  # noqa: ANN401 - fastavro's
        with suppress(Exception):  # whatever Python's types say of what they can't hold
            return read(data, writer_schema, reader_schema)
        return data

    return reader


for _name, _read in {
    **LOGICAL_READERS,
    "bytes-decimal": _decimal,
    "fixed-decimal": _decimal,
    "int-time-millis": _within_a_day(LOGICAL_READERS["int-time-millis"], 1_000),
    "long-time-micros": _within_a_day(LOGICAL_READERS["long-time-micros"], 1_000_000),
}.items():
    _physical, _, _logical = _name.partition("-")
    LOGICAL_READERS[f"{_physical}-{_OURS}{_logical}"] = _lenient(_read)


def _failed_field(parsed: Any, payload: bytes) -> str:  # noqa: ANN401 - fastavro's
    """Return the words that name the field at which decoding fails; nothing if it is in none."""
    named, source, path = parsed["__named_schemas"], io.BytesIO(payload), list[str]()
    record: Any = parsed
    with suppress(Exception):  # a better word about an error must not become another one
        while isinstance(record, dict) and record.get("type") == "record" and len(path) <= _NESTED_MAX:
            failed = next((field for field in record["fields"] if not _reads(field["type"], named, source)), None)
            if failed is None:
                break
            path.append(failed["name"])
            record = named.get(failed["type"]) if isinstance(failed["type"], str) else failed["type"]
    return f"field {'.'.join(path[1:])}: " if path[1:] else ""


def _reads(kind: AvroSchema, named: dict[str, Any], source: io.BytesIO) -> bool:
    """Whether a value can be read; if not, the source stays where the value begins."""
    began_at = source.tell()
    around = _record_of(kind) | {"__fastavro_parsed__": True, "__named_schemas": named}
    try:
        fastavro.schemaless_reader(source, around, None)
    except Exception:  # noqa: BLE001 - as in `decoder`
        source.seek(began_at)
        return False
    return True


def _plain(value: Any) -> JsonValue:  # noqa: ANN401, PLR0911 - whatever fastavro makes of logical types, one line each
    """Return a decoded value as JSON: bytes in base64, times in ISO 8601, UUIDs and what is no number as text."""
    match value:
        case float():
            return named(value)
        case None | bool() | int() | str():
            return value
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {str(name): _plain(item) for name, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case datetime() | date() | time():
            return value.isoformat()
        case UUID():
            return str(value)
        case _:
            raise ValueError(f"a {type(value).__name__} has no form in JSON")
