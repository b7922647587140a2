r"""Makes text and JSON of Spark's values so that nothing is lost. Spark's own expressions, for any type at any depth.

| type | in JSON |
|---|---|
| integers, booleans | as they are, with all digits |
| float, double | numbers that read back as the same; `"NaN"`, `"Infinity"`, `"-Infinity"` |
| decimal | text with all digits of its scale, never an exponent: `"46.50"` |
| timestamp | text, ISO 8601 in UTC with six digits: `"2026-10-25T01:30:00.123456Z"`; one without a zone has no `Z` |
| date | text: `"2026-10-25"` |
| string | itself; a byte that isn't UTF-8 is `\xHH` |
| binary | text in base64 |
| interval, time | text as Spark's SQL writes it |
| struct, array | an object with all fields; a list |
| map | an object, if keys have a text; else a list of objects with `key` and `value` |

So that `\xHH` has one meaning, a backslash in a text that is followed by `x` and two hexadecimal digits is `\x5C`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from processor.rows import TIME_FORMAT

NESTED: Final = (StructType, ArrayType, MapType)
INTEGRAL: Final = (ByteType, ShortType, IntegerType, LongType)
FRACTIONAL: Final = (FloatType, DoubleType)

_OPTIONS: Final = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": TIME_FORMAT,
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "dateFormat": "yyyy-MM-dd",
}
# What `to_json` writes exactly as it is.
_AS_THEY_ARE: Final = (
    *INTEGRAL,
    *FRACTIONAL,
    BooleanType,
    BinaryType,
    DateType,
    TimestampType,
    TimestampNTZType,
    NullType,
)
_IN_QUOTES: Final = (DateType, TimestampType, TimestampNTZType)
_CHARSET: Final = "ISO-8859-1"
"""Has a character for each byte, so that a regular expression can look at bytes."""
_UTF8_PARTS: Final = (
    r"([\x00-\x7F]+|[\xC2-\xDF][\x80-\xBF]|\xE0[\xA0-\xBF][\x80-\xBF]|[\xE1-\xEC\xEE\xEF][\x80-\xBF]{2}"
    r"|\xED[\x80-\x9F][\x80-\xBF]|\xF0[\x90-\xBF][\x80-\xBF]{2}|[\xF1-\xF3][\x80-\xBF]{3}|\xF4[\x80-\x8F][\x80-\xBF]{2}"
    r"|[\x80-\xFF])"
)
"""Runs of ASCII, the other characters in UTF-8 (RFC 3629, section 4), and single bytes that are in none."""
_LOOKS_ESCAPED: Final = r"\\(?=x[0-9A-Fa-f]{2})"
_EXPONENT_FROM: Final = 7
"""Decimals of a smaller scale are never written with an exponent (java.math.BigDecimal)."""


def json_of(column: Column, kind: DataType) -> Column:
    """Return the JSON of a struct, as text; null for null."""
    return F.to_json(_plain(column, kind), _OPTIONS)


def json_value_of(column: Column, kind: DataType) -> Column:
    """Return the JSON of any value, as text: `null` for null."""
    if isinstance(kind, NESTED):
        return F.coalesce(json_of(column, kind), F.lit("null"))
    # Spark makes JSON of nested values only: {"v":...}
    text = F.to_json(F.struct(_plain(column, kind).alias("v")), _OPTIONS)
    return F.substring(text, F.lit(6), F.length(text) - 6)


def text_of(column: Column, kind: DataType) -> Column:
    """Return a value's text: as in JSON, but without quotes; of nested values their JSON. Null for null."""
    if isinstance(kind, NESTED):
        return json_of(column, kind)
    if isinstance(kind, _IN_QUOTES):
        text = json_value_of(column, kind)
        return F.when(column.isNotNull(), F.substring(text, F.lit(2), F.length(text) - 2))
    if isinstance(kind, BinaryType):
        return F.translate(F.base64(column), "\r\n", "")
    return _plain(column, kind).cast("string")


