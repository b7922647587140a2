"""Parses Avro and Protobuf records, in the wire format of a schema registry, into typed columns as `parse_json` does.

A Python function decodes each record by the schema that it was written with, into the JSON that nodes show of such
values. What is malformed about its fields is what is malformed in JSON: see `json_records`.

A record that no schema of the registry fits becomes a dead letter. If the registry can't be reached, the batch fails
and is run again, because no record is at fault.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.operators.json_records import FieldType, Refused, parse_documents
from processor.rows import VALUE, DeadLetterReason
from statehouse.serde_plugins import SerdeOptions, Serdes
from statehouse.serdes import DocumentSerde, FetchNeeded

_DECODED: Final = "_decoded"
_TYPE: Final = pa.struct([("document", pa.string()), ("fault", pa.string())])
_FAULT_LENGTH_MAX: Final = 300


def parse_avro(
    frame: DataFrame,
    fields: Mapping[str, FieldType],
    *,
    registry: SerdeOptions,
    optional: Mapping[str, FieldType] | None = None,
) -> DataFrame:
    """Read `value` as an Avro record; add a column for each field, and `reason` and `detail`. Refuse null values.

    `registry` is the application's (`app.registry`). Executors read it, so they need the extra `registry`. Bytes are
    text in base64, times text in ISO 8601, decimals text. An `optional` field may be absent or null.

    Raises:
        ValueError: the name of a field has a quote or a backslash.

    """
    return _parse(frame, "avro", fields, registry, optional or {})


def parse_protobuf(
    frame: DataFrame,
    fields: Mapping[str, FieldType],
    *,
    registry: SerdeOptions,
    optional: Mapping[str, FieldType] | None = None,
) -> DataFrame:
    """Read `value` as a Protobuf message; the rest as in `parse_avro`. Enums are text.

    Raises:
        ValueError: the name of a field has a quote or a backslash.

    """
    return _parse(frame, "protobuf", fields, registry, optional or {})


def _parse(
    frame: DataFrame,
    serde: str,
    fields: Mapping[str, FieldType],
    registry: SerdeOptions,
    optional: Mapping[str, FieldType],
) -> DataFrame:
    def decode(values: pa.Array) -> pa.Array:
        return pa.array([_decoded(serde, registry, value) for value in values.to_pylist()], type=_TYPE)

    udf = F.arrow_udf(decode, "document string, fault string")
    decoded = frame.withColumn(_DECODED, udf(F.col(VALUE)))
    fault = F.col(f"{_DECODED}.fault")
    refusals: list[Refused] = [
        (F.col(VALUE).isNull(), DeadLetterReason.NULL_VALUE, "the record has no value"),
        (fault.isNotNull(), DeadLetterReason.NOT_DECODABLE, fault),
    ]
    parsed = parse_documents(decoded, F.col(f"{_DECODED}.document"), fields, refusals, optional=optional)
    return parsed.drop(_DECODED)


def _decoded(name: str, registry: SerdeOptions, value: bytes | None) -> dict[str, str | None] | None:
    """Return a value as JSON, or why it has none. It runs in a task and may block.

    Raises:
        SerdeUnavailable: the registry can't be reached.

    """
    if value is None:
        return None
    serde = _serdes(registry)(name)
    if not isinstance(serde, DocumentSerde):
        serde.value(value)  # says what is missing here
        raise TypeError(f"the serde {name!r} makes no documents")
    while True:
        try:
            return {"document": json.dumps(serde.document(value), ensure_ascii=False), "fault": None}
        except FetchNeeded as needed:
            needed.fetch()
        except ValueError as error:
            return {"document": None, "fault": str(error)[:_FAULT_LENGTH_MAX]}


@cache
def _serdes(registry: SerdeOptions) -> Serdes:
    """Return the serdes of this Python process, which keep the schemas they know."""
    return Serdes(registry)
