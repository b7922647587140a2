"""How the rows of a store's frame become record keys: the columns each kind needs, and the layouts of its keys.

Layouts are Kafka Streams' (`statehouse.composite`), built by Spark's own expressions: a Python call a row would cost
more than everything else a native operator does with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.rows import (
    KEY,
    OFFSET,
    PARTITION,
    REASON,
    SEQUENCE,
    SESSION_END,
    SESSION_START,
    SESSION_WINDOW,
    TIMESTAMP,
    TOPIC,
    VALUE,
    WINDOW,
    WINDOW_START,
    DeadLetterReason,
)
from statehouse.errors import ConfigurationError
from statehouse.topology import KEY_VALUE, SESSION, VERSIONED
from statehouse.topology import WINDOW as WINDOW_KIND

TOPIC_OUTPUT: Final = "topic"
"""The kind of an output that is no store's: any record may stand in it, one without a key too."""

Columns = Mapping[str, Column]
"""A frame's columns by name, or what stands in their place for one output."""

# Types as `DataFrame.dtypes` says them.
_SERIALIZED: Final = ("string", "binary", "void")
_INTEGRAL: Final = ("int", "bigint")
_SPARK_TIME: Final = ("timestamp",)
_SPARK_WINDOW: Final = ("struct<start:timestamp,end:timestamp>",)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A condition under which a row can't be a record, and what its dead letter says."""

    condition: Column
    reason: DeadLetterReason
    detail: str


