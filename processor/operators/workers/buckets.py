"""Runs key programs as Spark state operators, in buckets of many keys.

Spark hands the rows of a state operator to Python one by one, which costs more per row than the work on it. A call
that reads and writes state costs some tenths of a millisecond too. So keys are hashed into buckets, and Spark's key is
the bucket. Before the shuffle, a stateless step packs the rows of a bucket into one row, an Arrow stream. The state of
all keys in a bucket is one Arrow stream too, read and written whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructField, StructType

from processor.operators.workers.keyed import GROUP, KIND, LETTER, TIME, RowKind
from processor.operators.workers.packing import arrow_bytes, arrow_table
from processor.rows import DETAIL, KEY, OFFSET, ORIGIN, PARTITION, REASON, REFUSAL, TIMESTAMP, TOPIC, VALUE
from processor.spark.plans import as_many_as_cores
from processor.spark.state_api import OurStatefulProcessor, StatefulProcessorHandle
from processor.spark.state_operators import is_with_pandas
from processor.spark.worker_memory import keep_modules

# A batch reads and writes the whole state of each bucket that it touches. More buckets mean more calls for a batch of
# many keys; fewer buckets mean more state for a batch of few keys. At most as many tasks as buckets have work.
_BUCKETS: Final = 32
_BUCKET: Final = "bucket"
# As text, each task would have Spark's Java read it.
_STATE_TYPE: Final = StructType([StructField("table", BinaryType())])
# Rows gathered before packing. A larger number means fewer packed rows, and more memory.
_ROWS_MAX: Final = 32_768
_BYTES_MAX: Final = 16 << 20
_PACKED: Final = pa.schema([(_BUCKET, pa.int32()), ("side", pa.int32()), ("rows", pa.binary())])
_PACKED_TYPE: Final = "bucket int, side int, rows binary"
_STREAMS_TYPE: Final = "rows binary"

_TYPES: Final[Mapping[str, DataType]] = {
    KEY: BinaryType(),
    VALUE: BinaryType(),
    TOPIC: StringType(),
    TIME: LongType(),
    PARTITION: IntegerType(),
    OFFSET: LongType(),
    REASON: StringType(),
    DETAIL: StringType(),
}
LETTER_TYPE: Final = StructType([StructField(name, _TYPES[name]) for name in LETTER])


class Program(Protocol):
    """Processes the rows of one bucket in a micro-batch; pure."""

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the kept states."""
        ...

    def run(
        self, sides: Mapping[int, pa.Table], states: Mapping[str, pa.Table]
    ) -> tuple[Sequence[pa.Table], Mapping[str, pa.Table]]:
        """Return the rows to put out, and the states that changed. Sides and states without rows are absent.

        A table put out may lack a column that is null in all its rows.
        """
        ...


def keyed_rows(
    frame: DataFrame, key: Column, kind: Column, payload: Sequence[Column], *, is_event: bool = False
) -> DataFrame:
    """Return the rows of a frame that is `bookkept`, as group key, kind, the columns of LETTER, and a payload.

    Only dead letters, and events because they may become dead letters, keep their original key, value and topic.
    """
    refused = F.col(REASON).isNotNull()
    group = F.when(~refused, key.cast("string").cast("binary"))
    # Rows without a key are spread by their source partition.
    bucket = F.when(group.isNotNull(), F.xxhash64(group)).otherwise(F.xxhash64(TOPIC, PARTITION))
    origin = {KEY: F.col(KEY).cast("binary"), VALUE: F.col(VALUE).cast("binary"), TOPIC: F.col(TOPIC)}
    return frame.select(
        F.pmod(bucket, F.lit(_BUCKETS)).cast("int").alias(_BUCKET),
        group.alias(GROUP),
        F.when(refused, RowKind.DEAD_LETTER.value).otherwise(kind).cast("tinyint").alias(KIND),
        *((column if is_event else F.when(refused, column)).alias(name) for name, column in origin.items()),
        F.unix_micros(TIMESTAMP).alias(TIME),
        F.col(PARTITION).cast("int").alias(PARTITION),
        F.col(OFFSET).cast("bigint").alias(OFFSET),
        REASON,
        DETAIL,
        *payload,
    )


def letter_columns() -> dict[str, Column]:
    """Return the columns of LETTER as ORIGIN and REFUSAL have them."""
    return {name: F.timestamp_micros(TIME) if name == TIMESTAMP else F.col(name) for name in (*ORIGIN, *REFUSAL)}


