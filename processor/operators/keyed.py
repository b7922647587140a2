"""Rows that share a key meet their table row and, if wanted, an aggregate: the logic of the Python state operator.

Spark's own joins can't say "the row as known when the event came": a stream-stream join would also match events
with rows that came later. So both are united, grouped by the key, and replayed in order against the kept row.

One operator does the join and the aggregate that groups by the same key, since a call of Python state costs about
0.1 ms a key and batch whatever it does, and each operator a shuffle and a worker process.
`KeyProgram` is pure: rows and state in, rows and state out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from processor.operators.aggregators import Aggregator
from processor.operators.json_text import compact_json
from processor.operators.order import Order, Position
from processor.rows import DETAIL, KEY, OFFSET, PARTITION, REASON, TIMESTAMP, TOPIC, VALUE

GROUP: Final = "_group"
IS_TABLE: Final = "_is_table"
DELETES: Final = "_deletes"

# What an aggregate puts out; the first four are null for a store's record, and set for a dead letter.
AGGREGATE_COLUMNS: Final = (TOPIC, PARTITION, OFFSET, REASON, DETAIL, KEY, VALUE, TIMESTAMP)

InRow = Sequence[Any]
OutRow = tuple[Any, ...]


@dataclass(slots=True)
class KeyState:
    """What is kept for a key: the table's row (None: not in the table) and the aggregate as JSON text."""

    row: tuple[Any, ...] | None = None
    aggregate: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to keep."""
        return self.row is None and self.aggregate is None


@dataclass(frozen=True)
class KeyProgram:
    """What happens with a key's rows of a micro-batch.

    Attributes:
        columns: names of the incoming rows' columns, in order.
        table_columns: which of them a table's row carries; events get them filled in.
        missing: dead-letter reason of an event whose key isn't in the table.
        table_name: for the dead letter's detail.
        order: sort key of a row.
        aggregator: None to put out each joined event, else the aggregate's value where it changed.

    """

    columns: tuple[str, ...]
    table_columns: tuple[str, ...]
    missing: str
    table_name: str
    order: Callable[..., Order]
    aggregator: Aggregator | None = None

    @property
    def out_columns(self) -> tuple[str, ...]:
        """Names of the columns put out, in order."""
        if self.aggregator is not None:
            return AGGREGATE_COLUMNS
        return tuple(name for name in self.columns if name not in (GROUP, IS_TABLE, DELETES))

    def run(
        self, key: str, rows: Iterable[InRow], load: Callable[[], KeyState]
    ) -> tuple[list[OutRow], KeyState | None]:
        """Return the rows to put out and the new state; None where it stays as it is.

        `load` is called once at most: a key of dead letters alone needs no state.
        """
        at = {name: index for index, name in enumerate(self.columns)}
        out_at = [at[name] for name in self.out_columns]
        reason, is_table = at[REASON], at[IS_TABLE]
        out: list[OutRow] = []
        live: list[tuple[Order, Position, InRow]] = []
        for row in rows:
            if row[reason] is not None:
                out.append(tuple(row[index] for index in out_at))
                continue
            position = Position(row[at[TIMESTAMP]], row[at[PARTITION]], row[at[OFFSET]])
            live.append((self.order(position, is_table=row[is_table]), position, row))
        if not live:
            return out, None
        live.sort(key=lambda item: item[0])
        replay = _Replay(self, at, load())
        for _, position, row in live:
            replay.apply(position, row)
        return out + replay.finish(key), replay.new_state


class _Replay:
    """A key's rows applied one by one."""

    def __init__(self, program: KeyProgram, at: dict[str, int], state: KeyState) -> None:
        self._program, self._at, self._before = program, at, state
        self._row = state.row
        self._aggregate = None if state.aggregate is None else json.loads(state.aggregate)
        self._text = state.aggregate
        self._event_time_ms: int | None = None
        self._out: list[OutRow] = []
        self._table_at = [at[name] for name in program.table_columns]
        self._out_at = [at[name] for name in program.out_columns]

    def apply(self, position: Position, row: InRow) -> None:
        program, at = self._program, self._at
        if row[at[IS_TABLE]]:
            self._row = None if row[at[DELETES]] else tuple(row[index] for index in self._table_at)
            return
        filled = list(row)
        if self._row is None:
            filled[at[REASON]] = program.missing
            filled[at[DETAIL]] = f"{program.table_name} has no row {row[at[GROUP]]!r}"
            self._put(filled)
            return
        for index, value in zip(self._table_at, self._row, strict=True):
            filled[index] = value
        if program.aggregator is None:
            self._put(filled)
            return
        named = dict(zip(program.columns, filled, strict=True))
        self._aggregate = program.aggregator.add(self._aggregate, named, position)
        self._event_time_ms = max(self._event_time_ms or 0, position.timestamp_ms)

    def finish(self, key: str) -> list[OutRow]:
        """Return what was put out, and the aggregate's value if it changed: one record a key and batch."""
        aggregator = self._program.aggregator
        if aggregator is None or self._event_time_ms is None:
            return self._out
        self._text = json.dumps(self._aggregate, separators=(",", ":"))
        if self._text != self._before.aggregate:
            value = aggregator.render(self._aggregate)
            text = None if value is None else compact_json(value).encode()
            self._out.append((None, None, None, None, None, key.encode(), text, self._event_time_ms))
        return self._out

    @property
    def new_state(self) -> KeyState | None:
        after = KeyState(self._row, self._text)
        return None if after == self._before else after

    def _put(self, row: Sequence[Any]) -> None:
        self._out.append(tuple(row[index] for index in self._out_at))