@dataclass(frozen=True, slots=True)
class Layout:
    """A store's frame, as far as keys and times go.

    Attributes:
        kind: the store's; a custom kind's rows are those of a key-value store.
        retain_duplicates: window stores: `sequence` tells the values of a window apart.
        inactivity_gap_ms: session stores: what Spark's `session_window` adds to the last event's time.

    """

    kind: str = KEY_VALUE
    retain_duplicates: bool = False
    inactivity_gap_ms: int = 0

    def check(self, store: str, types: Mapping[str, str]) -> None:
        """Check a frame's columns, given as Spark's `DataFrame.dtypes` says them.

        Raises:
            ConfigurationError: one is absent or of another type; names the store and the columns.

        """
        needed = self._needed(types)
        absent = [name for name in needed if name not in types]
        if absent:
            raise ConfigurationError(f"{store!r}: its frame lacks {', '.join(absent)}; it has {', '.join(types)}")
        for name, allowed in needed.items():
            if allowed and types[name] not in allowed:
                raise ConfigurationError(
                    f"store {store!r}: {name} of its frame is {types[name]}, it must be {' or '.join(allowed)}"
                )
        if self.kind == WINDOW_KIND and not self.retain_duplicates and SEQUENCE in types:
            raise ConfigurationError(
                f"store {store!r}: its frame has {SEQUENCE}, which means nothing without retain_duplicates=True"
            )
        if self.takes_sparks_sessions(types) and self.inactivity_gap_ms <= 0:
            raise ConfigurationError(
                f"store {store!r}: say the inactivity_gap of its {SESSION_WINDOW}: Spark's ends lie that far after a "
                "session's last event, a session store's are the event's own time"
            )

    def _needed(self, have: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
        """Return the columns a frame must have, with their types if these matter."""
        needed: dict[str, tuple[str, ...]] = {KEY: _SERIALIZED, VALUE: _SERIALIZED}
        if REASON in have:
            needed |= dict.fromkeys((TOPIC, PARTITION, OFFSET), ())
        if self.kind == WINDOW_KIND:
            in_struct = _in_struct(have, WINDOW, WINDOW_START)
            needed |= {WINDOW: _SPARK_WINDOW} if in_struct else {WINDOW_START: _SPARK_TIME}
            needed |= {SEQUENCE: _INTEGRAL} if self.retain_duplicates else {}
        elif self.kind == SESSION:
            bounds = {SESSION_START: _SPARK_TIME, SESSION_END: _SPARK_TIME}
            needed |= {SESSION_WINDOW: _SPARK_WINDOW} if self.takes_sparks_sessions(have) else bounds
        elif self.kind == VERSIONED:
            needed |= {TIMESTAMP: _SPARK_TIME}
        return needed

    def takes_sparks_sessions(self, columns: Collection[str]) -> bool:
        """Whether the bounds of its sessions stand in the struct of Spark's `session_window`."""
        return self.kind == SESSION and _in_struct(columns, SESSION_WINDOW, SESSION_START)

    def suffix(self, columns: Columns) -> Column | None:
        """Return what follows the key in the record's key, None where that is the key."""
        if self.kind == WINDOW_KIND:
            return F.concat(_big_endian(_window_start(columns), 8), _big_endian(self._sequence(columns), 4))
        if self.kind == SESSION:
            start, end = self._session(columns)
            return F.concat(_big_endian(end, 8), _big_endian(start, 8))
        return None

    def refusals(self, columns: Columns) -> list[Refusal]:
        """Return why rows of this kind are refused."""
        if self.kind == TOPIC_OUTPUT:
            return []
        null_key = Refusal(columns[KEY].isNull(), DeadLetterReason.NULL_KEY, "a store's row without a key")
        return [null_key, *self._refusals_of_times(columns)]

    def _refusals_of_times(self, columns: Columns) -> list[Refusal]:
        if self.kind == WINDOW_KIND:
            start, sequence = _window_start(columns), self._sequence(columns)
            return [
                Refusal(_not_within(start, 0), DeadLetterReason.INVALID_TIME, "no window start, or one before 1970"),
                Refusal(
                    _not_within(sequence, 0, 2**31 - 1),
                    DeadLetterReason.INVALID_SEQUENCE,
                    "no sequence number, or not one from 0 to 2147483647",
                ),
            ]
        if self.kind == SESSION:
            start, end = self._session(columns)
            detail = "no session start or end, one before 1970, or an end before the start"
            return [Refusal(_not_within(start, 0) | _not_within(end, start), DeadLetterReason.INVALID_TIME, detail)]
        if self.kind == VERSIONED:
            # To Kafka's client library 0 means "now".
            time, detail = F.unix_millis(columns[TIMESTAMP]), "a version without a timestamp after 1970 began"
            return [Refusal(_not_within(time, 1), DeadLetterReason.INVALID_TIME, detail)]
        return []

    def _sequence(self, columns: Columns) -> Column:
        return columns[SEQUENCE].cast("bigint") if self.retain_duplicates else F.lit(0)

    def _session(self, columns: Columns) -> tuple[Column, Column]:
        if not self.takes_sparks_sessions(columns):
            return F.unix_millis(columns[SESSION_START]), F.unix_millis(columns[SESSION_END])
        bounds = columns[SESSION_WINDOW]
        return F.unix_millis(bounds["start"]), F.unix_millis(bounds["end"]) - self.inactivity_gap_ms


def _in_struct(columns: Collection[str], struct: str, bound: str) -> bool:
    """Whether the bounds stand in Spark's struct; columns of their own are stronger."""
    return struct in columns and bound not in columns


def _window_start(columns: Columns) -> Column:
    in_struct = _in_struct(columns, WINDOW, WINDOW_START)
    return F.unix_millis(columns[WINDOW]["start"] if in_struct else columns[WINDOW_START])


def _not_within(number: Column, least: int | Column, most: int | None = None) -> Column:
    """Whether a number is outside of bounds, or absent."""
    outside = number < least
    if most is not None:
        outside |= number > most
    return F.coalesce(outside, F.lit(True))


def _big_endian(number: Column, size: int) -> Column:
    """Lay out a number that isn't negative; a cast would say it shorter, but not in Spark's ANSI mode."""
    return F.unhex(F.lpad(F.hex(number), 2 * size, "0"))
