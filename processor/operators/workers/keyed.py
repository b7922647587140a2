"""Joins events with the table row of their key, and aggregates them: the logic of the Python state operators.

Spark's own joins can't express "the row as known when the event came": a stream-stream join also matches events with
rows that came later. So events and rows are grouped by key, and replayed in order against the kept row.

One operator does the join and the aggregate by the same key, because each operator has its own shuffle and worker
processes.

The programs are pure: Arrow tables in, Arrow tables out. They work on columns of many keys together, because Python
code per row costs more than all of Spark's work on it; only the rows that an aggregator needs become objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from processor.operators.aggregators import Aggregator, Json, Selective
from processor.operators.order import Flags, Numbers, Order, RecordPosition, RecordPositions, by_time
from processor.operators.workers.json_text import compact_json
from processor.operators.workers.raised import OnError, name_record, said_of
from processor.rows import DETAIL, KEY, OFFSET, PARTITION, REASON, TOPIC, VALUE, DeadLetterReason

GROUP: Final = "group"
"""The bytes of the key; null for dead letters, and for events without a key to join by."""
KIND: Final = "kind"
TIME: Final = "time_us"
"""The timestamp of a row, in epoch microseconds."""
PLACE: Final = (TIME, PARTITION, OFFSET)
LETTER: Final = (KEY, VALUE, TOPIC, *PLACE, REASON, DETAIL)
"""The columns of a dead letter. Events have them too, because they may become dead letters; table rows don't."""

ROWS: Final = "rows"
"""The state with the rows of the table: GROUP, and the row's columns."""
AGGREGATES: Final = "aggregates"
"""The state with the aggregates: GROUP, and JSON text."""
_AGGREGATE: Final = "aggregate"
_AGGREGATES_TYPE: Final = pa.schema([(GROUP, pa.binary()), (_AGGREGATE, pa.string())])
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))
_MS: Final = 1000

States = Mapping[str, pa.Table]
_NO_EVENTS: Final = pa.schema(
    [
        (GROUP, pa.binary()),
        (KIND, pa.int8()),
        (TIME, pa.int64()),
        (PARTITION, pa.int32()),
        (OFFSET, pa.int64()),
        (KEY, pa.binary()),
        (VALUE, pa.binary()),
        (TOPIC, pa.string()),
        (REASON, pa.string()),
        (DETAIL, pa.string()),
    ]
).empty_table()


class RowKind(IntEnum):
    """What a row is."""

    ROW = 0
    """A row of a table."""
    DELETE = 1
    """A row of a table with a null value: it deletes its key."""
    EVENT = 2
    """An event of a stream."""
    DEAD_LETTER = 3
    """Refused by an earlier step; passes through."""


@dataclass(frozen=True)
class RowMatches:
    """The table row that each event met.

    Attributes:
        rows: the rows of earlier batches and of this one; None if there are none.
        row_numbers: for each event, the number of its row in `rows`, -1 for none.
        kept: the rows to keep; None if the kept rows don't change.

    """

    rows: pa.Table | None
    row_numbers: Numbers
    kept: pa.Table | None = None

    @property
    def column_names(self) -> list[str]:
        """The rows' own columns."""
        return [] if self.rows is None else [name for name in self.rows.column_names if name != GROUP]

    def column(self, name: str, events: Numbers | None = None) -> pa.ChunkedArray | None:
        """Return a column of the rows that all events, or the numbered ones, met; null for an event without a row."""
        if self.rows is None:
            return None
        row_numbers = self.row_numbers if events is None else self.row_numbers[events]
        return self.rows[name].take(pa.array(row_numbers, mask=row_numbers < 0))


