"""Aggregates a key's rows in order, in Python, where Spark's native aggregates don't suffice.

Deletes, results that depend on the order of events, and a row for each update (`record_cache=False`) need this.
Counts, sums, extremes and windows don't: with many keys `groupBy(...).agg(...)` costs a tenth.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from processor.operators.aggregators import Aggregator
from processor.operators.joins import aggregate_program, records_or_letters, rows_by_key, without_null_keys
from processor.operators.workers.buckets import LETTER_TYPE, apply_by_key
from processor.operators.workers.raised import OnError
from processor.rows import DELETED, KEY, TABLE_KEY
from statehouse.errors import ConfigurationError


def aggregate(
    events: DataFrame, aggregator: Aggregator, *, record_cache: bool = True, on_error: str = OnError.FAIL
) -> DataFrame:
    """Aggregate events by their `key`; return a store's rows `key, value, timestamp`, where null deletes the key.

    The events of a key in a batch apply by timestamp, then by partition and offset (`order.by_time`). The aggregator
    gets the event's own columns, with `key` as text, but not the columns of the Kafka record. A key whose value
    changed gives one row per batch, with the time of the latest event applied; with `record_cache=False` it gives one
    row for each event that changed it, with that event's time. Columns of ORIGIN and REFUSAL that the events lack are
    null. Dead letters pass through, and events without a key become dead letters. An event for which the aggregator
    raises an exception ends the query; with `on_error="dead_letter"` it becomes a dead letter, `raised`, and changes
    nothing (KIP-1033). That writes the state down after each event, so it costs more.

    Raises:
        ConfigurationError: the events are a table, whose rows replace one another: `aggregate_table` takes them.
        ValueError: `on_error` is unknown.

    """
    if {TABLE_KEY, DELETED} <= set(events.columns):
        raise ConfigurationError(
            "aggregate would count a table's row again when it is updated, and never without it: use "
            "aggregate_table(table, group_by, aggregator), which subtracts the row that is replaced"
        )
    rows, own = rows_by_key(without_null_keys(events, KEY))
    program = aggregate_program(aggregator, [own], record_cache=record_cache, on_error=OnError(on_error))
    put_out = apply_by_key([rows], program, LETTER_TYPE)
    return put_out.select(*records_or_letters(record_cache=record_cache))
