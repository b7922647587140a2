"""Aggregates the rows that a table has now, by group: a row that is replaced or deleted is subtracted."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import StringType, StructField, StructType

from processor.operators.aggregators import TableAggregator
from processor.operators.joins import records_or_letters, without_null_keys
from processor.operators.workers.buckets import LETTER_TYPE, apply_by_key, keyed_rows, letter_columns
from processor.operators.workers.keyed import RowKind
from processor.operators.workers.packing import pack
from processor.operators.workers.subscriptions import FOREIGN_KEY, ROW
from processor.operators.workers.table_changes import NEW, OLD, PLACE, GroupsProgram, TableChangesProgram
from processor.rows import DELETED, ORIGIN, REFUSAL, TABLE_KEY
from statehouse.errors import ConfigurationError

_TOLD_TYPE: Final = StructType(
    [*LETTER_TYPE, *(StructField(name, StringType()) for name in (PLACE, TABLE_KEY, OLD, NEW))]
)


def aggregate_table(table: DataFrame, group_by: Column | str, aggregator: TableAggregator) -> DataFrame:
    """Aggregate a table's rows by a group; return a store's rows `key, value, timestamp`, where null deletes the key.

    `table` is as `parse_json_table` returns it. `group_by` is a column of it, or an expression of its columns, and
    becomes the text of the key; a row for which it is null is in no group. A row that is replaced or deleted is
    subtracted from the group that it was in, and the new one is added to its own (Kafka Streams'
    `KGroupedTable.aggregate`). Only a key's last change of a batch counts, by timestamp, partition and offset. A row
    that stays the same changes nothing. The aggregator gets the table's columns and `table_key`. A group gives one row
    per batch. Dead letters pass through; an exception in the aggregator ends the query.

    Raises:
        ConfigurationError: the frame is no table.

    """
    absent = sorted({TABLE_KEY, DELETED} - set(table.columns))
    if absent:
        raise ConfigurationError(
            f"aggregate_table: the frame lacks {', '.join(absent)}: give it a table (parse_json_table, parse_cdc, a "
            "join of tables); events are for aggregate(...)"
        )
    group = F.col(group_by) if isinstance(group_by, str) else group_by
    own = [name for name in table.columns if name not in (*ORIGIN, *REFUSAL, DELETED)]
    rows = keyed_rows(
        without_null_keys(table, TABLE_KEY),
        F.col(TABLE_KEY),
        F.lit(RowKind.ROW.value),
        [F.when(~F.col(DELETED), pack(*own)).alias(ROW), group.cast("string").alias(FOREIGN_KEY)],
    )
    told = apply_by_key([rows], TableChangesProgram(), _TOLD_TYPE)
    payload = [F.col(name) for name in (TABLE_KEY, OLD, NEW)]
    changes = told.select(
        *(column.alias(name) for name, column in letter_columns().items()), PLACE, TABLE_KEY, OLD, NEW
    )
    by_group = keyed_rows(changes, F.col(PLACE), F.lit(RowKind.EVENT.value), payload, is_event=True)
    put_out = apply_by_key([by_group], GroupsProgram(aggregator), LETTER_TYPE)
    return put_out.select(*records_or_letters(record_cache=True))
