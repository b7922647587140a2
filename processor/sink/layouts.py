"""Makes record keys from the rows of a store's frame: required columns and key layouts for each kind of store.

The layouts are those of Kafka Streams (`statehouse.keys.composite`). Spark's own expressions build them, because a
Python call per row would cost more than all other work of a native operator.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.rows import (
    KEY,
    OFFSET,
    PARTITION,
    REASON,
    RECORD_TIME,
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
    remedy_for,
)
from statehouse.contract.topology import KEY_VALUE, SESSION, VERSIONED
from statehouse.contract.topology import WINDOW as WINDOW_KIND
from statehouse.errors import ConfigurationError

TOPIC_OUTPUT: Final = "topic"
"""The kind of an output without a store: it takes any record, also without a key."""

FUTURE_BOUND_MS: Final = 7 * 86_400_000
"""More than clocks are wrong by, and little enough that the expiry of a store with a longer retention stays sound."""

Columns = Mapping[str, Column]
"""The columns of a frame by name, with an output's replacements applied."""

# Type names as in `DataFrame.dtypes`.
_SERIALIZED: Final = ("string", "binary", "void")
_INTEGRAL: Final = ("int", "bigint")
_SPARK_TIME: Final = ("timestamp",)
_SPARK_WINDOW: Final = ("struct<start:timestamp,end:timestamp>",)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A condition under which a row can't be a record, with the reason and detail of its dead letter."""

    condition: Column
    reason: DeadLetterReason
    detail: str


@dataclass(frozen=True, slots=True)
class FrameLayout:
    """The keys and times in a store's frame.

    Attributes:
        kind: the kind of the store; rows of a custom kind are like those of a key-value store.
        retain_duplicates: for window stores: `sequence` distinguishes the values of a window.
        inactivity_gap_ms: for session stores: the time that Spark's `session_window` adds to the last event's time.
        future_bound_ms: how far ahead a window's start, a session's end or a version may be.

    """

    kind: str = KEY_VALUE
    retain_duplicates: bool = False
    inactivity_gap_ms: int = 0
    future_bound_ms: int = FUTURE_BOUND_MS

    def check(self, store: str, types: Mapping[str, str]) -> None:
        """Check the columns of a frame, given with type names as in Spark's `DataFrame.dtypes`.

        Raises:
            ConfigurationError: a column is absent or has the wrong type; the text names the store and the columns.

        """
        needed = self._needed(types)
        absent = [name for name in needed if name not in types]
        if absent:
            raise ConfigurationError(
                f"{store!r}: its frame lacks {', '.join(absent)}; it has {', '.join(types)}: {remedy_for(absent[0])}"
            )
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
        """Return the required columns -> their allowed types, empty if any type will do."""
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
        """Whether the struct of Spark's `session_window` has the bounds of the sessions."""
        return self.kind == SESSION and _in_struct(columns, SESSION_WINDOW, SESSION_START)

    def suffix(self, columns: Columns) -> Column | None:
        """Return the bytes after the key in the record's key; None if the record's key is the plain key."""
        if self.kind == WINDOW_KIND:
            return F.concat(_big_endian(_window_start(columns), 8), _big_endian(self._sequence(columns), 4))
        if self.kind == SESSION:
            start, end = self._session(columns)
            return F.concat(_big_endian(end, 8), _big_endian(start, 8))
        return None

    def refusals(self, columns: Columns) -> list[Refusal]:
        """Return the conditions under which rows of this kind are refused."""
        if self.kind == TOPIC_OUTPUT:
            return []
        null_key = Refusal(columns[KEY].isNull(), DeadLetterReason.NULL_KEY, "a store's row without a key")
        return [null_key, *self._refusals_of_times(columns)]

    def _refusals_of_times(self, columns: Columns) -> list[Refusal]:
        if self.kind == WINDOW_KIND:
            start, sequence = _window_start(columns), self._sequence(columns)
            return [
                Refusal(_not_within(start, 0), DeadLetterReason.INVALID_TIME, "no window start, or one before 1970"),
                self._future(start, columns, "a window that starts"),
                Refusal(
                    _not_within(sequence, 0, 2**31 - 1),
                    DeadLetterReason.INVALID_SEQUENCE,
                    "no sequence number, or not one from 0 to 2147483647",
                ),
            ]
        if self.kind == SESSION:
            start, end = self._session(columns)
            detail = "no session start or end, one before 1970, or an end before the start"
            return [
                Refusal(_not_within(start, 0) | _not_within(end, start), DeadLetterReason.INVALID_TIME, detail),
                self._future(end, columns, "a session that ends"),
            ]
        if self.kind == VERSIONED:
            # To Kafka's client library 0 means "now".
            time, detail = F.unix_millis(columns[TIMESTAMP]), "a version without a timestamp after 1970 began"
            return [
                Refusal(_not_within(time, 1), DeadLetterReason.INVALID_TIME, detail),
                self._future(time, columns, "a version"),
            ]
        return []

    def _future(self, time: Column, columns: Columns, what: str) -> Refusal:
        """Refuse what is far ahead: by it, nodes would expire all that they hold.

        What it is ahead of is the record's own timestamp, or the time of the batch if that is earlier, or if the frame
        has no `record_time`, as after an aggregate. A later run only takes more.
        """
        now = F.unix_millis(F.current_timestamp())
        if RECORD_TIME in columns:
            now = F.least(F.unix_millis(columns[RECORD_TIME]), now)
        bound = timedelta(milliseconds=self.future_bound_ms)
        detail = f"{what} more than future_bound ({bound}) after the record's own timestamp, or the time of its batch"
        return Refusal(
            F.coalesce(time > now + self.future_bound_ms, F.lit(False)), DeadLetterReason.FUTURE_TIME, detail
        )

    def _sequence(self, columns: Columns) -> Column:
        return columns[SEQUENCE].cast("bigint") if self.retain_duplicates else F.lit(0)

    def _session(self, columns: Columns) -> tuple[Column, Column]:
        if not self.takes_sparks_sessions(columns):
            return F.unix_millis(columns[SESSION_START]), F.unix_millis(columns[SESSION_END])
        bounds = columns[SESSION_WINDOW]
        return F.unix_millis(bounds["start"]), F.unix_millis(bounds["end"]) - self.inactivity_gap_ms


def _in_struct(columns: Collection[str], struct: str, bound: str) -> bool:
    """Whether Spark's struct has the bounds; separate columns take precedence."""
    return struct in columns and bound not in columns


def _window_start(columns: Columns) -> Column:
    in_struct = _in_struct(columns, WINDOW, WINDOW_START)
    return F.unix_millis(columns[WINDOW]["start"] if in_struct else columns[WINDOW_START])


def _not_within(number: Column, least: int | Column, most: int | None = None) -> Column:
    """Whether a number is outside the bounds, or null."""
    outside = number < least
    if most is not None:
        outside |= number > most
    return F.coalesce(outside, F.lit(True))


def _big_endian(number: Column, size: int) -> Column:
    """Return the big-endian bytes of a number that isn't negative; Spark's ANSI mode forbids the shorter cast."""
    return F.unhex(F.lpad(F.hex(number), 2 * size, "0"))
