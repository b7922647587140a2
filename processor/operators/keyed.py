"""Rows that share a key meet their table row and, if wanted, an aggregate: the logic of the Python state operators.

Spark's own joins can't say "the row as known when the event came": a stream-stream join would also match events
with rows that came later. So both are brought together by key, and replayed in order against the kept row.

One operator does the join and the aggregate that groups by the same key, since each operator has a shuffle and worker
processes of its own.

The programs are pure: Arrow tables in, Arrow tables out. They work on the columns of many keys at once, since Python
that touches each row costs more than all that Spark does with it; only what an aggregator must see becomes objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from processor.operators.aggregators import Aggregator, Json, Selective
from processor.operators.json_text import compact_json
from processor.operators.order import Flags, Numbers, Order, Position, Positions, by_time
from processor.rows import DETAIL, KEY, OFFSET, PARTITION, REASON, TOPIC, VALUE

GROUP: Final = "group"
"""The key's bytes; null for dead letters, and for events that have no key to be joined by."""
KIND: Final = "kind"
TIME: Final = "time_us"
"""A row's timestamp, in epoch microseconds."""
PLACE: Final = (TIME, PARTITION, OFFSET)
LETTER: Final = (KEY, VALUE, TOPIC, *PLACE, REASON, DETAIL)
"""What a dead letter is made of. An event has it too, as it may become one; a table's row only if it is one."""

ROWS: Final = "rows"
"""The state with the tables' rows: by group, the row's columns."""
AGGREGATES: Final = "aggregates"
"""The state with the aggregates: by group, JSON text."""
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


class Kind(IntEnum):
    """What a row is."""

    ROW = 0
    """A table's row."""
    DELETE = 1
    """A table's row that deletes."""
    EVENT = 2
    """A stream's event."""
    DEAD_LETTER = 3
    """Refused before: passes through."""


@dataclass(frozen=True)
class Meeting:
    """Which row each event met.

    Attributes:
        rows: those of earlier batches and of this one; None: there are none.
        met: by event, the number of the row among `rows`, -1 for none.
        kept: what is to be kept of them, None where that stays as it is.

    """

    rows: pa.Table | None
    met: Numbers
    kept: pa.Table | None = None

    @property
    def column_names(self) -> list[str]:
        """The rows' own columns."""
        return [] if self.rows is None else [name for name in self.rows.column_names if name != GROUP]

    def column(self, name: str, events: Numbers | None = None) -> pa.ChunkedArray | None:
        """Return a column of the rows that events met, all or those with these numbers; null where there was none."""
        if self.rows is None:
            return None
        met = self.met if events is None else self.met[events]
        return self.rows[name].take(pa.array(met, mask=met < 0))


def meet(events: pa.Table, changes: pa.Table | None, kept: pa.Table | None, order: Order) -> Meeting:
    """Let a batch's events meet the rows that earlier batches have left, and the batch's changes of them.

    `changes` are a table's rows and deletes: GROUP, KIND, PLACE, and the row's columns; `kept` has GROUP and the row's
    columns.
    """
    count = events.num_rows
    found = (
        np.full(count, -1) if kept is None else _numbers(pc.index_in(events[GROUP], kept[GROUP].combine_chunks()), -1)
    )
    if changes is None or not changes.num_rows:
        return Meeting(kept, found)
    changed = changes.drop_columns([KIND, *PLACE])
    rows = changed if kept is None else _after(kept, changed)
    of_change = np.arange(changes.num_rows) + (rows.num_rows - changes.num_rows)
    of_change[_numbers(changes[KIND]) == Kind.DELETE] = -1

    both = pa.concat_tables([each.select([GROUP, *PLACE]) for each in (events, changes)])
    groups = _codes(both[GROUP])
    is_event = np.arange(both.num_rows) < count
    ordered = order(groups, positions(both), is_event)
    # By place in the order: where the group begins, where its last change so far is, and which row that left.
    begins, place = _begins(groups[ordered]), np.arange(both.num_rows)
    last_change = np.maximum.accumulate(np.where(is_event[ordered], -1, place))
    is_changed = last_change >= np.maximum.accumulate(np.where(begins, place, 0))
    current = np.concatenate([found, of_change])[ordered][np.where(is_changed, last_change, place)]

    met = np.empty(both.num_rows, dtype=np.int64)
    met[ordered] = current
    left = current[np.append(begins[1:], True) & is_changed]
    after = rows.take(pa.array(left[left >= 0]))
    return Meeting(rows, met[:count], after if kept is None else _after(_without(kept, changes[GROUP]), after))


