"""Avro values, each by the schema that it was written with."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
from fastavro.schema import parse_schema

from statehouse.registry.client import RegisteredText, RegistryClient
from statehouse.registry.schemas import Schemas
from statehouse.registry.wire_format import unframed
from statehouse.serde_plugins import SerdeOptions
from statehouse.serdes import DocumentSerde, JsonValue

Decoder = Callable[[bytes], JsonValue]


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

    Raises:
        ValueError: it is no Avro schema that can be read here.

    """
    named: dict[str, Any] = {}
    try:
        for _, text in schema.references:
            parse_schema(json.loads(text), named_schemas=named)
        root = json.loads(schema.text)
        parsed = parse_schema(root, named_schemas=named)
    except Exception as error:
        raise ValueError(f"the schema can't be parsed: {type(error).__name__}: {error}") from error
    if _type_of(root) == "bytes":
        raise ValueError(
            "its schema is bare bytes, which some serializers write with their length and others without: read it raw"
        )

    def decode(payload: bytes) -> JsonValue:
        source = io.BytesIO(payload)
        try:
            found = fastavro.schemaless_reader(source, parsed, None)
        except Exception as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        if source.tell() != len(payload):
            raise ValueError(f"{len(payload) - source.tell()} bytes follow the value")
        return _plain(found)

    return decode


def _type_of(root: Any) -> Any:  # noqa: ANN401 - a schema is any JSON
    return root.get("type") if isinstance(root, dict) else root


def _plain(value: Any) -> JsonValue:  # noqa: ANN401, PLR0911 - whatever fastavro makes of logical types, one line each
    """Return a decoded value as JSON: bytes in base64, times in ISO 8601, decimals and UUIDs as text."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {str(name): _plain(item) for name, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case UUID():
            return str(value)
        case _:
            raise ValueError(f"a {type(value).__name__} has no form in JSON")
