"""`suppress` as a Spark state operator: each partition of the changelog has a buffer of held-back updates.

In Kafka Streams each task has such a buffer. A buffer has its own stream time, advanced only by its own updates. It is
one state value, read and written whole, so the cost of a batch grows with the size of the buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from processor.operators.suppression import BufferedUpdate, KeyUpdate, Suppression, WindowCloses, pass_on, size_of
from processor.operators.workers.packing import arrow_bytes, arrow_table, pack, unpack
from processor.operators.workers.recency import UpdateOrder, in_order
from processor.reports.progress import BUFFERS, SUPPRESS_BUFFERS
from processor.rows import (
    KEY,
    OFFSET,
    PARTITION,
    PLACE_TYPES,
    REASON,
    SEQUENCE,
    SESSION_END,
    SESSION_START,
    SESSION_WINDOW,
    TIMESTAMP,
    TOPIC,
    WINDOW,
    WINDOW_START,
    quoted,
)
from processor.sink.records import hash_column
from processor.sink.task_rows import SINK_PARTITION, TIMESTAMP_MS
from processor.spark.state_api import OurStatefulProcessor, StatefulProcessorHandle
from statehouse.errors import ConfigurationError

# These columns identify the entry of an update: the key, and its window or session.
_IDENTITY: Final = (KEY, WINDOW, WINDOW_START, SEQUENCE, SESSION_WINDOW, SESSION_START, SESSION_END)
_HASH: Final = "_hash"
_ENTRY: Final = "_entry"
_SINCE_MS: Final = "_since_ms"
_ROW: Final = "_row"
_COLUMNS: Final = (_ENTRY, _ROW, TIMESTAMP_MS, _SINCE_MS, TOPIC, PARTITION, OFFSET)
_SIZE: Final = ("partition", "records", "bytes")
_OUT_TYPE: Final = f"{_ROW} string, partition int, records bigint, bytes bigint"
_STATE_TYPE: Final = StructType(
    [StructField("partitions", IntegerType()), StructField("stream_ms", LongType()), StructField("held", BinaryType())]
)
_HELD: Final = pa.schema([pa.field("key", pa.string()), pa.field("since_ms", pa.int64()), pa.field("row", pa.string())])
_columns_of = itemgetter(*_COLUMNS)
_NO_TIME: Final = 0


def suppress(frame: DataFrame, suppression: Suppression, partition_count: int) -> DataFrame:
    """Hold updates back as `suppression` says, in one buffer per partition; return rows with the same columns.

    The updates of a batch apply by timestamp, then by partition and offset (`in_order`). A key, with its window or
    session, gives at most one row per batch. Dead letters and rows without a key pass immediately.
    """
    rows = _packed(frame, suppression, partition_count)
    passed = rows.groupBy(SINK_PARTITION).transformWithState(
        statefulProcessor=_SuppressProcessor(suppression, partition_count),
        outputStructType=_OUT_TYPE,
        outputMode="Update",
        timeMode="None",
    )
    size = F.when(F.col(_ROW).isNull(), F.struct(*_SIZE))
    observed = passed.observe(SUPPRESS_BUFFERS, F.collect_list(size).alias(BUFFERS))
    return observed.where(F.col(_ROW).isNotNull()).select(unpack(_ROW, frame.schema)).select(f"{_ROW}.*")


def _packed(frame: DataFrame, suppression: Suppression, partition_count: int) -> DataFrame:
    """Return rows with SINK_PARTITION and _COLUMNS; rows that pass immediately have a null entry."""
    have = frame.columns
    refused = F.col(REASON).isNotNull() if REASON in have else F.lit(False)
    is_held = ~refused & F.col(KEY).isNotNull()
    origin = {
        name: (F.col(name) if name in have else F.lit(None)).cast(kind).alias(name)
        for name, kind in PLACE_TYPES.items()
    }
    since = F.col(WINDOW)["end"] if isinstance(suppression, WindowCloses) else F.col(TIMESTAMP)
    placed = frame.withColumn(_HASH, hash_column(F.when(is_held, F.col(KEY).cast("binary"))))
    columns: dict[str, Column] = {
        SINK_PARTITION: F.coalesce(F.col(_HASH), origin[PARTITION], F.lit(0)) % partition_count,
        _ENTRY: F.when(is_held, pack(*(name for name in _IDENTITY if name in have))),
        _ROW: pack(*map(quoted, have)),
        TIMESTAMP_MS: F.unix_millis(TIMESTAMP),
        _SINCE_MS: F.unix_millis(since),
    }
    return placed.select(*((columns | origin)[name].alias(name) for name in (SINK_PARTITION, *_COLUMNS)))


def _placed(row: tuple[Any, ...]) -> tuple[UpdateOrder, KeyUpdate]:
    entry, packed, timestamp_ms, since_ms, topic, partition, offset = row
    return UpdateOrder.of(timestamp_ms, topic, partition, offset), KeyUpdate(entry, packed, timestamp_ms, since_ms)


class _SuppressProcessor(OurStatefulProcessor):
    """Processes a partition's rows in a batch, with one call to the JVM to read the buffer and one to write it."""

    def __init__(self, suppression: Suppression, partition_count: int) -> None:
        self._suppression, self._partition_count = suppression, partition_count

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._buffer = handle.getValueState("buffer", _STATE_TYPE)

    def handleInputRows(  # noqa: N802 - Spark's names
        self,
        key: tuple[int],
        rows: Iterator[Row],
        timerValues: object,  # noqa: N803, ARG002
    ) -> Iterable[Row]:
        out = Row(_ROW, *_SIZE)
        placed = []
        for row in map(_columns_of, rows):
            if row[_COLUMNS.index(_ENTRY)] is None:
                yield out(row[_COLUMNS.index(_ROW)], None, None, None)
            else:
                placed.append(_placed(row))
        if not placed:
            return
        stream_ms, buffered = self._load()
        changes = (change for _, change in in_order(placed))
        passed = pass_on(buffered, stream_ms, changes, self._suppression)
        self._buffer.update((self._partition_count, passed.stream_ms, _arrow(passed.buffered)))
        for text in passed.rows:
            yield out(text, None, None, None)
        yield out(None, key[0], len(passed.buffered), size_of(passed.buffered))

    def _load(self) -> tuple[int, dict[str, BufferedUpdate]]:
        kept = self._buffer.get()
        if kept is None:
            return _NO_TIME, {}
        partition_count, stream_ms, buffered = kept
        if partition_count != self._partition_count:
            raise ConfigurationError(
                f"suppress holds updates back for {partition_count} partitions, and the query's first output now has "
                f"{self._partition_count}: they would not be found there. Give it as many, or the query another name"
            )
        return stream_ms, _unpacked(buffered)


def _arrow(buffered: dict[str, BufferedUpdate]) -> bytes:
    columns = [list(buffered), [each.since_ms for each in buffered.values()], [each.row for each in buffered.values()]]
    return arrow_bytes(pa.table(columns, schema=_HELD))


def _unpacked(data: bytes) -> dict[str, BufferedUpdate]:
    keys, times, rows = (column.to_pylist() for column in arrow_table(data).columns)
    return {key: BufferedUpdate(since_ms, row) for key, since_ms, row in zip(keys, times, rows, strict=True)}
