"""Sessions that can be read while they are open: Kafka Streams' `windowedBy(SessionWindows).aggregate(...)`.

Spark's own `session_window` emits a session once, when it has closed. This operator gives a row for each session that
a batch changed. When a session grows or two become one, the bounds that are no more get rows without a value. These
delete them in the store, in the same transaction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.types import LongType, StructField, StructType

from processor.operators.aggregators import Aggregator
from processor.operators.joins import records_or_letters, rows_by_key, without_null_keys
from processor.operators.refusals import refuse
from processor.operators.workers.buckets import LETTER_TYPE, apply_by_key
from processor.operators.workers.json_text import compact_json
from processor.operators.workers.keyed import GROUP, TIME, Arrived, States, events_in_order, name_event, refused_events
from processor.operators.workers.raised import OnError, said_of
from processor.operators.workers.session_fold import Merge, SessionFold, SessionState
from processor.rows import KEY, SESSION_END, SESSION_START, TIMESTAMP, VALUE, DeadLetterReason

LATE: Final = "late"
"""The reason of a dead letter: the event's session was closed."""
_SESSIONS: Final = "sessions"
"""The state with the sessions of each key: GROUP, JSON text, and the end of the last one."""
_CLOCK: Final = "clock"
"""The state with the stream time."""
_LAST_MS: Final = "last_ms"
_SESSIONS_TYPE: Final = pa.schema([(GROUP, pa.binary()), (_SESSIONS, pa.string()), (_LAST_MS, pa.int64())])
_START_MS: Final = "start_ms"
_END_MS: Final = "end_ms"
_RECORDS_TYPE: Final = pa.schema(
    [(KEY, pa.binary()), (VALUE, pa.binary()), (TIME, pa.int64()), (_START_MS, pa.int64()), (_END_MS, pa.int64())]
)
_OUT_TYPE: Final = StructType(
    [*LETTER_TYPE.fields, StructField(_START_MS, LongType()), StructField(_END_MS, LongType())]
)
_MS: Final = timedelta(milliseconds=1)
_Bounds = tuple[int, int]


