"""JSON records into typed columns, with a verdict on each record; all of it native Spark, no Python per row.

Why variants: `from_json` with a schema turns a string into a number and a missing field into a null without a
word. A variant keeps each value's own type, so that a wrong one can be told and named.

What counts as malformed:
- not JSON (RFC 8259): also text after the document, bytes that are not UTF-8, and an object that names a field
  twice. Of the non-finite numbers that many writers emit (NaN, Infinity) the document is read, and the field
  that holds one is of the wrong type.
- a number's place takes JSON numbers only: 6, 6.0 and 6e0 are one integer, 6.5 is none; an integer must fit 64 bits.
- null in a field's place is of the wrong type, unless the field is optional; a field that isn't there is missing.
  Further fields are ignored.

Limits: Spark's own for variants (16 MiB a record, 1000 levels); beyond them a record is not JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.operators.verdicts import first_case
from processor.rows import DELETED, DETAIL, KEY, REASON, TABLE_KEY, VALUE, DeadLetterReason


class FieldType(Enum):
    """What a field must hold: the Spark type it becomes, and its name in messages."""

    INTEGER = ("bigint", "an integer of 64 bits")
    NUMBER = ("double", "a finite number")
    TEXT = ("string", "a string")

    def __init__(self, spark_type: str, words: str) -> None:
        self.spark_type = spark_type
        self.words = words


# Spark's parser stops at the end of the first document. Put in front of this marker, a document with anything behind
# it leaves another list than [document, marker].
_MARKER: Final = "end"
_DOCUMENT: Final = "_document"
_PARSER: Final = {"allowNonNumericNumbers": "true", "allowSingleQuotes": "false"}
_NULL: Final = "VOID"  # as schema_of_variant calls null
_TYPE_LENGTH_MAX: Final = 80
_INT64_LIMIT: Final = float(2**63)


def parse_json(
    frame: DataFrame, fields: Mapping[str, FieldType], *, optional: Mapping[str, FieldType] | None = None
) -> DataFrame:
    """Read `value` as a JSON object; add a column for each field, `reason` and `detail`. Null values are refused.

    An `optional` field may be absent or null; its column is null then.
    """
    refusals = [(F.col(VALUE).isNull(), DeadLetterReason.NULL_VALUE, "the record has no value")]
    return _parse(frame, fields, refusals, optional=optional or {})


def parse_json_table(
    frame: DataFrame, fields: Mapping[str, FieldType], *, key_type: FieldType = FieldType.TEXT
) -> DataFrame:
    """Read a table's records: as `parse_json`, but a null value deletes, and the record's key is read too.

    Adds `table_key` (text; of an INTEGER key its canonical form, so that "6.0" is found by 6) and `deleted`.
    """
    key_text = F.col(KEY).cast("string")
    if key_type is FieldType.TEXT:
        table_key = F.when(F.is_valid_utf8(key_text), key_text)
    else:
        frame = _with_values(_with_document(frame, key_text), {TABLE_KEY: ("$[0]", key_type)})
        table_key = F.col(TABLE_KEY).cast("string")
    keyed = frame.withColumn(TABLE_KEY, table_key).drop(_DOCUMENT, f"_type_{TABLE_KEY}")
    refusals = [
        (F.col(KEY).isNull(), DeadLetterReason.NULL_KEY, "a table's record needs a key"),
        (F.col(TABLE_KEY).isNull(), DeadLetterReason.WRONG_TYPE, f"the key is not {key_type.words}"),
    ]
    parsed = _parse(keyed, fields, refusals, deletes=True)
    return parsed.withColumn(DELETED, F.col(VALUE).isNull())


def _parse(
    frame: DataFrame,
    fields: Mapping[str, FieldType],
    refusals: Sequence[tuple[Column, DeadLetterReason, str]],
    *,
    optional: Mapping[str, FieldType] = MappingProxyType({}),
    deletes: bool = False,
) -> DataFrame:
    document = F.col(_DOCUMENT)
    read = _with_document(frame, F.col(VALUE).cast("string"))
    every = {**fields, **optional}
    typed = _with_values(read, {name: (_path(name), kind) for name, kind in every.items()})
    typed = typed.withColumn("_type", F.schema_of_variant(_at(document, "$[0]", "variant")))
    checks: list[tuple[Column, DeadLetterReason, Column]] = [
        (when, reason, F.lit(detail)) for when, reason, detail in refusals
    ]
    content = ~F.col(VALUE).isNull() if deletes else F.lit(True)
    checks.append((content & document.isNull(), DeadLetterReason.NOT_JSON, F.lit("the value is not a JSON document")))
    root = F.col("_type")
    no_object = content & ~root.startswith("OBJECT")
    checks.append((no_object, DeadLetterReason.WRONG_TYPE, _detail("the value is ", root, ", expected an object")))
    for name, kind in every.items():
        found = F.col(f"_type_{name}")
        missing = F.lit(f"field {name!r} is missing")
        wrong = _detail(f"field {name!r} is ", found, f", expected {kind.words}")
        is_there = content
        if name in optional:
            is_there &= F.coalesce(found, F.lit(_NULL)) != _NULL
        else:
            checks.append((content & found.isNull(), DeadLetterReason.MISSING_FIELD, missing))
        checks.append((is_there & F.col(name).isNull(), DeadLetterReason.WRONG_TYPE, wrong))
    judged = typed.withColumns(
        {
            REASON: first_case([(when, F.lit(reason.value)) for when, reason, _ in checks]),
            DETAIL: first_case([(when, detail) for when, _, detail in checks]),
        }
    )
    return judged.drop(_DOCUMENT, "_type", *(f"_type_{name}" for name in every))


def _with_document(frame: DataFrame, text: Column) -> DataFrame:
    """Add the variant [document, marker], null for what is not one JSON document."""
    wrapped = F.concat(F.lit('{"v":['), text, F.lit(f',"{_MARKER}"]}}'))
    parsed = frame.withColumn(_DOCUMENT, F.from_json(wrapped, "v variant", _PARSER)["v"])
    document = F.col(_DOCUMENT)
    whole = (_at(document, "$[1]", "string") == _MARKER) & _at(document, "$[2]", "variant").isNull()
    return parsed.withColumn(_DOCUMENT, F.when(F.is_valid_utf8(text) & whole, document))


def _with_values(frame: DataFrame, wanted: Mapping[str, tuple[str, FieldType]]) -> DataFrame:
    """Add for each name the document's value at its path, null if it isn't of its kind, and `_type_<name>`, what it is.

    A projection a step: columns that are used several times must not be computed, planned or compiled as often.
    """
    document = F.col(_DOCUMENT)
    found: dict[str, Column] = {}
    for name, (path, kind) in wanted.items():
        found[f"_type_{name}"] = F.schema_of_variant(_at(document, path, "variant"))
        if kind is not FieldType.TEXT:
            found[f"_double_{name}"] = _at(document, path, "double")
    values = {name: _typed(name, path, kind) for name, (path, kind) in wanted.items()}
    return frame.withColumns(found).withColumns(values).drop(*(f"_double_{name}" for name in wanted))


def _typed(name: str, path: str, kind: FieldType) -> Column:
    """Return the value at `path` if it is of this kind, else null."""
    document, found, double = F.col(_DOCUMENT), F.col(f"_type_{name}"), F.col(f"_double_{name}")
    if kind is FieldType.TEXT:
        return F.when(found == "STRING", _at(document, path, "string"))
    is_float = found.isin("DOUBLE", "FLOAT")
    finite = F.abs(double) < float("inf")  # NaN is larger than any number here
    if kind is FieldType.NUMBER:
        # Adding zero turns -0.0 into 0.0: a number must not print in two ways.
        return F.when(((found == "BIGINT") | found.startswith("DECIMAL") | is_float) & finite, double + F.lit(0.0))
    # schema_of_variant gives a decimal without its trailing zeros: scale 0 is an integer.
    exact = (found == "BIGINT") | found.rlike(r"^DECIMAL\(\d+,0\)$")
    integral = is_float & (double == F.floor(double)) & (F.abs(double) < _INT64_LIMIT)
    return F.when(exact | integral, _at(document, path, "bigint"))


def _at(document: Column, path: str, spark_type: str) -> Column:
    return F.try_variant_get(document, path, spark_type)


def _path(name: str) -> str:
    if "'" in name or "\\" in name:
        raise ValueError(f"field {name!r}: a field's name can't hold a quote or a backslash")
    return f"$[0]['{name}']"


def _detail(before: str, found: Column, after: str) -> Column:
    return F.concat(F.lit(before), F.substring(found, 1, _TYPE_LENGTH_MAX), F.lit(after))
