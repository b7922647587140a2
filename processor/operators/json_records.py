"""Parses JSON records into typed columns, or refuses them with a reason; native Spark, no Python per row.

Why variants: `from_json` with a schema silently turns a string into a number, and a missing field into null. A variant
keeps the type of each value, so that a refusal can name the wrong type.

What counts as malformed:
- not JSON (RFC 8259): also text after the document, bytes that are not UTF-8, and an object that names a field
  twice. A document with NaN or Infinity, which many writers emit, is read; a field with such a number has the wrong
  type.
- a number field takes JSON numbers only: 6, 6.0 and 6e0 are the same integer, 6.5 is not an integer; an integer must
  fit 64 bits.
- a null has the wrong type, unless the field is optional; an absent field is missing. Further fields are ignored.

Limits: Spark's own for variants (16 MiB a record, 1000 levels); beyond them a record is not JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Final

import pyspark
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.operators.fields.types import Field, FieldType, check_types
from processor.operators.fields.values import VOID, at, step, typed
from processor.operators.refusals import RefusalCase, judged, require
from processor.rows import DELETED, KEY, TABLE_KEY, VALUE, DeadLetterReason, quoted
from processor.spark.versions import Feature, ensure_has

__all__ = (
    "DOCUMENT",
    "FieldType",
    "described",
    "parse_documents",
    "parse_json",
    "parse_json_table",
    "parse_table_documents",
    "with_document",
    "with_values",
)

DOCUMENT: Final = "_document"
"""The column with the variant that `with_values` reads."""
_PARSER: Final = {"allowNonNumericNumbers": "true", "allowSingleQuotes": "false"}
_TYPE_LENGTH_MAX: Final = 80


def parse_json(
    frame: DataFrame, fields: Mapping[str, Field], *, optional: Mapping[str, Field] | None = None
) -> DataFrame:
    """Read `value` as a JSON object; add a column for each field, and `reason` and `detail`. Refuse null values.

    An `optional` field may be absent or null; its column is then null.

    Raises:
        ConfigurationError: the frame has no `value`.
        ValueError: the name of a field has a quote or a backslash.

    """
    require(frame, VALUE)
    refusals: list[RefusalCase] = [(F.col(VALUE).isNull(), DeadLetterReason.NULL_VALUE, "the record has no value")]
    return parse_documents(frame, F.col(VALUE).cast("string"), fields, refusals, optional=optional)


def parse_json_table(
    frame: DataFrame,
    fields: Mapping[str, Field],
    *,
    optional: Mapping[str, Field] | None = None,
    key_type: FieldType = FieldType.TEXT,
) -> DataFrame:
    """Read the records of a table: as `parse_json`, but a null value deletes the row, and the key is read too.

    Adds `table_key` (text; an INTEGER key in its canonical form, so that 6 finds "6.0") and `deleted`.

    Raises:
        ConfigurationError: the frame has no `key` or no `value`.
        ValueError: the name of a field has a quote or a backslash.

    """
    require(frame, KEY, VALUE)
    return parse_table_documents(
        frame, F.col(VALUE).cast("string"), fields, key=F.col(KEY).cast("string"), optional=optional, key_type=key_type
    )


def parse_table_documents(
    frame: DataFrame,
    text: Column,
    fields: Mapping[str, Field],
    refusals: Sequence[RefusalCase] = (),
    *,
    key: Column,
    key_field: str | None = None,
    key_type: FieldType = FieldType.TEXT,
    optional: Mapping[str, Field] | None = None,
) -> DataFrame:
    """Read a table's records from a column of JSON text. `key`: the text of the key, JSON if it has a `key_field`.

    Raises:
        ValueError: the name of a field has a quote or a backslash.

    """
    if key_field is None and key_type is FieldType.TEXT:
        table_key = F.when(F.is_valid_utf8(key), key)
    else:
        path = "$[0]" if key_field is None else f"$[0]{step(key_field)}"
        frame = with_values(with_document(frame, key), {TABLE_KEY: (path, key_type)})
        table_key = F.col(TABLE_KEY).cast("string")
    keyed = frame.withColumn(TABLE_KEY, table_key).drop(DOCUMENT, f"_type_{TABLE_KEY}")
    what = "the key" if key_field is None else f"the key's field {key_field!r}"
    checks: list[RefusalCase] = [
        (F.col(KEY).isNull(), DeadLetterReason.NULL_KEY, "a table's record needs a key"),
        *refusals,
        (F.col(TABLE_KEY).isNull(), DeadLetterReason.WRONG_TYPE, f"{what} is not {key_type.words}"),
    ]
    parsed = parse_documents(keyed, text, fields, checks, optional=optional, deleted=F.col(VALUE).isNull())
    return parsed.withColumn(DELETED, F.col(VALUE).isNull())


def parse_documents(
    frame: DataFrame,
    text: Column,
    fields: Mapping[str, Field],
    refusals: Sequence[RefusalCase],
    *,
    optional: Mapping[str, Field] | None,
    deleted: Column | None = None,
) -> DataFrame:
    """Read a column of JSON text; `refusals` are checked before what the text says. A `deleted` row needs no text.

    Raises:
        ValueError: the name of a field has a quote or a backslash.

    """
    optional = optional or {}
    check_types({**fields, **optional})
    document = F.col(DOCUMENT)
    read = with_document(frame, text)
    every = {**fields, **optional}
    values = with_values(read, {name: (f"$[0]{step(name)}", kind) for name, kind in every.items()})
    # Most records are sound and skip all other checks: the type of the root alone costs as much as several fields.
    is_sound = reduce(and_, (_column(name).isNotNull() for name in fields), F.lit(bool(fields)))
    is_sound = reduce(
        and_, (_column(name).isNotNull() | _column(f"_type_{name}").isNull() for name in optional), is_sound
    )
    nothing = F.lit(None).cast("string")
    content = F.lit(True) if deleted is None else ~deleted
    root = F.schema_of_variant(at(document, "$[0]", "variant"))
    no_object = described("the value is ", root, ", expected an object")
    checks: list[RefusalCase] = [
        *refusals,
        (is_sound, nothing, nothing),
        (content & document.isNull(), DeadLetterReason.NOT_JSON, "the value is not a JSON document"),
        (content & ~root.startswith("OBJECT"), DeadLetterReason.WRONG_TYPE, no_object),
    ]
    for name, kind in every.items():
        found = _column(f"_type_{name}")
        wrong = described(f"field {name!r} is ", found, f", expected {kind.words}")
        is_there = content
        if name in optional:
            is_there &= F.coalesce(found, F.lit(VOID)) != VOID
        else:
            checks.append((content & found.isNull(), DeadLetterReason.MISSING_FIELD, f"field {name!r} is missing"))
        checks.append((is_there & _column(name).isNull(), DeadLetterReason.WRONG_TYPE, wrong))
    return judged(values, checks).drop(DOCUMENT, *(f"_type_{name}" for name in every))


def with_document(frame: DataFrame, text: Column) -> DataFrame:
    """Add the variant [document, null], or null if the text isn't exactly one JSON document.

    Spark's parser stops at the end of the first document. With a null after it, text that follows the document makes
    a different list.
    """
    ensure_has(pyspark.__version__, Feature.PARSERS)
    wrapped = F.concat(F.lit('{"v":['), text, F.lit(",null]}"))
    parsed = frame.withColumn(DOCUMENT, F.from_json(wrapped, "v variant", _PARSER)["v"])
    document = F.col(DOCUMENT)
    whole = F.is_variant_null(at(document, "$[1]", "variant")) & at(document, "$[2]", "variant").isNull()
    return parsed.withColumn(DOCUMENT, F.when(F.is_valid_utf8(text) & whole, document))


def with_values(frame: DataFrame, wanted: Mapping[str, tuple[str, Field]]) -> DataFrame:
    """Add for each name the value at its path, null if it has the wrong type, and its actual type as `_type_<name>`.

    One projection per step, so that a column that is used several times is computed, planned and compiled once.
    """
    found = {f"_value_{name}": at(F.col(DOCUMENT), path, "variant") for name, (path, _) in wanted.items()}
    types = {f"_type_{name}": F.schema_of_variant(_column(f"_value_{name}")) for name in wanted}
    values = {
        name: typed(_column(f"_value_{name}"), _column(f"_type_{name}"), kind) for name, (_, kind) in wanted.items()
    }
    return frame.withColumns(found).withColumns(types).withColumns(values).drop(*found)


def _column(name: str) -> Column:
    return F.col(quoted(name))


def described(before: str, found: Column, after: str) -> Column:
    """Return a detail that names a type, which may be long."""
    return F.concat(F.lit(before), F.substring(found, 1, _TYPE_LENGTH_MAX), F.lit(after))
