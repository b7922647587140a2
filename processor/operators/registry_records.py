"""Parses Avro and Protobuf records, in the wire format of a schema registry, into typed columns as `parse_json` does.

A Python function decodes each record by the schema that it was written with, into the JSON that nodes show of such
values. Its fields are malformed where they would be in JSON: see `json_records`.

A record that no schema of the registry fits becomes a dead letter. If the registry can't be reached, the batch fails
and is run again, because no record is at fault.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Final

import pyarrow as pa
import pyspark
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.operators.fields.types import Field, FieldType
from processor.operators.json_records import parse_documents, parse_table_documents
from processor.operators.refusals import RefusalCase, require
from processor.rows import KEY, VALUE, DeadLetterReason
from processor.spark.versions import Feature, ensure_has
from statehouse.serdes import DocumentSerde, FetchNeeded
from statehouse.serdes.plugins import SerdeOptions, Serdes

DECODED: Final = "_decoded_"
_TYPE: Final = pa.struct([("document", pa.string()), ("fault", pa.string())])
_FAULT_LENGTH_MAX: Final = 300


def parse_avro(
    frame: DataFrame,
    fields: Mapping[str, Field],
    *,
    registry: SerdeOptions,
    optional: Mapping[str, Field] | None = None,
) -> DataFrame:
    """Read `value` as an Avro record; add a column for each field, and `reason` and `detail`. Refuse null values.

    `registry` is the application's (`app.registry`). Executors read it, so they need the extra `registry`. Bytes are
    text in base64, times text in ISO 8601, decimals text. An `optional` field may be absent or null.

    Raises:
        ConfigurationError: the frame has no `value`.
        ValueError: the name of a field has a quote or a backslash.

    """
    return _parse(frame, "avro", fields, registry, optional)


def parse_protobuf(
    frame: DataFrame,
    fields: Mapping[str, Field],
    *,
    registry: SerdeOptions,
    optional: Mapping[str, Field] | None = None,
) -> DataFrame:
    """Read `value` as a Protobuf message; the rest as in `parse_avro`. Enums are text.

    Raises:
        ConfigurationError: the frame has no `value`.
        ValueError: the name of a field has a quote or a backslash.

    """
    return _parse(frame, "protobuf", fields, registry, optional)


def parse_avro_table(
    frame: DataFrame,
    fields: Mapping[str, Field],
    *,
    registry: SerdeOptions,
    optional: Mapping[str, Field] | None = None,
    key_type: FieldType = FieldType.TEXT,
    key_field: str | None = None,
) -> DataFrame:
    """Read the records of a table: as `parse_avro`, but a null value deletes the row, and the key is read too.

    Adds `table_key` and `deleted` as `parse_json_table` does. The key is text or a number in text; with `key_field` it
    is an Avro record, too, and `table_key` is this field of it.

    Raises:
        ConfigurationError: the frame has no `key` or no `value`.
        ValueError: the name of a field has a quote or a backslash.

    """
    return _parse_table(frame, "avro", fields, registry, optional, key_type, key_field)


def parse_protobuf_table(
    frame: DataFrame,
    fields: Mapping[str, Field],
    *,
    registry: SerdeOptions,
    optional: Mapping[str, Field] | None = None,
    key_type: FieldType = FieldType.TEXT,
    key_field: str | None = None,
) -> DataFrame:
    """Read the records of a table whose values, and with `key_field` whose keys, are Protobuf: see `parse_avro_table`.

    Raises:
        ConfigurationError: the frame has no `key` or no `value`.
        ValueError: the name of a field has a quote or a backslash.

    """
    return _parse_table(frame, "protobuf", fields, registry, optional, key_type, key_field)


def _parse(
    frame: DataFrame,
    serde: str,
    fields: Mapping[str, Field],
    registry: SerdeOptions,
    optional: Mapping[str, Field] | None,
) -> DataFrame:
    require(frame, VALUE)
    decoded, fault = with_decoded(frame, serde, registry, VALUE)
    refusals: list[RefusalCase] = [
        (F.col(VALUE).isNull(), DeadLetterReason.NULL_VALUE, "the record has no value"),
        fault,
    ]
    parsed = parse_documents(decoded, document_of(VALUE), fields, refusals, optional=optional)
    return parsed.drop(DECODED + VALUE)


def _parse_table(
    frame: DataFrame,
    serde: str,
    fields: Mapping[str, Field],
    registry: SerdeOptions,
    optional: Mapping[str, Field] | None,
    key_type: FieldType,
    key_field: str | None,
) -> DataFrame:
    require(frame, KEY, VALUE)
    frame, fault = with_decoded(frame, serde, registry, VALUE)
    refusals, key = [fault], F.col(KEY).cast("string")
    if key_field is not None:
        frame, fault = with_decoded(frame, serde, registry, KEY)
        refusals.append(fault)
        key = document_of(KEY)
    parsed = parse_table_documents(
        frame, document_of(VALUE), fields, refusals, key=key, key_field=key_field, key_type=key_type, optional=optional
    )
    return parsed.drop(DECODED + VALUE, DECODED + KEY)


def with_decoded(frame: DataFrame, serde: str, registry: SerdeOptions, column: str) -> tuple[DataFrame, RefusalCase]:
    """Add a column's documents, and say when a record is refused because it has none."""

    def decode(values: pa.Array) -> pa.Array:
        return pa.array([_decoded(serde, registry, value) for value in values.to_pylist()], type=_TYPE)

    ensure_has(pyspark.__version__, Feature.ARROW_FUNCTIONS)
    udf = F.arrow_udf(decode, "document string, fault string")
    fault = F.col(f"{DECODED}{column}.fault")
    detail = fault if column == VALUE else F.concat(F.lit(f"the {column}: "), fault)
    refused = (fault.isNotNull(), DeadLetterReason.NOT_DECODABLE, detail)
    return frame.withColumn(DECODED + column, udf(F.col(column))), refused


def document_of(column: str) -> Column:
    """Return the JSON text of a column's documents."""
    return F.col(f"{DECODED}{column}.document")


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
        except (ValueError, RecursionError) as error:  # the latter if it is nested too deep
            return {"document": None, "fault": str(error)[:_FAULT_LENGTH_MAX]}


@cache
def _serdes(registry: SerdeOptions) -> Serdes:
    """Return the serdes of this Python process, which keep the schemas they know."""
    return Serdes(registry)
