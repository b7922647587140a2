"""Columns on their way to a Python operator and back, and state on its way to Spark's store and back.

Spark hands rows to Python cell by cell, which costs more than all that is done with them: so the columns that only
travel are one JSON text, packed and unpacked by Spark. State is an Arrow stream: Spark's own array type costs twice as
much on its way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import StructType

from processor.rows import OFFSET, PARTITION, TIMESTAMP, TOPIC, VALUE, VERDICT

# Packing must not change a value: times to the microsecond, and numbers that JSON doesn't have.
_OPTIONS: Final = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "allowNonNumericNumbers": "true"}
_NOT_ITS_OWN: Final = frozenset({VALUE, TOPIC, PARTITION, OFFSET, TIMESTAMP, *VERDICT})


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


def arrow_bytes(columns: Sequence[pa.Array], schema: pa.Schema) -> bytes:
    """Return columns as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.record_batch(list(columns), schema=schema))
    return bytes(sink.getvalue())


def arrow_table(data: bytes) -> pa.Table:
    """Return the columns of an Arrow stream."""
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()
