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
from enum import Enum
from functools import reduce
from operator import and_
from typing import Final

import pyspark
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.operators.refusals import RefusalCase, judged
from processor.rows import DELETED, KEY, TABLE_KEY, VALUE, DeadLetterReason
from processor.spark.versions import Feature, ensure_has
from statehouse.errors import ConfigurationError


class FieldType(Enum):
    """The required type of a field: its type in Spark, and its name in messages."""

    INTEGER = ("bigint", "an integer of 64 bits")
    NUMBER = ("double", "a finite number")
    TEXT = ("string", "a string")

    def __init__(self, spark_type: str, words: str) -> None:
        self.spark_type = spark_type
        self.words = words


_DOCUMENT: Final = "_document"
_PARSER: Final = {"allowNonNumericNumbers": "true", "allowSingleQuotes": "false"}
_NULL: Final = "VOID"  # the name that schema_of_variant has for null
_TYPE_LENGTH_MAX: Final = 80
_INT64_LIMIT: Final = float(2**63)


def parse_json(
    frame: DataFrame, fields: Mapping[str, FieldType], *, optional: Mapping[str, FieldType] | None = None
) -> DataFrame:
    """Read `value` as a JSON object; add a column for each field, and `reason` and `detail`. Refuse null values.

    An `optional` field may be absent or null; its column is then null.

    Raises:
        ValueError: the name of a field has a quote or a backslash.

    """
    refusals: list[RefusalCase] = [(F.col(VALUE).isNull(), DeadLetterReason.NULL_VALUE, "the record has no value")]
    return parse_documents(frame, F.col(VALUE).cast("string"), fields, refusals, optional=optional)


def parse_json_table(
    frame: DataFrame,
    fields: Mapping[str, FieldType],
    *,
    optional: Mapping[str, FieldType] | None = None,
    key_type: FieldType = FieldType.TEXT,
) -> DataFrame:
    """Read the records of a table: as `parse_json`, but a null value deletes the row, and the key is read too.

    Adds `table_key` (text; an INTEGER key in its canonical form, so that 6 finds "6.0") and `deleted`.

    Raises:
        ValueError: the name of a field has a quote or a backslash.

    """
    return parse_table_documents(
        frame, F.col(VALUE).cast("string"), fields, key=F.col(KEY).cast("string"), optional=optional, key_type=key_type
    )


def parse_table_documents(
    frame: DataFrame,
    text: Column,
    fields: Mapping[str, FieldType],
    refusals: Sequence[RefusalCase] = (),
    *,
    key: Column,
    key_field: str | None = None,
    key_type: FieldType = FieldType.TEXT,
    optional: Mapping[str, FieldType] | None = None,
) -> DataFrame:
    """Read a table's records from a column of JSON text. `key`: the text of the key, JSON if it has a `key_field`.

    Raises:
        ValueError: the name of a field has a quote or a backslash.

    """
    if key_field is None and key_type is FieldType.TEXT:
        table_key = F.when(F.is_valid_utf8(key), key)
    else:
        path = "$[0]" if key_field is None else _path(key_field)
        frame = _with_values(_with_document(frame, key), {TABLE_KEY: (path, key_type)})
        table_key = F.col(TABLE_KEY).cast("string")
    keyed = frame.withColumn(TABLE_KEY, table_key).drop(_DOCUMENT, f"_type_{TABLE_KEY}")
    what = "the key" if key_field is None else f"the key's field {key_field!r}"
    checks: list[RefusalCase] = [
        (F.col(KEY).isNull(), DeadLetterReason.NULL_KEY, "a table's record needs a key"),
        *refusals,
        (F.col(TABLE_KEY).isNull(), DeadLetterReason.WRONG_TYPE, f"{what} is not {key_type.words}"),
    ]
    parsed = parse_documents(keyed, text, fields, checks, optional=optional, deletes=True)
    return parsed.withColumn(DELETED, F.col(VALUE).isNull())