@dataclass(frozen=True)
class JoinProgram:
    """Puts out a bucket's events with the rows they met.

    Attributes:
        order: in which rows apply.
        reason: of the dead letter that an event becomes which meets no row; None: it goes on without.
        detail: of that dead letter.

    """

    order: Order
    reason: str | None = None
    detail: str | None = None

    @property
    def states(self) -> tuple[str, ...]:
        """Names of what is kept."""
        return (ROWS,)

    def run(self, sides: Mapping[int, pa.Table], states: States) -> tuple[list[pa.Table], States]:
        """Return the stream's events (side 0) with what they met of the table (side 1), and the states that changed."""
        events, changes, letters = _apart(sides)
        meeting = meet(events, changes, states.get(ROWS), self.order)
        changed = {} if meeting.kept is None else {ROWS: meeting.kept}
        judged = self.refuse(events, self.meets_nothing(events, meeting)).drop_columns([GROUP, KIND])
        for name in meeting.column_names:
            judged = judged.append_column(name, meeting.column(name))
        return [*letters, judged], changed

    def meets_nothing(self, events: pa.Table, meeting: Meeting) -> Flags:
        """Tell which events become dead letters, for want of a row."""
        return (meeting.met < 0) & _is_event(events) & (self.reason is not None)

    def refuse(self, events: pa.Table, refused: Flags) -> pa.Table:
        """Return the events with the verdict on some of them."""
        if not refused.any():
            return events
        for name, text in ((REASON, self.reason), (DETAIL, self.detail)):
            judged = pc.if_else(pa.array(refused), pa.scalar(text, pa.string()), events[name])
            events = events.set_column(events.column_names.index(name), name, judged)
        return events


@dataclass(frozen=True)
class AggregateProgram:
    """Puts out what an aggregator makes of a bucket's events, as a store's records beside dead letters.

    Attributes:
        aggregator: gets each event, with the row it met, in order.
        fields: the columns that make the row that it sees -> their names in it, None for JSON text of several. Later
            ones are stronger.
        join: how events meet their rows first; None: they need none.
        record_cache: put out a key's value once, as it is in the end; else after each event that changed it.

    """

    aggregator: Aggregator
    fields: Mapping[str, str | None]
    join: JoinProgram | None = None
    record_cache: bool = True

    @property
    def states(self) -> tuple[str, ...]:
        """Names of what is kept."""
        return (AGGREGATES,) if self.join is None else (ROWS, AGGREGATES)

    def run(self, sides: Mapping[int, pa.Table], states: States) -> tuple[list[pa.Table], States]:
        """Return records and dead letters, with the columns of LETTER, and the states that changed."""
        events, changes, out = _apart(sides)
        order = by_time if self.join is None else self.join.order
        meeting = meet(events, changes, states.get(ROWS), order)
        changed = {} if meeting.kept is None else {ROWS: meeting.kept}
        is_live = _is_event(events)
        if self.join is not None:
            refused = self.join.meets_nothing(events, meeting)
            events, is_live = self.join.refuse(events, refused), is_live & ~refused
        if not is_live.all():
            out.append(events.select(LETTER).filter(pa.array(~is_live)))
        live = np.flatnonzero(is_live)
        if len(live):
            records, aggregates = self._aggregated(events, meeting, live, states.get(AGGREGATES))
            out.append(records)
            if aggregates is not None:
                changed[AGGREGATES] = aggregates
        return out, changed

    def _aggregated(
        self, events: pa.Table, meeting: Meeting, live: Numbers, kept: pa.Table | None
    ) -> tuple[pa.Table, pa.Table | None]:
        """Return the records of the live events, and the aggregates to keep, None where they stay as they are."""
        groups, places = _codes(events[GROUP])[live], positions(events).at(live)
        ordered = by_time(groups, places, np.ones(len(live), dtype=np.bool_))
        live, groups, places = live[ordered], groups[ordered], places.at(ordered)
        latest_ms = np.zeros(groups[-1] + 1, dtype=np.int64)
        np.maximum.at(latest_ms, groups, places.timestamps_ms)
        rows = _Rows(events, meeting, self.fields)
        if self.record_cache and isinstance(self.aggregator, Selective):
            wanted = self.aggregator.relevant(groups, lambda name: rows.numbers(name, live))
            live, groups, places = live[wanted], groups[wanted], places.at(wanted)

        begins = np.flatnonzero(_begins(groups))
        keys = events[GROUP].take(pa.array(live[begins])).to_pylist()
        bounds = [*begins.tolist(), len(live)]
        applied = list(zip(rows.as_json(live), places.each(), strict=True))
        fold = _Fold(self.aggregator, _texts(kept), record_cache=self.record_cache)
        for key, (begin, end), time_ms in zip(keys, pairwise(bounds), latest_ms[groups[begins]].tolist(), strict=True):
            fold.apply(key, applied[begin:end], time_ms)
        return fold.records(), fold.kept(kept)


@dataclass(frozen=True)
class _Rows:
    """What an aggregator sees of events and of the rows they met."""

    events: pa.Table
    meeting: Meeting
    fields: Mapping[str, str | None]

    def as_json(self, numbers: Numbers) -> list[dict[str, Any]]:
        """Return the rows of these events, without null columns."""
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
        """Return a field of these events if all have it, from one column and as a number; else None."""
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
        # Where nothing is lost by the way through numpy, it takes a tenth of the time.
        is_plain = pa.types.is_string(column.type) or (_is_number(column.type) and not column.null_count)
        values: list[Any] = column.to_numpy().tolist() if is_plain else column.to_pylist()
        return values

    def _column(self, name: str, numbers: Numbers) -> pa.ChunkedArray | None:
        if name in self.events.column_names:
            return self.events[name].take(pa.array(numbers))
        return self.meeting.column(name, numbers)