def match_rows(events: pa.Table, changes: pa.Table | None, kept: pa.Table | None, order: Order) -> RowMatches:
    """Find the row that each event meets: a kept row of earlier batches, or a change of this batch.

    `changes` holds rows and deletes of a table: GROUP, KIND, PLACE, and the row's columns. `kept` has GROUP and the
    row's columns.
    """
    count = events.num_rows
    found = (
        np.full(count, -1) if kept is None else _numbers(pc.index_in(events[GROUP], kept[GROUP].combine_chunks()), -1)
    )
    if changes is None or not changes.num_rows:
        return RowMatches(kept, found)
    changed = changes.drop_columns([KIND, *PLACE])
    rows = changed if kept is None else _after(kept, changed)
    of_change = np.arange(changes.num_rows) + (rows.num_rows - changes.num_rows)
    of_change[_numbers(changes[KIND]) == RowKind.DELETE] = -1

    both = pa.concat_tables([each.select([GROUP, *PLACE]) for each in (events, changes)])
    groups = _codes(both[GROUP])
    is_event = np.arange(both.num_rows) < count
    ordered = order(groups, positions(both), is_event)
    # For each place in the order: where its group begins, where the group's last change is, and which row that left.
    begins, place = _begins(groups[ordered]), np.arange(both.num_rows)
    last_change = np.maximum.accumulate(np.where(is_event[ordered], -1, place))
    is_changed = last_change >= np.maximum.accumulate(np.where(begins, place, 0))
    current = np.concatenate([found, of_change])[ordered][np.where(is_changed, last_change, place)]

    row_numbers = np.empty(both.num_rows, dtype=np.int64)
    row_numbers[ordered] = current
    left = current[np.append(begins[1:], True) & is_changed]
    after = rows.take(pa.array(left[left >= 0]))
    return RowMatches(
        rows, row_numbers[:count], after if kept is None else _after(_without(kept, changes[GROUP]), after)
    )


@dataclass(frozen=True)
class JoinProgram:
    """Puts out a bucket's events with the rows they met.

    Attributes:
        order: the order in which rows and events apply.
        reason: dead-letter reason for an event that meets no row; None: such an event passes without a row.
        detail: the detail of that dead letter.

    """

    order: Order
    reason: str | None = None
    detail: str | None = None

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the kept states."""
        return (ROWS,)

    def run(self, sides: Mapping[int, pa.Table], states: States) -> tuple[list[pa.Table], States]:
        """Return the stream's events (side 0) with the table's rows (side 1) they met, and the states that changed."""
        events, changes, letters = _apart(sides)
        matches = match_rows(events, changes, states.get(ROWS), self.order)
        changed = {} if matches.kept is None else {ROWS: matches.kept}
        judged = self.refuse(events, self.matches_nothing(events, matches)).drop_columns([GROUP, KIND])
        for name in matches.column_names:
            judged = judged.append_column(name, matches.column(name))
        return [*letters, judged], changed

    def matches_nothing(self, events: pa.Table, matches: RowMatches) -> Flags:
        """Flag the events that become dead letters because they met no row."""
        return (matches.row_numbers < 0) & _is_event(events) & (self.reason is not None)

    def refuse(self, events: pa.Table, refused: Flags) -> pa.Table:
        """Return the events; the flagged ones are refused."""
        return _refused(events, refused, self.reason, self.detail) if refused.any() else events


@dataclass(frozen=True)
class AggregateProgram:
    """Aggregates the events of a bucket; puts out a store's records, and dead letters.

    Attributes:
        aggregator: gets each event, with the row it met, in order.
        fields: column -> its name in the row that the aggregator gets; None: the column is JSON text of several
            fields. For equal names the last one wins.
        join: the join before the aggregate; None: there is none.
        record_cache: True: put out a key's final value once; False: put out its value after each event that changed it.
        on_error: what becomes of an event for which the aggregator raises an exception.

    """

    aggregator: Aggregator
    fields: Mapping[str, str | None]
    join: JoinProgram | None = None
    record_cache: bool = True
    on_error: OnError = OnError.FAIL

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the kept states."""
        return (AGGREGATES,) if self.join is None else (ROWS, AGGREGATES)

    def run(self, sides: Mapping[int, pa.Table], states: States) -> tuple[list[pa.Table], States]:
        """Return records and dead letters, with the columns of LETTER, and the states that changed."""
        events, changes, out = _apart(sides)
        order = by_time if self.join is None else self.join.order
        matches = match_rows(events, changes, states.get(ROWS), order)
        changed = {} if matches.kept is None else {ROWS: matches.kept}
        is_live = _is_event(events)
        if self.join is not None:
            refused = self.join.matches_nothing(events, matches)
            events, is_live = self.join.refuse(events, refused), is_live & ~refused
        if not is_live.all():
            out.append(events.select(LETTER).filter(pa.array(~is_live)))
        live = np.flatnonzero(is_live)
        if len(live):
            put_out, aggregates = self._aggregated(events, matches, live, states.get(AGGREGATES))
            out += put_out
            if aggregates is not None:
                changed[AGGREGATES] = aggregates
        return out, changed

    def _aggregated(
        self, events: pa.Table, matches: RowMatches, live: Numbers, kept: pa.Table | None
    ) -> tuple[list[pa.Table], pa.Table | None]:
        """Return what the live events put out, and the aggregates to keep; None if these don't change."""
        live, groups, places = _in_order(events, live)
        latest_ms = np.zeros(groups[-1] + 1, dtype=np.int64)
        np.maximum.at(latest_ms, groups, places.timestamps_ms)
        rows = _Rows(events, matches, self.fields)
        if self.record_cache and isinstance(self.aggregator, Selective):
            wanted = self.aggregator.relevant(groups, lambda name: rows.numbers(name, live))
            live, groups, places = live[wanted], groups[wanted], places.at(wanted)

        begins = np.flatnonzero(_begins(groups))
        keys = events[GROUP].take(pa.array(live[begins])).to_pylist()
        bounds = [*begins.tolist(), len(live)]
        applied = list(map(Arrived, rows.as_json(live), places.each(), live.tolist()))
        fold = _Fold(self.aggregator, events, _texts(kept), self.on_error, record_cache=self.record_cache)
        for key, (begin, end), time_ms in zip(keys, pairwise(bounds), latest_ms[groups[begins]].tolist(), strict=True):
            fold.apply(key, applied[begin:end], time_ms)
        return fold.put_out(), fold.kept(kept)