def aggregate_sessions(
    events: DataFrame,
    aggregator: Aggregator,
    gap: timedelta,
    *,
    merge: Merge,
    grace: timedelta = timedelta(0),
    record_cache: bool = True,
    on_error: str = OnError.FAIL,
) -> DataFrame:
    """Aggregate the events of each session; return a session store's rows, where null deletes a session.

    A session of a key ends where no event follows within `gap`. `merge` makes one state of those of two sessions that
    an event joins, the earlier one's first. The events of a batch apply by timestamp, then by partition and offset.
    Stream time is the largest event time that the operator has seen of the keys that share a bucket with this one (32
    buckets, by hash). An event whose session ended before stream time less the gap and the `grace` becomes a dead
    letter, `late`. The rest is as in `aggregate`: columns, dead letters, `record_cache` and `on_error`.

    Raises:
        ValueError: the gap is not at least a millisecond, the grace is negative, or `on_error` is unknown.

    """
    if gap < _MS or grace < timedelta(0):
        raise ValueError(f"gap={gap} must be at least a millisecond, and grace={grace} not negative")
    timed = refuse(
        without_null_keys(events, KEY),
        (F.col(TIMESTAMP).isNull(), DeadLetterReason.INVALID_TIME, "an event of a session needs its time"),
    )
    rows, own = rows_by_key(timed)
    fold = SessionFold(aggregator, merge, gap // _MS, grace // _MS)
    put_out = apply_by_key([rows], SessionProgram(fold, own.names, record_cache, OnError(on_error)), _OUT_TYPE)
    bounds = (F.timestamp_millis(at).alias(name) for at, name in ((_START_MS, SESSION_START), (_END_MS, SESSION_END)))
    return put_out.select(*records_or_letters(record_cache=record_cache), *bounds)


@dataclass(frozen=True)
class SessionProgram:
    """Applies the events of a bucket to the sessions of their keys; puts out records and dead letters.

    Attributes:
        fold: how an event changes sessions.
        fields: column -> its name in the row that the aggregator gets; None: JSON text of several fields.
        record_cache: True: put out what a batch changed; False: what each event changed.
        on_error: what becomes of an event for which people's functions raise an exception.

    """

    fold: SessionFold
    fields: Mapping[str, str | None]
    record_cache: bool = True
    on_error: OnError = OnError.FAIL

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the kept states."""
        return (_SESSIONS, _CLOCK)

    def run(self, sides: Mapping[int, pa.Table], states: States) -> tuple[list[pa.Table], States]:
        """Return records and dead letters, and the states that changed."""
        arrived = events_in_order(sides, self.fields)
        kept, clock = states.get(_SESSIONS), states.get(_CLOCK)
        before = {} if kept is None else dict(zip(kept[GROUP].to_pylist(), kept[_SESSIONS].to_pylist(), strict=True))
        began_ms = 0 if clock is None else clock[_CLOCK][0].as_py()
        now_ms = began_ms
        records: list[tuple[bytes, bytes | None, int, int, int]] = []
        out = [*arrived.letters]
        late: list[int] = []
        after: dict[bytes, list[SessionState]] = {}
        for key, rows in arrived.by_key:
            sessions = _sessions(before.get(key))
            known, of_key = _texts(sessions), _Records(key, self)
            for row in rows:
                now_ms = max(now_ms, row.position.timestamp_ms)
                if not self.record_cache:
                    known = _texts(sessions)
                changed, letters = self._applied(sessions, row, began_ms, arrived.events)
                out += letters
                if changed is None:
                    late.append(row.number)
                    continue
                sessions = changed
                if not self.record_cache:
                    of_key.put_differences(known, sessions)
            if self.record_cache:
                of_key.put_differences(known, sessions)
            records += of_key.records
            after[key] = sessions
        if late:
            out.append(refused_events(arrived.events, late, LATE, "its session had been closed by later events"))
        if records:
            out.append(pa.table([list(column) for column in zip(*records, strict=True)], schema=_RECORDS_TYPE))
        return out, self._kept(kept, after, began_ms, now_ms)

    def _applied(
        self, sessions: list[SessionState], row: Arrived, began_ms: int, events: pa.Table
    ) -> tuple[list[SessionState] | None, list[pa.Table]]:
        """Return the sessions after an event, None if it is late, and its dead letter if people's functions raise."""
        refuses = self.on_error is OnError.DEAD_LETTER
        unchanged = json.dumps(sessions) if refuses else None
        try:
            changed = self.fold.apply(sessions, row.fields, row.position, began_ms)
            if refuses:
                for each in changed or ():
                    if each.start_ms <= row.position.timestamp_ms <= each.end_ms:
                        compact_json([self.fold.aggregator.render(each.state), json.dumps(each.state)])
        except Exception as error:
            if not refuses:
                name_event(error, events, row.number)
                raise
            letter = refused_events(events, [row.number], DeadLetterReason.RAISED, said_of(error))
            return _sessions(unchanged), [letter]
        return changed, []

    def _kept(
        self, kept: pa.Table | None, after: Mapping[bytes, list[SessionState]], began_ms: int, now_ms: int
    ) -> States:
        """Return the sessions that may still change, and the stream time; nothing if no event came."""
        if not after:
            return {}
        closed_ms = self.fold.closed_before_ms(now_ms)
        open_now = {key: [each for each in found if each.end_ms >= closed_ms] for key, found in after.items()}
        rows = [(key, json.dumps(found), found[-1].end_ms) for key, found in open_now.items() if found]
        columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[], [], []]
        sessions = pa.table(columns, schema=_SESSIONS_TYPE)
        if kept is not None:
            others = kept.filter(pc.invert(pc.is_in(kept[GROUP], pa.array(list(after), pa.binary()))))
            if now_ms > began_ms:
                others = others.filter(pc.greater_equal(others[_LAST_MS], closed_ms))
            sessions = pa.concat_tables([others, sessions])
        return {_SESSIONS: sessions, _CLOCK: pa.table({_CLOCK: pa.array([now_ms], pa.int64())})}


class _Records:
    """The records of a key."""

    def __init__(self, key: bytes, program: SessionProgram) -> None:
        self._key, self._aggregator = key, program.fold.aggregator
        self.records: list[tuple[bytes, bytes | None, int, int, int]] = []

    def put_differences(self, known: Mapping[_Bounds, str], sessions: list[SessionState]) -> None:
        """Put out the sessions that differ from what is known, after deletes of those that are no more."""
        now = {(each.start_ms, each.end_ms): each for each in sessions}
        for bounds in sorted(known.keys() - now.keys()):
            self._put(bounds, None)
        for bounds, each in now.items():
            if json.dumps(each.state) != known.get(bounds):
                value = self._aggregator.render(each.state)
                self._put(bounds, None if value is None else compact_json(value).encode())

    def _put(self, bounds: _Bounds, value: bytes | None) -> None:
        start_ms, end_ms = bounds
        self.records.append((self._key, value, end_ms * 1000, start_ms, end_ms))


def _sessions(text: str | None) -> list[SessionState]:
    return [] if text is None else [SessionState(*each) for each in json.loads(text)]


def _texts(sessions: list[SessionState]) -> dict[_Bounds, str]:
    return {(each.start_ms, each.end_ms): json.dumps(each.state) for each in sessions}