def apply_by_key(sides: Sequence[DataFrame], program: Program, out_type: StructType) -> DataFrame:
    """Run a program on frames made by `keyed_rows`; return its output, with the columns and types of `out_type`."""
    packed = (
        as_many_as_cores(frame).mapInArrow(_Packer(number, tuple(frame.columns)), _PACKED_TYPE)
        for number, frame in enumerate(sides)
    )
    rows = reduce(DataFrame.union, packed)
    options = {"outputStructType": _STREAMS_TYPE, "outputMode": "Update", "timeMode": "None"}
    if is_with_pandas(rows.sparkSession):
        streams = rows.groupBy(_BUCKET).transformWithStateInPandas(_PandasBucketProcessor(program), **options)
    else:
        streams = rows.groupBy(_BUCKET).transformWithState(_BucketProcessor(program), **options)
    return streams.mapInArrow(_Unpacker(to_arrow_schema(out_type)), out_type)


@dataclass(frozen=True)
class _Packer:
    """Packs the rows of each bucket into one row; Spark calls it with a frame's partition as Arrow batches."""

    side: int
    columns: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield bucket, side and rows."""
        for gathered in _gathered(batches):
            # Spark names columns differently, and frames differ in which columns may be null: set our own names.
            yield self._packed(pa.table(pa.Table.from_batches(gathered).columns, names=self.columns))
        keep_modules()

    def _packed(self, rows: pa.Table) -> pa.RecordBatch:
        buckets = rows[_BUCKET].to_numpy()
        ordered = rows.drop_columns([_BUCKET]).take(pa.array(np.argsort(buckets, kind="stable"))).combine_chunks()
        counts = np.bincount(buckets, minlength=_BUCKETS)
        ends = np.cumsum(counts)
        found = np.flatnonzero(counts)
        streams = [arrow_bytes(ordered.slice(ends[bucket] - counts[bucket], counts[bucket])) for bucket in found]
        columns = [found.astype(np.int32), np.full(len(found), self.side, dtype=np.int32), streams]
        return pa.record_batch([pa.array(column) for column in columns], schema=_PACKED)


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        gathered.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _ROWS_MAX or size >= _BYTES_MAX:
            yield gathered
            gathered, rows, size = [], 0, 0
    if rows:
        yield gathered


@dataclass(frozen=True)
class _Unpacker:
    """Unpacks what the state operator put out; Spark calls it with Arrow batches of streams."""

    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        tables = (self._complete(arrow_table(stream.as_buffer())) for batch in batches for stream in batch.column(0))
        for gathered in _gathered(batch for table in tables for batch in table.to_batches()):
            yield from pa.Table.from_batches(gathered).combine_chunks().to_batches()
        keep_modules()

    def _complete(self, table: pa.Table) -> pa.Table:
        """Return a table with all columns; one that is null in all rows may be absent."""
        there = table.column_names
        columns = [
            table[field.name].cast(field.type) if field.name in there else pa.nulls(table.num_rows, field.type)
            for field in self.schema
        ]
        return pa.table(columns, schema=self.schema)


class _BucketProcessor(OurStatefulProcessor):
    """Runs a program on a bucket's rows and states."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._states = {name: handle.getValueState(name, _STATE_TYPE) for name in self._program.states}

    def handleInputRows(  # noqa: N802 - Spark's names
        self,
        key: tuple[int],  # noqa: ARG002
        rows: Iterator[Any],
        timerValues: object,  # noqa: N803, ARG002
    ) -> Iterator[Any]:
        for stream in self._run(rows):
            yield Row(rows=stream)

    def _run(self, rows: Iterable[tuple[int, int, bytes]]) -> Iterator[bytes]:
        parts: dict[int, list[pa.Table]] = {}
        for _, side, stream in rows:
            parts.setdefault(side, []).append(arrow_table(stream))
        kept = {name: state.get() for name, state in self._states.items()}
        put_out, changed = self._program.run(
            {side: pa.concat_tables(tables) for side, tables in parts.items()},
            {name: arrow_table(value[0]) for name, value in kept.items() if value is not None},
        )
        for name, table in changed.items():
            if table.num_rows:
                self._states[name].update((arrow_bytes(table.combine_chunks()),))
            else:
                self._states[name].clear()
        for table in put_out:
            if table.num_rows:
                yield arrow_bytes(table.combine_chunks())


class _PandasBucketProcessor(_BucketProcessor):
    """Takes and returns pandas' frames: for checkpoints that name that operator of Spark's."""

    def handleInputRows(  # noqa: N802 - Spark's names
        self,
        key: tuple[int],  # noqa: ARG002
        rows: Iterator[pd.DataFrame],
        timerValues: object,  # noqa: N803, ARG002
    ) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"rows": list(self._run(row for frame in rows for row in frame.itertuples(index=False)))})