@dataclass(frozen=True)
class _Rows:
    """The rows that an aggregator gets: events with the rows they met."""

    events: pa.Table
    matches: RowMatches
    fields: Mapping[str, str | None]

    def as_json(self, numbers: Numbers) -> list[dict[str, Any]]:
        """Return the rows for these events, without null columns."""
        rows: list[dict[str, Any]] = [{} for _ in numbers]
        for name, field in self.fields.items():
            for row, value in zip(rows, self._objects(name, numbers), strict=True):
                if value is None:
                    continue
                if field is None:
                    row.update(json.loads(value))
                else:
                    row[field] = value
        return rows

    def numbers(self, field: str, numbers: Numbers) -> NDArray[Any] | None:
        """Return a field of these events as numbers; None if an event lacks it or it isn't one numeric column."""
        names = [name for name, own in self.fields.items() if own in (field, None)]
        column = self._column(names[0], numbers) if len(names) == 1 else None
        if column is None or column.null_count or not _is_number(column.type):
            return None
        values: NDArray[Any] = column.to_numpy()
        return values

    def _objects(self, name: str, numbers: Numbers) -> list[Any]:
        column = self._column(name, numbers)
        if column is None:
            return [None] * len(numbers)
        # Through numpy it takes a tenth of the time; only types that lose nothing go that way.
        is_plain = pa.types.is_string(column.type) or (_is_number(column.type) and not column.null_count)
        values: list[Any] = column.to_numpy().tolist() if is_plain else column.to_pylist()
        return values

    def _column(self, name: str, numbers: Numbers) -> pa.ChunkedArray | None:
        if name in self.events.column_names:
            return self.events[name].take(pa.array(numbers))
        return self.matches.column(name, numbers)


