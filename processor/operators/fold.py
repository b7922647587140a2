"""Aggregates of a key's rows in order, in Python: for what Spark's native aggregates can't say.

Deletes, what depends on the order of events, and every single update (`record_cache=False`) need this; counts, sums,
extremes and windows don't: `groupBy(...).agg(...)` costs a tenth with many keys.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.operators import order
from processor.operators.aggregators import Aggregator
from processor.operators.buckets import apply_by_key, keyed_rows
from processor.operators.joins import AGGREGATE_TYPE, records_or_letters, without_null_keys
from processor.operators.keyed import EVENT, KeyProgram, Kind
from processor.operators.packing import own_columns, pack, unpack
from processor.rows import KEY, ORIGIN, TIMESTAMP, VALUE, VERDICT


def aggregate(events: DataFrame, aggregator: Aggregator, *, record_cache: bool = True) -> DataFrame:
    """Aggregate events by their `key`; gives a store's rows `key, value, timestamp`, a null value where it is deleted.

    A key's events of a batch apply in the order of `order.by_time`: timestamp, then partition and offset. A row is the
    event's own columns, `key` as text among them, without the record it came in. A key gives one row a batch, where
    its value changed, with the time of the latest event applied; with `record_cache=False` one for each event that
    changed it, with that event's time. Events must have ORIGIN and VERDICT; dead letters pass through, and events
    without a key become some.
    """
    keyed = without_null_keys(events, KEY)
    row = [F.col(name).cast("string").alias(name) if name == KEY else F.col(name) for name in own_columns(keyed)]
    united = keyed_rows(keyed, F.col(KEY), F.lit(Kind.EVENT.value), pack(*row))
    put_out = apply_by_key(united, KeyProgram(None, order.by_time, aggregator, record_cache), AGGREGATE_TYPE)
    letters = keyed.select(*ORIGIN, *VERDICT)
    unpacked = put_out.select(KEY, VALUE, TIMESTAMP, unpack(EVENT, letters.schema))
    columns = {name: F.col(f"{EVENT}.{name}") for name in letters.columns}
    return unpacked.select(*records_or_letters(columns, record_cache=record_cache))
