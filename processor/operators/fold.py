"""Aggregates of a key's rows in order, in Python: for what Spark's native aggregates can't say.

Deletes, what depends on the order of events, and every single update (`record_cache=False`) need this; counts, sums,
extremes and windows don't: `groupBy(...).agg(...)` costs a tenth with many keys.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.operators.aggregators import Aggregator
from processor.operators.buckets import LETTER_TYPE, apply_by_key, keyed_rows
from processor.operators.joins import aggregate_program, records_or_letters, without_null_keys
from processor.operators.keyed import Kind
from processor.operators.packing import Packing, own_columns
from processor.rows import KEY


def aggregate(events: DataFrame, aggregator: Aggregator, *, record_cache: bool = True) -> DataFrame:
    """Aggregate events by their `key`; gives a store's rows `key, value, timestamp`, a null value where it is deleted.

    A key's events of a batch apply in the order of `order.by_time`: timestamp, then partition and offset. A row is the
    event's own columns, `key` as text among them, without the record it came in. A key gives one row a batch, where
    its value changed, with the time of the latest event applied; with `record_cache=False` one for each event that
    changed it, with that event's time. Events must have ORIGIN and VERDICT; dead letters pass through, and events
    without a key become some.
    """
    keyed = without_null_keys(events, KEY).withColumn(KEY, F.col(KEY).cast("string"))
    own = Packing("event", keyed.select(*own_columns(keyed)).schema, as_json=True)
    rows = keyed_rows(keyed, F.col(KEY), F.lit(Kind.EVENT.value), own.packed(), is_event=True)
    put_out = apply_by_key([rows], aggregate_program(aggregator, [own], record_cache=record_cache), LETTER_TYPE)
    return put_out.select(*records_or_letters(record_cache=record_cache))