class _Fold:
    """Applies an aggregator to one key after another."""

    def __init__(
        self,
        aggregator: Aggregator,
        events: pa.Table,
        before: Mapping[bytes, str],
        on_error: OnError,
        *,
        record_cache: bool,
    ) -> None:
        self._aggregator, self._before, self._record_cache = aggregator, before, record_cache
        self._events, self._refuses = events, on_error is OnError.DEAD_LETTER
        self._is_selective = isinstance(aggregator, Selective)
        self._after: dict[bytes, str | None] = {}
        self._records: list[tuple[bytes, bytes | None, int]] = []
        self._letters: list[pa.Table] = []

    def apply(self, key: bytes, rows: Iterable[Arrived], latest_ms: int) -> None:
        """Apply a key's rows; with `record_cache` its record gets the time `latest_ms`."""
        before = self._before.get(key)
        text, known = before, None if before is None else json.loads(before)
        state = known
        good = before
        for row in rows:
            if self._refuses:
                state, good = self._added_or_refused(state, good, row)
            else:
                state = self._added(state, row)
            if not self._record_cache:
                text = self._put_out_change(key, text, state, row.position.timestamp_ms)
        if self._record_cache and not (self._is_selective and state is known):
            text = self._put_out_change(key, text, state, latest_ms)
        if text != before:
            self._after[key] = text

    def put_out(self) -> list[pa.Table]:
        """Return the records and the dead letters to put out."""
        keys, values, times = ([record[place] for record in self._records] for place in range(3))
        columns = [pa.array(keys, pa.binary()), pa.array(values, pa.binary()), pa.array(times, pa.int64())]
        records = dict(zip((KEY, VALUE, TIME), [*columns[:2], pc.multiply(columns[2], _MS)], strict=True))
        return [pa.table(records), *self._letters]

    def _added(self, state: Json | None, row: Arrived) -> Json | None:
        try:
            return self._aggregator.add(state, row.fields, row.position)
        except Exception as error:
            name_event(error, self._events, row.number)
            raise

    def _added_or_refused(self, state: Json | None, good: str | None, row: Arrived) -> tuple[Json | None, str | None]:
        """Return the state after a row, and its text; `good` is the text of the state before it.

        A row that raises an exception, here or when it is put out, changes nothing.
        """
        try:
            after = self._aggregator.add(state, row.fields, row.position)
            if after is None:
                return None, None
            compact_json(self._aggregator.render(after))
            return after, _ENCODER.encode(after)
        except Exception as error:  # noqa: BLE001 - whatever people's code raises
            self._letters.append(refused_events(self._events, [row.number], DeadLetterReason.RAISED, said_of(error)))
            return None if good is None else json.loads(good), good

    def kept(self, before: pa.Table | None) -> pa.Table | None:
        """Return the aggregates to keep; None if they don't change."""
        if not self._after:
            return None
        changed = pa.table([list(self._after), list(self._after.values())], schema=_AGGREGATES_TYPE)
        after = changed.filter(pc.is_valid(changed[_AGGREGATE]))
        return after if before is None else _after(_without(before, changed[GROUP]), after)

    def _put_out_change(self, key: bytes, before: str | None, state: Json | None, time_ms: int) -> str | None:
        """Put out the value of a state if it differs from the last one put out; return the text of the state."""
        text = None if state is None else _ENCODER.encode(state)
        if text != before:
            value = None if state is None else self._aggregator.render(state)
            self._records.append((key, None if value is None else compact_json(value).encode(), time_ms))
        return text


def name_event(error: Exception, events: pa.Table, number: int) -> None:
    """Note in an exception which of the events was processed."""
    topic, partition, offset = (events[name][number].as_py() for name in (TOPIC, PARTITION, OFFSET))
    name_record(error, topic, partition, offset)


class Arrived(NamedTuple):
    """An event as an aggregator gets it.

    Attributes:
        fields: the row.
        number: its number in the table of events.

    """

    fields: dict[str, Any]
    position: RecordPosition
    number: int


@dataclass(frozen=True, slots=True)
class EventsByKey:
    """A bucket's events, as a program that looks at each of them takes them.

    Attributes:
        events: all of them.
        letters: those that were refused before, with the columns of LETTER.
        by_key: for each key its events in order.

    """

    events: pa.Table
    letters: list[pa.Table]
    by_key: list[tuple[bytes, list[Arrived]]]


