"""Keeps each key's entry with the greatest event time, in whatever order events come.

A store by itself keeps what was written last. So an event that comes late, from another partition or after a replay,
replaces a newer one. Kafka Streams' versioned stores (KIP-914) judge by time, too; here one version of a key is kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import DataType, DateType, FractionalType, IntegralType, TimestampNTZType, TimestampType

from processor.operators.aggregators import Json
from processor.operators.fold import aggregate
from processor.operators.order import RecordPosition
from processor.operators.refusals import refuse
from processor.rows import ORIGIN, REASON, REFUSAL, TIMESTAMP, VALUE, DeadLetterReason
from statehouse.errors import ConfigurationError

_AT: Final = "at"
_KEPT: Final = "kept"
_ENTRY: Final = "struct<time:bigint,value:string>"


class Newest:
    """Keeps the row with the greatest time, and among equal times the later partition and offset.

    A row has `at`, a number, and `kept`, text; a row without `kept` deletes the key. A deleted key's time is kept, so
    that nothing older brings it back.
    """

    def add(self, state: Json | None, row: Mapping[str, Any], position: RecordPosition) -> Json:
        """Return the newer one of the state and the row."""
        place = [row[_AT], position.partition, position.offset]
        if state is not None and state[:3] >= place:
            return state
        return [*place, position.timestamp_ms, row.get(_KEPT)]

    def render(self, state: Json) -> Json | None:
        """Return the row's time and text; None for a deleted key."""
        *_, time_ms, kept = state
        return None if kept is None else {"time": time_ms, "value": kept}


def newest(frame: DataFrame, by: str) -> DataFrame:
    """Return a store's rows: of each key that with the greatest value of the column `by` so far.

    `by` is a time, a date or a number. Equal ones are ordered by source partition and offset, so that a batch that
    runs again gives the same. A row with null in `by` becomes a dead letter, `invalid_time`. An entry keeps the
    `timestamp` of its row. The time of a key stays in Spark's state for good, also when the key is deleted.

    Raises:
        ConfigurationError: a column is missing, or `by` has another type.

    """
    missing = [name for name in (by, *ORIGIN) if name not in frame.columns]
    if missing:
        raise ConfigurationError(
            f"newest_by={by!r} needs the columns {', '.join(missing)}: take a frame of events, which has those of its "
            "source, and not an aggregate"
        )
    order = _order(by, frame.schema[by].dataType)
    judged = refuse(frame, (order.isNull(), DeadLetterReason.INVALID_TIME, f"{by} is null, or no number"))
    is_live = F.col(REASON).isNull()
    events = judged.select(
        *ORIGIN,
        *REFUSAL,
        F.when(is_live, order).alias(_AT),
        F.when(is_live, F.base64(F.col(VALUE).cast("binary"))).alias(_KEPT),
    )
    rows = aggregate(events, Newest())
    entry = F.from_json(F.col(VALUE).cast("string"), _ENTRY)
    is_entry = F.col(REASON).isNull() & F.col(VALUE).isNotNull()
    return rows.withColumns(
        {
            TIMESTAMP: F.when(is_entry, F.timestamp_millis(entry["time"])).otherwise(F.col(TIMESTAMP)),
            VALUE: F.when(is_entry, F.unbase64(entry["value"])).otherwise(F.col(VALUE)),
        }
    ).select(*ORIGIN, *REFUSAL)


def _order(by: str, kind: DataType) -> Column:
    """Return a column's values as numbers that have their order; null where there is none."""
    column = F.col(by)
    if isinstance(kind, TimestampType):
        return F.unix_micros(column)
    if isinstance(kind, TimestampNTZType):
        return F.unix_micros(column.cast("timestamp"))
    if isinstance(kind, DateType):
        return F.unix_date(column)
    if isinstance(kind, IntegralType):
        return column.cast("bigint")
    if isinstance(kind, FractionalType):
        number = column.cast("double")
        return F.when(F.abs(number) < math.inf, number)  # NaN is larger than all others
    raise ConfigurationError(f"newest_by={by!r} is a column of {kind.simpleString()}: take a time, a date or a number")