def unique_names(names: Sequence[str]) -> list[str]:
    """Return the names, those that come again with a number: count, count_2. Spark takes `a` and `A` for one name."""
    made: list[str] = []
    taken: set[str] = set()
    for name in names:
        number, unique = 1, name
        while unique.lower() in taken:
            number += 1
            unique = f"{name}_{number}"
        made.append(unique)
        taken.add(unique.lower())
    return made


def with_unique_names(kind: DataType) -> DataType:
    """Return the type with names of fields that differ within each struct: a cast to it changes nothing else."""
    if isinstance(kind, StructType):
        names = unique_names(kind.names)
        fields = zip(names, kind.fields, strict=True)
        return StructType([StructField(name, with_unique_names(each.dataType), each.nullable) for name, each in fields])
    if isinstance(kind, ArrayType):
        return ArrayType(with_unique_names(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(with_unique_names(kind.keyType), with_unique_names(kind.valueType), kind.valueContainsNull)
    return kind


def _plain(column: Column, kind: DataType) -> Column:
    """Return a column that `to_json` writes exactly."""
    if isinstance(kind, StructType):
        made = [_plain(column.getField(each.name), each.dataType).alias(each.name) for each in kind.fields]
        return F.when(column.isNotNull(), F.struct(*made)) if made else column
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return F.transform(column, lambda each: _plain(each, element))
    if isinstance(kind, MapType):
        return _map(column, kind)
    return _leaf(column, kind)


def _leaf(column: Column, kind: DataType) -> Column:
    if isinstance(kind, StringType):
        return _escaped(column, kind)
    if isinstance(kind, DecimalType):
        return _digits(column, kind)
    if isinstance(kind, _AS_THEY_ARE) or kind.typeName() == "variant":
        return column
    return column.cast("string")


def _map(column: Column, kind: MapType) -> Column:
    has_texts = not isinstance(kind.keyType, (*NESTED, NullType))
    key = text_of if has_texts else _plain
    pairs = F.transform(
        F.map_entries(column),
        lambda each: F.struct(
            key(each.getField("key"), kind.keyType).alias("key"),
            _plain(each.getField("value"), kind.valueType).alias("value"),
        ),
    )
    return F.map_from_entries(pairs) if has_texts else pairs


def _digits(column: Column, kind: DecimalType) -> Column:
    text = column.cast("string")
    if kind.scale < _EXPONENT_FROM:
        return text
    # Only below 1e-6: the digits before the exponent are those of the unscaled value (java.math.BigDecimal.toString).
    digits = F.regexp_replace(F.substring_index(text, "E", 1), "[-.]", "")
    sign = F.when(text.startswith("-"), F.lit("-")).otherwise(F.lit(""))
    whole = F.concat(sign, F.lit("0."), F.lpad(digits, kind.scale, "0"))
    return F.when(F.contains(text, F.lit("E")), whole).otherwise(text)


def _escaped(column: Column, kind: StringType) -> Column:
    if kind != StringType():  # of another collation: what looks at characters would look at them in its way
        column = column.cast("string")
    clean = F.when(F.contains(column, F.lit("\\x")), _without_lookalikes(column)).otherwise(column)
    return F.when(_is_utf8(column), clean).otherwise(_with_escapes(column))


def _is_utf8(column: Column) -> Column:
    if hasattr(F, "is_valid_utf8"):
        return F.coalesce(F.is_valid_utf8(column), F.lit(True))
    data = column.cast("binary")  # Spark before 4.0
    return F.coalesce(F.encode(F.decode(data, "UTF-8"), "UTF-8") == data, F.lit(True))


def _without_lookalikes(text: Column) -> Column:
    return F.regexp_replace(text, _LOOKS_ESCAPED, r"\\x5C")


def _with_escapes(column: Column) -> Column:
    parts = F.regexp_extract_all(F.decode(column.cast("binary"), _CHARSET), F.lit(_UTF8_PARTS), F.lit(1))

    def shown(part: Column) -> Column:
        data = F.encode(part, _CHARSET)
        is_alone = (F.length(data) == 1) & (part >= F.lit("\x80"))
        return F.when(is_alone, F.concat(F.lit("\\x"), F.hex(data))).otherwise(
            _without_lookalikes(F.decode(data, "UTF-8"))
        )

    return F.array_join(F.transform(parts, shown), "")