def events_in_order(sides: Mapping[int, pa.Table], fields: Mapping[str, str | None]) -> EventsByKey:
    """Return a bucket's events; `fields` are those of `AggregateProgram`."""
    events, _, letters = _apart(sides)
    is_live = _is_event(events)
    if not is_live.all():
        letters = [*letters, events.select(LETTER).filter(pa.array(~is_live))]
    live = np.flatnonzero(is_live)
    if not len(live):
        return EventsByKey(events, letters, [])
    live, groups, places = _in_order(events, live)
    rows = _Rows(events, RowMatches(None, np.full(events.num_rows, -1)), fields).as_json(live)
    begins = np.flatnonzero(_begins(groups))
    keys = events[GROUP].take(pa.array(live[begins])).to_pylist()
    arrived = list(map(Arrived, rows, places.each(), live.tolist()))
    bounds = pairwise([*begins.tolist(), len(live)])
    return EventsByKey(
        events, letters, [(key, arrived[begin:end]) for key, (begin, end) in zip(keys, bounds, strict=True)]
    )


def _in_order(events: pa.Table, live: Numbers) -> tuple[Numbers, Numbers, RecordPositions]:
    """Return the numbered events by group, then by time, with their groups and positions."""
    groups, places = _codes(events[GROUP])[live], positions(events).at(live)
    ordered = by_time(groups, places, np.ones(len(live), dtype=np.bool_))
    return live[ordered], groups[ordered], places.at(ordered)


def refused_events(events: pa.Table, numbers: list[int], reason: str, detail: str) -> pa.Table:
    """Return the numbered events as dead letters."""
    letters = events.select(LETTER).take(pa.array(numbers))
    return _refused(letters, np.ones(len(numbers), dtype=np.bool_), reason, detail)


def _refused(events: pa.Table, flags: Flags, reason: str | None, detail: str | None) -> pa.Table:
    for name, text in ((REASON, reason), (DETAIL, detail)):
        judged = pc.if_else(pa.array(flags), pa.scalar(text, pa.string()), events[name])
        events = events.set_column(events.column_names.index(name), name, judged)
    return events


def without_letters(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Separate the rows and deletes of a table from its dead letters, which get the columns of LETTER."""
    is_letter = pc.equal(rows[KIND], RowKind.DEAD_LETTER.value)
    return rows.filter(pc.invert(is_letter)), rows.filter(is_letter).select(LETTER)


def positions(table: pa.Table) -> RecordPositions:
    """Return the positions of a table's rows."""
    times, partitions, offsets = (_numbers(table[name]) for name in PLACE)
    return RecordPositions(times // _MS, partitions, offsets)


def _apart(sides: Mapping[int, pa.Table]) -> tuple[pa.Table, pa.Table | None, list[pa.Table]]:
    """Return the events, the changes of the table, and the table's dead letters."""
    events, changes = sides.get(0, _NO_EVENTS), sides.get(1)
    if changes is None:
        return events, None, []
    live, letters = without_letters(changes)
    kept = [name for name in live.column_names if name in (GROUP, KIND, *PLACE) or name not in LETTER]
    return events, live.select(kept), [letters] * bool(letters.num_rows)


def _is_event(events: pa.Table) -> Flags:
    return np.equal(_numbers(events[KIND]), RowKind.EVENT)


def _without(kept: pa.Table, groups: pa.ChunkedArray) -> pa.Table:
    return kept.filter(pc.invert(pc.is_in(kept[GROUP], groups.combine_chunks())))


def _after(kept: pa.Table, more: pa.Table) -> pa.Table:
    """Return the kept rows followed by `more`; a new column is null in the kept rows."""
    return pa.concat_tables([kept, more], promote_options="default")


def _texts(kept: pa.Table | None) -> dict[bytes, str]:
    return {} if kept is None else dict(zip(*(column.to_pylist() for column in kept.columns), strict=True))


def _codes(groups: pa.ChunkedArray) -> Numbers:
    """Number the groups; -1 for none."""
    return _numbers(groups.combine_chunks().dictionary_encode().indices, -1)


def _begins(groups: Numbers) -> Flags:
    """Flag the first row of each group; rows are sorted by group."""
    return np.not_equal(np.diff(groups, prepend=groups[:1] - 1), 0)


def _numbers(column: pa.Array | pa.ChunkedArray, null: int = 0) -> Numbers:
    known = pc.fill_null(column, null) if column.null_count else column
    numbers: Numbers = known.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