class _Fold:
    """Applies an aggregator to key after key."""

    def __init__(self, aggregator: Aggregator, before: Mapping[bytes, str], *, record_cache: bool) -> None:
        self._aggregator, self._before, self._record_cache = aggregator, before, record_cache
        self._is_selective = isinstance(aggregator, Selective)
        self._after: dict[bytes, str | None] = {}
        self._records: list[tuple[bytes, bytes | None, int]] = []

    def apply(self, key: bytes, rows: Iterable[tuple[Mapping[str, Any], Position]], latest_ms: int) -> None:
        """Apply a key's rows; `latest_ms` is the time of what is put out once."""
        before = self._before.get(key)
        text, known = before, None if before is None else json.loads(before)
        state = known
        for row, position in rows:
            state = self._aggregator.add(state, row, position)
            if not self._record_cache:
                text = self._put_out_change(key, text, state, position.timestamp_ms)
        if self._record_cache and not (self._is_selective and state is known):
            text = self._put_out_change(key, text, state, latest_ms)
        if text != before:
            self._after[key] = text

    def records(self) -> pa.Table:
        """Return what to put out."""
        keys, values, times = ([record[place] for record in self._records] for place in range(3))
        columns = [pa.array(keys, pa.binary()), pa.array(values, pa.binary()), pa.array(times, pa.int64())]
        return pa.table(dict(zip((KEY, VALUE, TIME), [*columns[:2], pc.multiply(columns[2], _MS)], strict=True)))

    def kept(self, before: pa.Table | None) -> pa.Table | None:
        """Return the aggregates to keep, None where they stay as they are."""
        if not self._after:
            return None
        changed = pa.table([list(self._after), list(self._after.values())], schema=_AGGREGATES_TYPE)
        after = changed.filter(pc.is_valid(changed[_AGGREGATE]))
        return after if before is None else _after(_without(before, changed[GROUP]), after)

    def _put_out_change(self, key: bytes, before: str | None, state: Json | None, time_ms: int) -> str | None:
        """Put a state's value out if it isn't what was put out last; return its text."""
        text = None if state is None else _ENCODER.encode(state)
        if text != before:
            value = None if state is None else self._aggregator.render(state)
            self._records.append((key, None if value is None else compact_json(value).encode(), time_ms))
        return text


def without_letters(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return a table's rows and deletes, and its dead letters with the columns of LETTER."""
    is_letter = pc.equal(rows[KIND], Kind.DEAD_LETTER.value)
    return rows.filter(pc.invert(is_letter)), rows.filter(is_letter).select(LETTER)


def positions(table: pa.Table) -> Positions:
    """Return where a table's rows stand."""
    times, partitions, offsets = (_numbers(table[name]) for name in PLACE)
    return Positions(times // _MS, partitions, offsets)


def _apart(sides: Mapping[int, pa.Table]) -> tuple[pa.Table, pa.Table | None, list[pa.Table]]:
    """Return events, what is changed in the table, and the table's dead letters."""
    events, changes = sides.get(0, _NO_EVENTS), sides.get(1)
    if changes is None:
        return events, None, []
    live, letters = without_letters(changes)
    kept = [name for name in live.column_names if name in (GROUP, KIND, *PLACE) or name not in LETTER]
    return events, live.select(kept), [letters] * bool(letters.num_rows)


def _is_event(events: pa.Table) -> Flags:
    return np.equal(_numbers(events[KIND]), Kind.EVENT)


def _without(kept: pa.Table, groups: pa.ChunkedArray) -> pa.Table:
    return kept.filter(pc.invert(pc.is_in(kept[GROUP], groups.combine_chunks())))


def _after(kept: pa.Table, more: pa.Table) -> pa.Table:
    """Return both; a column that what was kept didn't have yet is null in it."""
    return pa.concat_tables([kept, more], promote_options="default")


def _texts(kept: pa.Table | None) -> dict[bytes, str]:
    return {} if kept is None else dict(zip(*(column.to_pylist() for column in kept.columns), strict=True))


def _codes(groups: pa.ChunkedArray) -> Numbers:
    """Number the groups; -1 for none."""
    return _numbers(groups.combine_chunks().dictionary_encode().indices, -1)


def _begins(groups: Numbers) -> Flags:
    """Tell which rows, sorted by group, are their group's first."""
    return np.not_equal(np.diff(groups, prepend=groups[:1] - 1), 0)


def _numbers(column: pa.Array | pa.ChunkedArray, null: int = 0) -> Numbers:
    known = pc.fill_null(column, null) if column.null_count else column
    numbers: Numbers = known.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
