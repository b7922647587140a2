"""Serves states whose keys have a window or a session as window and session stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import StructType, TimestampType

from processor.attach.columns.state_values import STATE_KEY, STATE_VALUE
from processor.rows import KEY, SESSION_END, SESSION_START, VALUE, WINDOW_START
from processor.sink.layouts import FrameLayout
from statehouse.contract.topology import KEY_VALUE, SESSION, WINDOW
from statehouse.errors import ConfigurationError

SESSION_START_IN_STATE: Final = "sessionStartTime"
"""What Spark's session windows have in their key; their end is in the value."""
_MILLI: Final = 1_000
"""Microseconds."""
_WINDOW_SUFFIX: Final = 12
"""Bytes after the key: the window's start, and a sequence (Kafka Streams' WindowKeySchema)."""
_SESSION_SUFFIX: Final = 16
"""Bytes after the key: the session's end and start (Kafka Streams' SessionKeySchema)."""


class EntryKind(StrEnum):
    """What entries have in addition to their key; the values are kinds of stores."""

    PLAIN = KEY_VALUE
    WINDOW = WINDOW
    SESSION = SESSION


@dataclass(frozen=True, slots=True)
class TimedKey:
    """A state's key, and its time apart.

    Attributes:
        shape: what the time is.
        names: the other columns of the key.
        start: where the window or the session begins.
        end: where it ends, as Spark has it: after the last moment that belongs to it.

    """

    shape: EntryKind
    names: Sequence[str]
    start: Column | None = None
    end: Column | None = None

    def record_key(self, key: Column) -> Column:
        """Return the record key: the key's bytes, and those of its time."""
        if self.start is None or self.end is None:
            return key
        times = {WINDOW_START: self.start, SESSION_START: self.start, SESSION_END: self.end}
        suffix = FrameLayout(self.shape.value).suffix(times)
        return F.concat(key, suffix)


def timed_key(shape: EntryKind, key: StructType, value: StructType) -> TimedKey:
    """Return the parts of a state's key, for a store of this shape.

    Raises:
        ConfigurationError: the state has no such time, or several.

    """
    if shape is EntryKind.PLAIN:
        return TimedKey(shape, key.names)
    place, of = (STATE_KEY, key) if shape is EntryKind.WINDOW else (STATE_VALUE, value)
    found = [each.name for each in of.fields if is_span(each.dataType)]
    if len(found) != 1:
        raise ConfigurationError(
            f"--as {shape}: the state has {'no' if not found else 'more than one'} {shape} "
            f"({', '.join(found) or ', '.join(key.names)}): leave it out, the times are part of the key then"
        )
    names = [name for name in key.names if name not in {found[0], SESSION_START_IN_STATE}]
    span = F.col(f"{place}.`{found[0]}`")
    return TimedKey(shape, names, span.getField("start"), span.getField("end"))


def apart(shape: EntryKind) -> list[Column]:
    """Return the columns of a store's frame that a record key in KEY has: the key, and its times."""
    key = F.col(KEY)
    if shape is EntryKind.PLAIN:
        return [key]
    suffix = _WINDOW_SUFFIX if shape is EntryKind.WINDOW else _SESSION_SUFFIX
    plain = F.substring(key, F.lit(1), F.length(key) - suffix).alias(KEY)

    def time(before_end: int) -> Column:
        data = F.substring(key, F.length(key) - before_end + 1, F.lit(8))
        return F.timestamp_millis(F.conv(F.hex(data), 16, -10).cast("bigint"))

    if shape is EntryKind.WINDOW:
        return [plain, time(_WINDOW_SUFFIX).alias(WINDOW_START)]
    return [plain, time(_SESSION_SUFFIX).alias(SESSION_END), time(8).alias(SESSION_START)]


def frame_of(session: SparkSession, shape: EntryKind) -> DataFrame:
    """Return a frame without rows that has the columns of a store of this shape."""
    return session.createDataFrame([], f"{KEY} binary, {VALUE} binary").select(*apart(shape), VALUE)


def window_ms(frame: DataFrame, key: StructType) -> int | None:
    """Return how long the windows in the keys of a frame are, in milliseconds; None if it has no row.

    Raises:
        ConfigurationError: there are no windows, or their lengths differ.

    """
    (span,) = [each.name for each in key.fields if is_span(each.dataType)]
    window = F.col(f"{STATE_KEY}.`{span}`")
    start = F.unix_micros(window.getField("start"))
    length = F.unix_micros(window.getField("end")) - start
    fraction = F.max(F.greatest(start % _MILLI, length % _MILLI))
    found = frame.agg(F.min(length), F.max(length), fraction).head()
    shortest, longest, finer = (None, None, None) if found is None else (found[0], found[1], found[2])
    if shortest != longest or finer:
        raise ConfigurationError(
            f"--as window: the state's windows are of {shortest} to {longest} microseconds, a window store has one "
            "length, and times of whole milliseconds: leave --as out, the times are part of the key then"
        )
    return None if shortest is None else int(shortest) // _MILLI


def is_span(kind: object) -> bool:
    """Whether a type is the one that Spark's windows and sessions have."""
    return (
        isinstance(kind, StructType)
        and kind.names == ["start", "end"]
        and all(isinstance(each.dataType, TimestampType) for each in kind.fields)
    )