def parse_documents(
    frame: DataFrame,
    text: Column,
    fields: Mapping[str, FieldType],
    refusals: Sequence[RefusalCase],
    *,
    optional: Mapping[str, FieldType] | None,
    deletes: bool = False,
) -> DataFrame:
    """Read a column of JSON text; `refusals` are checked before what the text says.

    Raises:
        ValueError: the name of a field has a quote or a backslash.

    """
    optional = optional or {}
    _check_types({**fields, **optional})
    document = F.col(_DOCUMENT)
    read = _with_document(frame, text)
    every = {**fields, **optional}
    typed = _with_values(read, {name: (_path(name), kind) for name, kind in every.items()})
    # Most records are sound and skip all other checks: the type of the root alone costs as much as several fields.
    is_sound = reduce(and_, (F.col(name).isNotNull() for name in fields), F.lit(bool(fields)))
    is_sound = reduce(and_, (F.col(name).isNotNull() | F.col(f"_type_{name}").isNull() for name in optional), is_sound)
    nothing = F.lit(None).cast("string")
    content = ~F.col(VALUE).isNull() if deletes else F.lit(True)
    root = F.schema_of_variant(_at(document, "$[0]", "variant"))
    no_object = _detail("the value is ", root, ", expected an object")
    checks: list[RefusalCase] = [
        *refusals,
        (is_sound, nothing, nothing),
        (content & document.isNull(), DeadLetterReason.NOT_JSON, "the value is not a JSON document"),
        (content & ~root.startswith("OBJECT"), DeadLetterReason.WRONG_TYPE, no_object),
    ]
    for name, kind in every.items():
        found = F.col(f"_type_{name}")
        wrong = _detail(f"field {name!r} is ", found, f", expected {kind.words}")
        is_there = content
        if name in optional:
            is_there &= F.coalesce(found, F.lit(_NULL)) != _NULL
        else:
            checks.append((content & found.isNull(), DeadLetterReason.MISSING_FIELD, f"field {name!r} is missing"))
        checks.append((is_there & F.col(name).isNull(), DeadLetterReason.WRONG_TYPE, wrong))
    return judged(typed, checks).drop(_DOCUMENT, *(f"_type_{name}" for name in every))


def _check_types(fields: Mapping[str, object]) -> None:
    for name, kind in fields.items():
        if not isinstance(kind, FieldType):
            known = ", ".join(map(str, FieldType))
            raise ConfigurationError(f"field {name!r} has the type {kind!r}: give it one of {known}")


def _with_document(frame: DataFrame, text: Column) -> DataFrame:
    """Add the variant [document, null], or null if the text isn't exactly one JSON document.

    Spark's parser stops at the end of the first document. With a null after it, text that follows the document makes
    a different list.
    """
    ensure_has(pyspark.__version__, Feature.PARSERS)
    wrapped = F.concat(F.lit('{"v":['), text, F.lit(",null]}"))
    parsed = frame.withColumn(_DOCUMENT, F.from_json(wrapped, "v variant", _PARSER)["v"])
    document = F.col(_DOCUMENT)
    whole = F.is_variant_null(_at(document, "$[1]", "variant")) & _at(document, "$[2]", "variant").isNull()
    return parsed.withColumn(_DOCUMENT, F.when(F.is_valid_utf8(text) & whole, document))


def _with_values(frame: DataFrame, wanted: Mapping[str, tuple[str, FieldType]]) -> DataFrame:
    """Add for each name the value at its path, null if it has the wrong type, and its actual type as `_type_<name>`.

    One projection per step, so that a column that is used several times is computed, planned and compiled once.
    """
    found = {f"_value_{name}": _at(F.col(_DOCUMENT), path, "variant") for name, (path, _) in wanted.items()}
    types = {f"_type_{name}": F.schema_of_variant(f"_value_{name}") for name in wanted}
    values = {name: _typed(name, kind) for name, (_, kind) in wanted.items()}
    return frame.withColumns(found).withColumns(types).withColumns(values).drop(*found)


def _typed(name: str, kind: FieldType) -> Column:
    """Return the value if it has this type, else null."""
    value, found = F.col(f"_value_{name}"), F.col(f"_type_{name}")
    if kind is FieldType.TEXT:
        return F.when(found == "STRING", _at(value, "$", "string"))
    # Reading a number from a variant makes a new cast for each record; reading its text costs a fraction of that.
    text, double = F.to_json(value), _at(value, "$", "double")
    is_float, is_decimal = found.isin("DOUBLE", "FLOAT"), found.startswith("DECIMAL")
    if kind is FieldType.NUMBER:
        exact = F.when((found == "BIGINT") | is_decimal, text.try_cast("double"))
        finite = exact.when(is_float & (F.abs(double) < float("inf")), double)  # NaN is larger than any number here
        return finite + F.lit(0.0)  # turns -0.0 into 0.0, so that equal numbers have equal text
    # schema_of_variant gives a decimal without its trailing zeros: scale 0 is an integer.
    is_whole = is_decimal & found.rlike(r",0\)$")
    is_integral = is_float & (double == F.floor(double)) & (F.abs(double) < _INT64_LIMIT)
    return F.when(found == "BIGINT", text.try_cast("bigint")).when(is_whole | is_integral, _at(value, "$", "bigint"))


def _at(document: Column, path: str, spark_type: str) -> Column:
    return F.try_variant_get(document, path, spark_type)


def _path(name: str) -> str:
    if "'" in name or "\\" in name:
        raise ValueError(f"field {name!r}: a field's name can't hold a quote or a backslash")
    return f"$[0]['{name}']"


def _detail(before: str, found: Column, after: str) -> Column:
    return F.concat(F.lit(before), F.substring(found, 1, _TYPE_LENGTH_MAX), F.lit(after))
