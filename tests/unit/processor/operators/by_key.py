"""What the operators' programs do, said of one key and row by row: the model that they are held against."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from processor.operators.aggregators import Aggregator
from processor.operators.order import RecordPosition, by_time, tables_first
from processor.operators.workers.json_text import compact_json
from processor.operators.workers.keyed import (
    AGGREGATES,
    GROUP,
    KIND,
    ROWS,
    TIME,
    AggregateProgram,
    JoinProgram,
    RowKind,
)
from processor.operators.workers.raised import OnError
from processor.rows import DETAIL, KEY, OFFSET, PARTITION, REASON, TOPIC, VALUE

MISSING = "missing"
DETAIL_OF_MISSING = "not in table"
FIELDS = {"event_score": "score", "event_who": "who", "row_name": "name"}


class Input(NamedTuple):
    """A row of a stream (`score`, `who`) or a table (`name`)."""

    key: str | None
    kind: RowKind
    time_ms: int
    offset: int
    score: float | None = None
    who: str | None = None
    name: str | None = None
    partition: int = 0

    @property
    def position(self) -> RecordPosition:
        return RecordPosition(self.time_ms, self.partition, self.offset)


@dataclass
class KeyState:
    """The state of a key; a row is there if it is a tuple, with its name."""

    row: tuple[str | None] | None = None
    aggregate: str | None = None


@dataclass
class Output:
    """What came out, and what is kept: joined events (offset, name), dead letters (offset, reason), records."""

    joined: list[tuple[int, str | None]] = field(default_factory=list)
    letters: list[tuple[int, str | None]] = field(default_factory=list)
    records: list[tuple[str, Any, int]] = field(default_factory=list)
    states: dict[str, KeyState] = field(default_factory=dict)

    def sorted(self) -> Output:
        """Return it with what has no order among keys in one."""
        states = {key: state for key, state in self.states.items() if state != KeyState()}
        records = sorted(self.records, key=lambda record: record[0])
        return Output(sorted(self.joined, key=str), sorted(self.letters, key=str), records, states)


@dataclass(frozen=True)
class Model:
    """A join of a stream with a table, or with an aggregator what it makes of the joined events.

    `is_inner`: events without a row are dead letters. `has_table`: false for an aggregate of the events alone.
    """

    is_global: bool = False
    is_inner: bool = True
    has_table: bool = True
    aggregator: Aggregator | None = None
    record_cache: bool = True
    on_error: OnError = OnError.FAIL

    @property
    def program(self) -> JoinProgram | AggregateProgram:
        """The program that does this."""
        order = tables_first if self.is_global else by_time
        join = JoinProgram(order, MISSING, DETAIL_OF_MISSING) if self.is_inner else JoinProgram(order)
        if self.aggregator is None:
            return join
        return AggregateProgram(
            self.aggregator, FIELDS, join if self.has_table else None, self.record_cache, self.on_error
        )

    def run(self, rows: Iterable[Input], states: dict[str, KeyState] | None = None) -> Output:
        """Apply a batch key by key, row by row."""
        out = Output(states=dict(states or {}))
        by_key: dict[str | None, list[Input]] = {}
        for row in rows:
            if row.kind is RowKind.DEAD_LETTER:
                out.letters.append((row.offset, "refused"))
            else:
                by_key.setdefault(row.key, []).append(row)
        for key, of_key in by_key.items():
            self._run_key(key, sorted(of_key, key=self._order), out)
        return out.sorted()

    def _order(self, row: Input) -> tuple[int, ...]:
        time_ms, partition, offset = row.position
        is_event = row.kind is RowKind.EVENT
        if not self.is_global:
            return (time_ms, is_event, partition, offset)
        return (1, time_ms, partition, offset) if is_event else (0, partition, offset)

    def _run_key(self, key: str | None, rows: Sequence[Input], out: Output) -> None:
        state = KeyState() if key is None else out.states.get(key, KeyState())
        row, text, latest = state.row, state.aggregate, None
        value = None if text is None else json.loads(text)
        records: list[tuple[str, Any, int]] = []
        for each in rows:
            if each.kind is not RowKind.EVENT:
                row = (each.name,) if each.kind is RowKind.ROW else None
            elif row is None and self.is_inner and self.has_table:
                out.letters.append((each.offset, MISSING))
            elif self.aggregator is None:
                out.joined.append((each.offset, row and row[0]))
            else:
                seen = {"score": each.score, "who": each.who, "name": row and row[0]}
                present = {name: item for name, item in seen.items() if item is not None}
                value = self.aggregator.add(value, present, each.position)
                latest = max(latest or 0, each.time_ms)
                if not self.record_cache:
                    text = self._put_out(key, value, text, each.time_ms, records)
        if latest is not None:
            text = self._put_out(key, value, text, latest, records)
        out.records += records
        if key is not None:
            out.states[key] = KeyState(row, text)

    def _put_out(self, key: str | None, value: Any, before: str | None, time_ms: int, records: list[Any]) -> str | None:
        text = None if value is None else json.dumps(value, separators=(",", ":"))
        if text != before:
            assert self.aggregator is not None
            rendered = None if value is None else self.aggregator.render(value)
            records.append((key, None if rendered is None else compact_json(rendered), time_ms))
        return text


def run_program(model: Model, rows: Sequence[Input], states: dict[str, KeyState] | None = None) -> Output:
    """Run the model's program on the same rows and states."""
    sides = {0: [row for row in rows if row.kind is RowKind.EVENT or row.score is not None]}
    sides[1] = [row for row in rows if row not in sides[0]]
    tables = {0: _events(sides[0]), 1: _changes(sides[1])}
    before = states or {}
    kept = {ROWS: _kept_rows(before), AGGREGATES: _kept_aggregates(before)}
    program = model.program
    put_out, changed = program.run(
        {side: table for side, table in tables.items() if table.num_rows},
        {name: table for name, table in kept.items() if table.num_rows and name in program.states},
    )
    out = Output(states=_states(dict(kept) | dict(changed)))
    for row in (row for table in put_out for row in table.to_pylist()):
        if row.get(REASON) is not None:
            out.letters.append((row[OFFSET], row[REASON]))
        elif model.aggregator is None:
            out.joined.append((row[OFFSET], row.get("row_name")))
        else:
            text = row[VALUE]
            out.records.append((row[KEY].decode(), None if text is None else text.decode(), row[TIME] // 1000))
    return out.sorted()


def _common(rows: Sequence[Input]) -> dict[str, pa.Array]:
    letters = ["refused" if row.kind is RowKind.DEAD_LETTER else None for row in rows]
    groups = [None if row.kind is RowKind.DEAD_LETTER or row.key is None else row.key.encode() for row in rows]
    return {
        GROUP: pa.array(groups, pa.binary()),
        KIND: pa.array([row.kind.value for row in rows], pa.int8()),
        KEY: pa.array([None for _ in rows], pa.binary()),
        VALUE: pa.array([None for _ in rows], pa.binary()),
        TOPIC: pa.array(["topic" for _ in rows]),
        # Within a millisecond the order follows partition and offset.
        TIME: pa.array([row.time_ms * 1000 + 999 - row.offset % 1000 for row in rows], pa.int64()),
        PARTITION: pa.array([row.partition for row in rows], pa.int32()),
        OFFSET: pa.array([row.offset for row in rows], pa.int64()),
        REASON: pa.array(letters, pa.string()),
        DETAIL: pa.array(letters, pa.string()),
    }


def _events(rows: Sequence[Input]) -> pa.Table:
    own = {
        "event_score": pa.array([row.score for row in rows], pa.float64()),
        "event_who": pa.array([row.who for row in rows], pa.string()),
    }
    return pa.table(_common(rows) | own)


def _changes(rows: Sequence[Input]) -> pa.Table:
    return pa.table(_common(rows) | {"row_name": pa.array([row.name for row in rows], pa.string())})


def _kept_rows(states: dict[str, KeyState]) -> pa.Table:
    there = [(key.encode(), state.row[0]) for key, state in states.items() if state.row is not None]
    keys, names = ([each[place] for each in there] for place in (0, 1))
    return pa.table({GROUP: pa.array(keys, pa.binary()), "row_name": pa.array(names, pa.string())})


def _kept_aggregates(states: dict[str, KeyState]) -> pa.Table:
    there = [(key.encode(), state.aggregate) for key, state in states.items() if state.aggregate is not None]
    keys, texts = ([each[place] for each in there] for place in (0, 1))
    return pa.table({GROUP: pa.array(keys, pa.binary()), "aggregate": pa.array(texts, pa.string())})


def _states(kept: dict[str, pa.Table]) -> dict[str, KeyState]:
    states: dict[str, KeyState] = {}
    for row in kept[ROWS].to_pylist():
        states.setdefault(row[GROUP].decode(), KeyState()).row = (row["row_name"],)
    for row in kept[AGGREGATES].to_pylist():
        states.setdefault(row[GROUP].decode(), KeyState()).aggregate = row["aggregate"]
    return states
