"""Columns on their way to a Python operator and back, and state on its way to Spark's store and back.

Rows go to Python as Arrow columns, not cell by cell. Columns of the simple types are handed on as they are, those of
all other types together as one JSON text, packed and unpacked by Spark. State is an Arrow stream: Spark's own array
type costs twice as much on its way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from processor.rows import OFFSET, PARTITION, TIMESTAMP, TOPIC, VALUE, VERDICT

# Packing must not change a value: times to the microsecond, and numbers that JSON doesn't have.
_OPTIONS: Final = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "allowNonNumericNumbers": "true"}

_NOT_ITS_OWN: Final = frozenset({VALUE, TOPIC, PARTITION, OFFSET, TIMESTAMP, *VERDICT})
_OF_JSON: Final = (StringType, BooleanType, ByteType, ShortType, IntegerType, LongType, DoubleType)
_SIMPLE: Final = (*_OF_JSON, BinaryType, FloatType, TimestampType)


def pack(*columns: Column | str) -> Column:
    """Return the columns as one JSON object; null columns are absent from it."""
    return F.to_json(F.struct(*columns), _OPTIONS)


def unpack(name: str, schema: StructType) -> Column:
    """Return the struct that was packed in a column, under the column's name."""
    return F.from_json(F.col(name), schema, _OPTIONS).alias(name)


def renamed(columns: Mapping[str, str]) -> list[Column]:
    """Return columns under new names: new -> old."""
    return [F.col(source).alias(name) for name, source in columns.items()]


def own_columns(frame: DataFrame) -> list[str]:
    """Name the columns that an event has of its own: what it was parsed to, not the record it came in; and its key."""
    return [name for name in frame.columns if name not in _NOT_ITS_OWN]


@dataclass(frozen=True)
class Packing:
    """How some columns travel: `<prefix>_<name>` each, and `<prefix>` for the JSON text of those that aren't simple.

    Attributes:
        prefix: tells these columns from others.
        schema: the columns.
        as_json: for a program that takes them for JSON values: what JSON has no type for is in the text.

    """

    prefix: str
    schema: StructType
    as_json: bool = False

    def packed(self, sources: Mapping[str, str] | None = None) -> list[Column]:
        """Return what travels, from a frame with the columns, or with `sources`: column -> the frame's column."""
        columns = {name: F.col(name if sources is None else sources[name]) for name in self.schema.names}
        simple = [_packed(columns[field.name], field).alias(self._name(field)) for field in self._simple]
        rest = [columns[name].alias(name) for name in self._rest.names]
        return simple + [pack(*rest).alias(self.prefix)] * bool(self._rest)

    @property
    def travelling(self) -> list[StructField]:
        """What travels."""
        simple = [StructField(self._name(field), _packed_type(field.dataType)) for field in self._simple]
        return simple + [StructField(self.prefix, StringType())] * bool(self._rest)

    @property
    def names(self) -> dict[str, str | None]:
        """What travels -> the column that it is, None for the text."""
        simple = [field.name for field in self._simple]
        return dict(zip((field.name for field in self.travelling), [*simple, None], strict=False))

    def unpacked(self) -> list[Column]:
        """Return the columns, from a frame with what travelled."""
        simple = {field.name: _unpacked(F.col(self._name(field)), field) for field in self._simple}
        rest = F.from_json(F.col(self.prefix), self._rest, _OPTIONS)
        return [simple.get(name, rest[name]).alias(name) for name in self.schema.names]

    @property
    def _simple(self) -> list[StructField]:
        return [field for field in self.schema if isinstance(field.dataType, _OF_JSON if self.as_json else _SIMPLE)]

    @property
    def _rest(self) -> StructType:
        return StructType([field for field in self.schema if field not in self._simple])

    def _name(self, field: StructField) -> str:
        return f"{self.prefix}_{field.name}"


def _packed(column: Column, field: StructField) -> Column:
    return F.unix_micros(column) if isinstance(field.dataType, TimestampType) else column


def _unpacked(column: Column, field: StructField) -> Column:
    return F.timestamp_micros(column) if isinstance(field.dataType, TimestampType) else column


def _packed_type(kind: DataType) -> DataType:
    return LongType() if isinstance(kind, TimestampType) else kind


def arrow_bytes(table: pa.Table) -> bytes:
    """Return a table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def arrow_table(data: bytes) -> pa.Table:
    """Return the table of an Arrow stream."""
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()
