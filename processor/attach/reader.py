"""Reads state with Spark's state data source: all of it as of a batch, or what batches have changed."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.attach.mapping import STATE_KEY, EntryMapping, entries, state_rows
from processor.attach.operators import DEFAULT_STORE, StateOperator, StateSource
from processor.rows import KEY, OFFSET, PARTITION, VALUE
from processor.spark_kafka import spark_options
from statehouse.brokers import Brokers

CLASHES: Final = "_clashes"
"""Whether several keys of the state have become this one key of the store."""

_BATCH: Final = "batch_id"
_CHANGE: Final = "change_type"
_DELETE: Final = "delete"
_PLACE: Final = "_place"
_BEFORE: Final = "_before"


def state_operators(session: SparkSession, directory: str) -> list[StateOperator]:
    """Return the state stores of the query's operators."""
    rows = session.read.format("state-metadata").load(directory).collect()
    return [
        StateOperator(
            row.operatorId, row.operatorName, row.stateStoreName, row.numPartitions, row.operatorProperties or None
        )
        for row in rows
    ]


class StateReader:
    """Reads one state. Its frames are lazy, and have KEY and VALUE in bytes; a VALUE of null deletes the key."""

    def __init__(self, session: SparkSession, directory: str, state: StateSource, columns: EntryMapping) -> None:
        self._session, self._directory, self._state, self._columns = session, directory, state, columns
        # Spark's RocksDB asks for this endpoint when it loads state; only sessions with queries have it.
        session._jsparkSession.streams()  # noqa: SLF001 - has no public name

    @property
    def may_clash(self) -> bool:
        """Whether several keys of the state may become one key of the store: only a key of the caller's making may."""
        return self._columns.key is not None

    def read_format(self, version: int) -> None:
        """Expect the checkpoint's files to be of this version: Spark does not see it by itself."""
        self._session.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", str(version))

    def rows(self, batch_id: int) -> DataFrame:
        """Return all rows of the state as of a batch, as Spark has them, with names that differ."""
        return state_rows(self._reader().option("batchId", batch_id).load(self._directory))

    def state(self, batch_id: int, before: DataFrame) -> DataFrame:
        """Return what has to change in a store with these entries (KEY and VALUE) for the state as of a batch.

        Entries that aren't in the state are deleted. Spark joins by sorting, so memory is bounded.
        """
        now = entries(self.rows(batch_id), self._columns).drop(STATE_KEY).withColumn(CLASHES, F.lit(False))
        if self.may_clash:
            now = now.groupBy(KEY).agg(F.first(VALUE).alias(VALUE), (F.count("*") > 1).alias(CLASHES))
        clashes = F.coalesce(F.col(CLASHES), F.lit(False))
        joined = now.join(before.withColumnRenamed(VALUE, _BEFORE), KEY, "full_outer")
        return joined.where(~F.col(VALUE).eqNullSafe(F.col(_BEFORE)) | clashes).select(
            KEY, VALUE, clashes.alias(CLASHES)
        )

    def changes(self, first: int, last: int) -> DataFrame:
        """Return the keys that these batches have changed, with their values after the last one."""
        feed = (
            self._reader()
            .option("readChangeFeed", "true")
            .option("changeStartBatchId", first)
            .option("changeEndBatchId", last)
            .load(self._directory)
            # All changes of a key are in one task, in the order in which they were made.
            .withColumn(_PLACE, F.struct(F.col(_BATCH), F.monotonically_increasing_id()))
        )
        made = entries(state_rows(feed), self._columns, [_PLACE, _CHANGE])
        value = F.when(F.col(_CHANGE) != _DELETE, F.col(VALUE))
        newest = F.max_by(F.struct(value.alias(VALUE)), F.col(_PLACE))
        clashes = F.max(STATE_KEY) != F.min(STATE_KEY) if self.may_clash else F.lit(False)
        grouped = made.groupBy(KEY).agg(newest.alias("_newest"), clashes.alias(CLASHES))
        return grouped.select(KEY, F.col(f"_newest.{VALUE}").alias(VALUE), CLASHES)

    def _reader(self) -> DataFrameReader:
        choice = self._state.choice
        reader = self._session.read.format("statestore").option("operatorId", choice.operator_id)
        if choice.state_store != DEFAULT_STORE:
            reader = reader.option("storeName", choice.state_store)
        if choice.variable is not None:
            reader = reader.option("stateVarName", choice.variable)
        return reader.option("flattenCollectionTypes", "false") if self._state.is_list else reader


def changelog_entries(session: SparkSession, brokers: Brokers | str, topic: str) -> DataFrame:
    """Return the entries that a changelog adds up to, as KEY and VALUE."""
    records = (
        session.read.format("kafka")
        .options(
            **{
                **spark_options(brokers),
                "subscribe": topic,
                "startingOffsets": "earliest",
                "endingOffsets": "latest",
                "kafka.isolation.level": "read_committed",
                "kafka.fetch.max.wait.ms": "10",
                "failOnDataLoss": "false",  # compaction leaves gaps
            }
        )
        .load()
        .select(KEY, VALUE, PARTITION, OFFSET)
    )
    newest = F.max_by(F.struct(VALUE), F.col(OFFSET)).alias("_newest")
    newest_values = records.groupBy(KEY).agg(newest).select(KEY, f"_newest.{VALUE}")
    return newest_values.where(F.col(VALUE).isNotNull())
