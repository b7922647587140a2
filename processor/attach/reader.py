"""Reads state with Spark's state data source: all of it as of a batch, or what batches have changed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import StructType

from processor.attach.columns.json_forms import json_of
from processor.attach.columns.mapping import (
    FAILED,
    EntryMapping,
    Rows,
    entries,
    key_columns,
    key_serde,
    state_rows,
)
from processor.attach.columns.spark_columns import pruned
from processor.attach.columns.state_values import (
    STATE_KEY,
    STATE_VALUE,
    StateValues,
    as_it_is,
    finished_by_schema,
    finished_by_words,
)
from processor.attach.columns.timed_keys import EntryKind, is_span, window_ms
from processor.attach.operators import DEFAULT_STORE, StateOperator, StateSource
from processor.rows import KEY, OFFSET, PARTITION, VALUE
from processor.spark.kafka_options import topic_options
from statehouse.errors import ConfigurationError
from statehouse.runtime.brokers import Brokers

_BATCH: Final = "batch_id"
_CHANGE: Final = "change_type"
_DELETE: Final = "delete"
_PLACE: Final = "_place"
_BEFORE: Final = "_before"
_NEWEST: Final = "_newest"


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
    """Reads one state. Its frames are lazy.

    They have KEY, a record key, and VALUE in bytes; and FAILED: what can't be computed of an entry. A VALUE of null
    deletes the key.
    """

    def __init__(
        self, session: SparkSession, directory: str, state: StateSource, mapping: EntryMapping, version: int
    ) -> None:
        """Prepare. `version`: of the checkpoint's files, which Spark does not see on its own; the session is set to it.

        Raises:
            ConfigurationError: the state hasn't what the mapping names.

        """
        self._session, self._directory, self._state, self._mapping = session, directory, state, mapping
        # Spark's RocksDB asks for this endpoint when it loads state; only sessions with queries have it.
        session._jsparkSession.streams()  # noqa: SLF001 - has no public name
        self._session.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", str(version))
        raw = self._reader().load(directory)
        self.finished = _finished(session, raw, state, mapping)
        """The values that are made of the state's columns."""
        self.key_serde = key_serde(self._rows(raw), mapping)
        self.key_columns = key_columns(self._rows(raw), mapping)
        self.schema = state_rows(raw).select(STATE_KEY, STATE_VALUE).schema

    @property
    def has_changes(self) -> bool:
        """Whether batches can be read as changes: a deleted session doesn't say when it ended."""
        return not self._state.is_list and self._mapping.shape is not EntryKind.SESSION

    def entries(self, batch_id: int) -> DataFrame:
        """Return the entries that the state has as of a batch."""
        return entries(self._rows(self._reader().option("batchId", batch_id).load(self._directory)), self._mapping)

    def window_ms(self, batch_id: int) -> int | None:
        """Return how long the windows of the state are, in milliseconds; None if it has none yet.

        Raises:
            ConfigurationError: they differ.

        """
        rows = self._rows(self._reader().option("batchId", batch_id).load(self._directory))
        return window_ms(rows.frame, rows.key_type)

    def state(self, batch_id: int, before: DataFrame) -> DataFrame:
        """Return what has to change in a store with these entries (KEY and VALUE) for the state as of a batch.

        Entries that aren't in the state are deleted. Spark joins by sorting, so memory is bounded.
        """
        now = self.entries(batch_id).drop(STATE_KEY)
        joined = now.join(before.withColumnRenamed(VALUE, _BEFORE), KEY, "full_outer")
        differs = ~F.col(VALUE).eqNullSafe(F.col(_BEFORE)) | F.col(FAILED).isNotNull()
        return joined.where(differs).select(KEY, VALUE, FAILED)

    def changes(self, first: int, last: int, partitions: Collection[int] | None) -> DataFrame:
        """Return the keys that these batches have changed, with their values after the last one.

        `partitions`: those of the state that have changed; None: any may have.
        """
        feed = (
            self._reader()
            .option("readChangeFeed", "true")
            .option("changeStartBatchId", first)
            .option("changeEndBatchId", last)
            .load(self._directory)
        )
        if partitions is not None:
            feed = pruned(self._session, feed, partitions)
        # All changes of a key are in one task, in the order in which they were made.
        feed = feed.withColumn(_PLACE, F.struct(F.col(_BATCH), F.monotonically_increasing_id()))
        made = entries(self._rows(feed), self._mapping, [_PLACE, _CHANGE])
        is_there = F.col(_CHANGE) != _DELETE
        outcome = F.struct(
            is_there.alias(_CHANGE),
            F.when(is_there, F.col(VALUE)).alias(VALUE),
            F.when(is_there, F.col(FAILED)).alias(FAILED),
        )
        if self._mapping.may_clash:
            # A key of the store may have gone with one key of the state and come with another: what has come, counts.
            made = made.groupBy(KEY, STATE_KEY).agg(F.max_by(outcome, F.col(_PLACE)).alias(_NEWEST))
            grouped = made.groupBy(KEY).agg(F.max_by(_NEWEST, F.col(f"{_NEWEST}.{_CHANGE}")).alias(_NEWEST))
        else:
            grouped = made.groupBy(KEY).agg(F.max_by(outcome, F.col(_PLACE)).alias(_NEWEST))
        return grouped.select(KEY, f"{_NEWEST}.{VALUE}", f"{_NEWEST}.{FAILED}")

    def refuse_clash(self, batch_id: int) -> None:
        """Look whether two keys of the state, as of a batch, have become one key of the store, if that can be.

        Raises:
            ConfigurationError: two have; the text names both.

        """
        if not self._mapping.may_clash and self._mapping.shape is not EntryKind.SESSION:
            return
        kind = self.schema[STATE_KEY].dataType
        made = self.entries(batch_id).where(F.col(KEY).isNotNull())
        made = made.select(KEY, json_of(F.col(STATE_KEY), kind).alias(STATE_KEY))
        keys = made.groupBy(KEY).agg(
            F.min(STATE_KEY).alias("one"), F.max(STATE_KEY).alias("other"), F.count("*").alias("n")
        )
        found = keys.where("n > 1").head(1)
        if found:
            raise ConfigurationError(
                f"the keys {found[0].one} and {found[0].other} of the state have become the same key of the store: let "
                "the key name all that tells them apart, or leave --key and --key-serde out"
            )

    def _rows(self, frame: DataFrame) -> Rows:
        return Rows(state_rows(frame), self.finished)

    def _reader(self) -> DataFrameReader:
        choice = self._state.choice
        reader = self._session.read.format("statestore").option("operatorId", choice.operator_id)
        if choice.state_store != DEFAULT_STORE:
            reader = reader.option("storeName", choice.state_store)
        if choice.variable is not None:
            reader = reader.option("stateVarName", choice.variable)
        return reader.option("flattenCollectionTypes", "false") if self._state.is_list else reader


