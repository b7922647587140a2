"""Reads the values of fields from JSON, as the types that they must have; native Spark.

A value is a variant, which keeps the type that its text has. So a string is never taken for a number. JSON has no
times and dates: they are texts of one form.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.operators.fields.types import Decimal, Field, FieldType, ListOf, Nested

VOID: Final = "VOID"
"""The name that schema_of_variant has for null."""
_INT64_LIMIT: Final = float(2**63)
_NUMBERS: Final = (FieldType.INTEGER, FieldType.NUMBER)
_DATE: Final = r"^\d{4}-\d{2}-\d{2}$"
# Spark's own cast accepts text that we refuse: "2026", "2026-1-2", blanks around a time.
_DATE_TIME: Final = r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?"
_ZONE: Final = r"(Z|[+-]\d{2}:\d{2})"


def at(document: Column, path: str, spark_type: str) -> Column:
    """Return what stands at a path of a variant; null if nothing does, or it can't be of this type."""
    return F.try_variant_get(document, path, spark_type)


def step(name: str) -> str:
    """Return the step of a path to a field of an object.

    Raises:
        ValueError: its name has a quote or a backslash.

    """
    if "'" in name or "\\" in name:
        raise ValueError(f"field {name!r}: a field's name can't hold a quote or a backslash")
    return f"['{name}']"


def typed(value: Column, found: Column, kind: Field) -> Column:
    """Return a variant's value if it has this type, else null. `found`: what schema_of_variant says of it."""
    if isinstance(kind, Nested):
        return _struct(value, found, kind)
    if isinstance(kind, ListOf):
        return _list(value, found, kind)
    if isinstance(kind, Decimal):
        return _decimal(value, found, kind)
    if kind is FieldType.BOOLEAN:
        return F.when(found == "BOOLEAN", at(value, "$", "boolean"))
    if kind in _NUMBERS:
        return _number(value, found, kind)
    return _of_text(F.when(found == "STRING", at(value, "$", "string")), kind)


def iso_time(text: Column) -> Column:
    """Return the time that an ISO 8601 text of our form says; null if it has another form, or is no time."""
    zoned = F.when(text.rlike(f"^{_DATE_TIME}$"), F.concat(text, F.lit("Z")))
    return zoned.when(text.rlike(f"^{_DATE_TIME}{_ZONE}$"), text).try_cast("timestamp")


def _number(value: Column, found: Column, kind: Field) -> Column:
    # Reading a number from a variant makes a new cast for each record; reading its text costs a fraction of that.
    text, double = F.to_json(value), at(value, "$", "double")
    is_float, is_decimal = _is_float(found), found.startswith("DECIMAL")
    if kind is FieldType.NUMBER:
        exact = F.when((found == "BIGINT") | is_decimal, text.try_cast("double"))
        finite = exact.when(is_float & (F.abs(double) < float("inf")), double)  # NaN is larger than any number here
        return finite + F.lit(0.0)  # turns -0.0 into 0.0, so that equal numbers have equal text
    # schema_of_variant gives a decimal without its trailing zeros: scale 0 is an integer.
    is_whole = is_decimal & found.rlike(r",0\)$")
    is_integral = is_float & (double == F.floor(double)) & (F.abs(double) < _INT64_LIMIT)
    return F.when(found == "BIGINT", text.try_cast("bigint")).when(is_whole | is_integral, at(value, "$", "bigint"))


def _of_text(text: Column, kind: Field) -> Column:
    if kind is FieldType.TIMESTAMP:
        return iso_time(text)
    if kind is FieldType.DATE:
        return F.when(text.rlike(_DATE), text.try_cast("date"))
    return text


def _decimal(value: Column, found: Column, kind: Decimal) -> Column:
    number = F.to_json(value).try_cast(kind.spark_type)  # it rounds what has more digits, which is then refused
    scale = F.regexp_extract(found, r",(\d+)\)$", 1).try_cast("int")
    is_exact = (found == "BIGINT") | (scale <= kind.scale)
    return F.when(is_exact, number).when(_is_float(found) & (number.cast("double") == at(value, "$", "double")), number)


def _struct(value: Column, found: Column, kind: Nested) -> Column:
    parts, sound = [], found.startswith("OBJECT")
    for name, inner in {**kind.fields, **kind.optional}.items():
        part = at(value, f"${step(name)}", "variant")
        type_of_part = F.schema_of_variant(part)
        read = typed(part, type_of_part, inner)
        is_absent = F.coalesce(type_of_part, F.lit(VOID)) == VOID if name in kind.optional else F.lit(False)
        sound &= read.isNotNull() | is_absent
        parts.append(read.alias(name))
    return F.when(sound, F.struct(*parts))


def _list(value: Column, found: Column, kind: ListOf) -> Column:
    elements = F.when(found.startswith("ARRAY"), at(value, "$", "array<variant>"))
    read = F.transform(elements, lambda each: typed(each, F.schema_of_variant(each), kind.element))
    return F.when(F.forall(read, lambda each: each.isNotNull()), read)


def _is_float(found: Column) -> Column:
    return found.isin("DOUBLE", "FLOAT")
