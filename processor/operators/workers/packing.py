"""Packs columns for Python operators, and state for Spark's store, and unpacks both.

Rows go to Python as Arrow columns, not cell by cell. Columns of simple types travel unchanged; all other columns
travel together as one JSON text, which Spark packs and unpacks. State is an Arrow stream: Spark's own array type costs
twice as much to transfer.
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

from processor.rows import OFFSET, PARTITION, REFUSAL, TIME_FORMAT, TIMESTAMP, TOPIC, VALUE, quoted

# Packing must not change a value: keep microseconds in times, and numbers that JSON lacks (NaN, infinity).
_OPTIONS: Final = {"timestampFormat": TIME_FORMAT, "allowNonNumericNumbers": "true"}

_NOT_ITS_OWN: Final = frozenset({VALUE, TOPIC, PARTITION, OFFSET, TIMESTAMP, *REFUSAL})
_OF_JSON: Final = (StringType, BooleanType, ByteType, ShortType, IntegerType, LongType, DoubleType)
_SIMPLE: Final = (*_OF_JSON, BinaryType, FloatType, TimestampType)


def pack(*columns: Column | str) -> Column:
    """Return the columns as one JSON object, without null columns."""
    return F.to_json(F.struct(*columns), _OPTIONS)


def unpack(name: str, schema: StructType) -> Column:
    """Return the struct packed in a column, under the name of that column."""
    return F.from_json(F.col(name), schema, _OPTIONS).alias(name)


def renamed(columns: Mapping[str, str]) -> list[Column]:
    """Return columns under new names: new -> old."""
    return [F.col(source).alias(name) for name, source in columns.items()]


def own_columns(frame: DataFrame) -> list[str]:
    """Return the names of an event's own columns: the parsed columns and `key`, without the Kafka record's others."""
    return [name for name in frame.columns if name not in _NOT_ITS_OWN]


@dataclass(frozen=True)
class Packing:
    """How columns travel: a simple one as `<prefix>_<name>`, all others as JSON text in the column `<prefix>`.

    Attributes:
        prefix: distinguishes these columns from others.
        schema: the columns.
        as_json: the program reads them as JSON values, so columns of types that JSON lacks travel in the JSON text.

    """

    prefix: str
    schema: StructType
    as_json: bool = False

    def packed(self, sources: Mapping[str, str] | None = None) -> list[Column]:
        """Return the packed columns of a frame; `sources` maps a column to its name in the frame if that differs."""
        columns = {name: F.col(quoted(name) if sources is None else sources[name]) for name in self.schema.names}
        simple = [_packed(columns[field.name], field).alias(self._name(field)) for field in self._simple]
        rest = [columns[name].alias(name) for name in self._rest.names]
        return simple + [pack(*rest).alias(self.prefix)] * bool(self._rest)

    @property
    def travelling(self) -> list[StructField]:
        """The fields of the packed columns."""
        simple = [StructField(self._name(field), _packed_type(field.dataType)) for field in self._simple]
        return simple + [StructField(self.prefix, StringType())] * bool(self._rest)

    @property
    def names(self) -> dict[str, str | None]:
        """Packed column -> the original column; None for the JSON text."""
        simple = [field.name for field in self._simple]
        return dict(zip((field.name for field in self.travelling), [*simple, None], strict=False))

    def unpacked(self) -> list[Column]:
        """Return the original columns, from a frame with the packed ones."""
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
        # What Spark calls with the packed columns takes a dot in a name for a path: escaped as in RFC 6901.
        return f"{self.prefix}_{field.name.replace('~', '~0').replace('.', '~1')}"


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
    """Return the table in an Arrow stream."""
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()