def _finished(session: SparkSession, raw: DataFrame, state: StateSource, mapping: EntryMapping) -> StateValues:
    """Return the values that are made of a state's columns.

    Raises:
        ConfigurationError: the aggregates that the mapping names aren't those of the state.

    """
    rows = state_rows(raw)
    kind = rows.schema[STATE_VALUE].dataType
    if not isinstance(kind, StructType):  # `state_rows` has made it
        raise TypeError(kind)
    if not state.operator.is_aggregation:
        if mapping.aggregates:
            raise ConfigurationError(
                f"operator {state.operator.operator_id} is a {state.operator.name}, which has no aggregates to finish: "
                "leave --aggregate out"
            )
        return as_it_is(kind)
    # A session's row begins with its key, and with when it began and ended.
    begins = 1 + max((place for place, each in enumerate(kind.fields) if is_span(each.dataType)), default=-1)
    of_state = raw.schema["value"].dataType
    if not isinstance(of_state, StructType):
        raise TypeError(of_state)
    kept = StructType(of_state.fields[begins:])
    names = kind.names[begins:]
    if mapping.aggregates:
        key = rows.schema[STATE_KEY].dataType
        keys = key if isinstance(key, StructType) else StructType([])
        return finished_by_words(session, kept, names, mapping.aggregates, mapping.inputs, keys)
    found = finished_by_schema(session, kept, names)
    return replace(found, default=[*kind.names[:begins], *found.default])


def changelog_entries(session: SparkSession, brokers: Brokers | str, topic: str) -> DataFrame:
    """Return the entries that a changelog adds up to, as KEY and VALUE."""
    options = {
        **topic_options(brokers, topic),
        "endingOffsets": "latest",
        "failOnDataLoss": "false",  # compaction leaves gaps
    }
    records = session.read.format("kafka").options(**options).load().select(KEY, VALUE, PARTITION, OFFSET)
    newest = F.max_by(F.struct(VALUE), F.col(OFFSET)).alias("_newest")
    newest_values = records.groupBy(KEY).agg(newest).select(KEY, f"_newest.{VALUE}")
    return newest_values.where(F.col(VALUE).isNotNull())
