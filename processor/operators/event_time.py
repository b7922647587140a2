"""Event time from a field of the record, or else the stream time of its source partition.

`read_event_time` is native Spark and keeps no state. `fill_event_time` keeps one number per source partition; a batch
costs one call per partition, however many keys it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import LongType, StructField, StructType

from processor.operators.fields.values import iso_time
from processor.operators.refusals import refuse, require
from processor.rows import OFFSET, PARTITION, REASON, RECORD_TIME, TIMESTAMP, TOPIC, DeadLetterReason
from processor.spark.state_api import OurStatefulProcessor, StatefulProcessorHandle
from statehouse.errors import ConfigurationError

Times = NDArray[np.int64]
"""Epoch milliseconds; MISSING where there is no time."""

MISSING: Final = -1

_TEXT: Final = "_time_text"
_EVENT_MS: Final = "_event_ms"
_RECORD_MS: Final = "_record_ms"
_HOUR: Final = timedelta(hours=1)
_SHOWN_MAX: Final = 80


def read_event_time(frame: DataFrame, text: str = TIMESTAMP, *, future_bound: timedelta = _HOUR) -> DataFrame:
    """Set `timestamp` from the ISO 8601 text in the column `text`; null stays null.

    The text is a date, a time of day to the second, and optionally a fraction and a zone (default: UTC), as in
    2026-01-31T09:02:00.5+01:00. Digits after the milliseconds are ignored, because Kafka's timestamps have none.

    The frame must have the record's own timestamp as `record_time`: rename the source's `timestamp` to that before you
    parse a field named `timestamp`. A row is refused if its text has another form (`unparsable_time`), or is a time
    before 1970 (`negative_time`) or more than `future_bound` after the record's own timestamp (`future_time`): such an
    event would close every earlier window. The clock plays no part, so a replay refuses the same rows. A refused row
    gets its record's timestamp.

    Raises:
        ConfigurationError: `future_bound` is negative, or the frame has no `record_time`.

    """
    if future_bound < timedelta(0):
        raise ConfigurationError(f"future_bound={future_bound} can't be negative")
    require(frame, RECORD_TIME, *({text} & {TIMESTAMP}))
    found, event, record = F.col(_TEXT), F.col(_EVENT_MS), F.unix_millis(RECORD_TIME)
    # One projection per step, so that a column that is used several times is computed once.
    read = frame.withColumn(_TEXT, F.col(text))
    read = read.withColumn(_EVENT_MS, F.unix_millis(iso_time(found)))
    shown = F.substring(found, 1, _SHOWN_MAX)
    ahead = f" is more than {future_bound} after the record's own timestamp"
    judged = refuse(
        read,
        (
            found.isNotNull() & event.isNull(),
            DeadLetterReason.UNPARSABLE_TIME,
            F.concat(shown, F.lit(" is no ISO 8601 time")),
        ),
        (event < 0, DeadLetterReason.NEGATIVE_TIME, F.concat(shown, F.lit(" is before 1970"))),
        (
            event > record + future_bound // timedelta(milliseconds=1),
            DeadLetterReason.FUTURE_TIME,
            F.concat(shown, F.lit(ahead)),
        ),
    )
    timed = F.when(F.col(REASON).isNull(), F.timestamp_millis(event)).otherwise(F.col(RECORD_TIME))
    return judged.withColumn(TIMESTAMP, timed).drop(_TEXT, _EVENT_MS)


def fill_event_time(frame: DataFrame) -> DataFrame:
    """Give rows without `timestamp` the stream time of their source partition (see `fill`); drop `record_time`.

    The frame must have `topic`, `partition`, `offset`, `timestamp` and `record_time`. Further columns cost time,
    because every row passes through Python: select only what you need. Rows with a `reason` pass unchanged.

    Raises:
        ConfigurationError: the frame lacks one of them.

    """
    require(frame, TOPIC, PARTITION, OFFSET, TIMESTAMP, RECORD_TIME)
    times = {_EVENT_MS: F.coalesce(F.unix_millis(TIMESTAMP), F.lit(MISSING)), _RECORD_MS: F.unix_millis(RECORD_TIME)}
    rows = frame.withColumns(times).drop(TIMESTAMP, RECORD_TIME)
    filled = rows.groupBy(TOPIC, PARTITION).transformWithStateInPandas(
        _StreamTime(rows.columns), rows.drop(_RECORD_MS).schema, outputMode="Append", timeMode="None"
    )
    return filled.withColumn(TIMESTAMP, F.timestamp_millis(_EVENT_MS)).drop(_EVENT_MS)


def fill(event_times: Times, record_times: Times, stream_time: int) -> tuple[Times, int]:
    """Return the event times of a partition, in offset order, with no time MISSING, and its new stream time.

    Stream time is the largest event time so far, MISSING before the first, as in Kafka Streams'
    UsePartitionTimeOnInvalidTimestamp. An event without a time, before any stream time, takes its record's timestamp.
    """
    if not len(event_times):
        return event_times, stream_time
    known = event_times.copy()
    if stream_time == MISSING and known[0] == MISSING:
        known[0] = record_times[0]
    largest = np.maximum.accumulate(np.maximum(known, stream_time))
    return np.where(known == MISSING, largest, known), int(largest[-1])


class _StreamTime(OurStatefulProcessor):
    """Runs `fill` on a source partition's rows of a batch."""

    def __init__(self, columns: list[str]) -> None:
        self._columns = columns

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._largest = handle.getValueState("stream_time", StructType([StructField("ms", LongType())]))

    def handleInputRows(  # noqa: N802 - Spark's names
        self,
        key: tuple[str, int],  # noqa: ARG002
        rows: Iterator[pd.DataFrame],
        timerValues: object,  # noqa: N803, ARG002
    ) -> Iterable[pd.DataFrame]:
        # All rows of the batch together: the shuffle has lost their order.
        frame = pd.concat(list(rows), ignore_index=True)
        frame.columns = pd.Index(self._columns)  # Spark names computed columns by number, as "_4"
        if REASON in frame:
            is_refused = frame[REASON].notna()
            if is_refused.any():
                yield frame[is_refused].drop(columns=_RECORD_MS)
                frame = frame[~is_refused]
        if frame.empty:
            return
        frame = frame.sort_values(OFFSET)
        state: Any = self._largest.get()
        before = MISSING if state is None else int(state[0])
        event_times, after = fill(frame[_EVENT_MS].to_numpy(), frame[_RECORD_MS].to_numpy(), before)
        if after != before:
            self._largest.update((after,))
        frame[_EVENT_MS] = event_times
        yield frame.drop(columns=_RECORD_MS)
