"""Rows that share a key meet their table row and, if wanted, an aggregate: the logic of the Python state operator.

Spark's own joins can't say "the row as known when the event came": a stream-stream join would also match events
with rows that came later. So both are united, grouped by the key, and replayed in order against the kept row.

One operator does the join and the aggregate that groups by the same key, since each operator has a shuffle and worker
processes of its own.

Spark hands rows to Python cell by cell, which costs more than all that is done with them. So rows have the few columns
that decide their order, and everything else as one JSON text, packed and unpacked by Spark natively.
`KeyProgram` is pure: rows and state in, rows and state out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from processor.operators.aggregators import Aggregator
from processor.operators.json_text import compact_json
from processor.operators.order import Order, Position
from processor.rows import KEY, OFFSET, PARTITION, TIMESTAMP, VALUE

GROUP: Final = "_group"
KIND: Final = "_kind"
PAYLOAD: Final = "_payload"
IN_COLUMNS: Final = (GROUP, KIND, TIMESTAMP, PARTITION, OFFSET, PAYLOAD)

EVENT: Final = "_event"
ROW: Final = "_row"
MISSING: Final = "_missing"
# What a join puts out: an event, the row it met, or why there was none. Dead letters are events that met none.
JOIN_COLUMNS: Final = (EVENT, ROW, MISSING)
# What an aggregate puts out: a store's record, or an event that is a dead letter.
AGGREGATE_COLUMNS: Final = (KEY, VALUE, TIMESTAMP, EVENT, MISSING)


class Kind(IntEnum):
    """What a row is."""

    ROW = 0
    """A table's row; the payload is its columns."""
    DELETE = 1
    """A table's row that deletes."""
    EVENT = 2
    """A stream's event; the payload is all of it."""
    DEAD_LETTER = 3
    """Refused before: passes through."""
    RIGHT_ROW = 4
    """A row of the second table of a join of tables."""
    RIGHT_DELETE = 5
    """A row of the second table that deletes."""


InRow = tuple[str, int, int, int, int, str]
OutRow = tuple[Any, ...]


@dataclass(slots=True)
class KeyState:
    """What is kept for a key, as JSON text: the table's row (None: not in the table) and the aggregate."""

    row: str | None = None
    aggregate: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to keep."""
        return self.row is None and self.aggregate is None


@dataclass(frozen=True)
class KeyProgram:
    """What happens with a key's rows of a micro-batch.

    Attributes:
        table_name: for the dead letter of an event whose key isn't in the table; None: events need no row of a table.
        order: sort key of a row.
        aggregator: None to put out each joined event, else the aggregate's value where it changed.
        record_cache: put out the aggregate's value once, as it is in the end; else after each event that changed it.

    """

    table_name: str | None
    order: Callable[..., Order]
    aggregator: Aggregator | None = None
    record_cache: bool = True

    @property
    def out_columns(self) -> tuple[str, ...]:
        """Names of the columns put out, in order."""
        return JOIN_COLUMNS if self.aggregator is None else AGGREGATE_COLUMNS

    def run(self, key: str, rows: Iterable[InRow], state: KeyState) -> tuple[list[OutRow], KeyState | None]:
        """Return the rows to put out and the new state; None where it stays as it is."""
        dead: list[str] = []
        live: list[tuple[Order, Kind, Position, str]] = []
        for _, number, *place, payload in rows:
            kind = Kind(number)
            if kind is Kind.DEAD_LETTER:
                dead.append(payload)
                continue
            position = Position(*place)
            live.append((self.order(position, is_table=kind is not Kind.EVENT), kind, position, payload))
        out = [self._refused(payload, None) for payload in dead]
        if not live:
            return out, None
        live.sort(key=lambda item: item[0])
        replay = _Replay(self, key, state, out)
        for _, kind, position, payload in live:
            replay.apply(kind, position, payload)
        return replay.finish()

    def _refused(self, event: str, missing: str | None) -> OutRow:
        if self.aggregator is None:
            return (event, None, missing)
        return (None, None, None, event, missing)


class _Replay:
    """A key's rows applied one by one."""

    def __init__(self, program: KeyProgram, key: str, state: KeyState, out: list[OutRow]) -> None:
        self._program, self._key, self._before, self._out = program, key.encode(), state, out
        self._row = state.row
        self._columns: dict[str, Any] = {} if state.row is None or program.aggregator is None else json.loads(state.row)
        self._aggregate = None if state.aggregate is None else json.loads(state.aggregate)
        self._text = state.aggregate
        self._event_time_ms: int | None = None

    def apply(self, kind: Kind, position: Position, payload: str) -> None:
        aggregator = self._program.aggregator
        if kind is Kind.EVENT:
            if self._row is None and self._program.table_name is not None:
                self._out.append(self._program._refused(payload, f"not in {self._program.table_name}"))  # noqa: SLF001
            elif aggregator is None:
                self._out.append((payload, self._row, None))
            else:
                self._aggregate = aggregator.add(self._aggregate, json.loads(payload) | self._columns, position)
                self._event_time_ms = max(self._event_time_ms or 0, position.timestamp_ms)
                if not self._program.record_cache:
                    self._put_out_change(position.timestamp_ms)
            return
        self._row = None if kind is Kind.DELETE else payload
        if aggregator is not None:
            self._columns = {} if self._row is None else json.loads(self._row)

    def finish(self) -> tuple[list[OutRow], KeyState | None]:
        """Return what to put out, the aggregate's value if it changed among it, and the new state."""
        if self._event_time_ms is not None:
            self._put_out_change(self._event_time_ms)
        after = KeyState(self._row, self._text)
        return self._out, None if after == self._before else after

    def _put_out_change(self, event_time_ms: int) -> None:
        """Put the aggregate's value out if it isn't what was put out last."""
        assert self._program.aggregator is not None  # noqa: S101 - events are aggregated
        text = None if self._aggregate is None else json.dumps(self._aggregate, separators=(",", ":"))
        if text == self._text:
            return
        self._text = text
        value = None if text is None else self._program.aggregator.render(self._aggregate)
        rendered = None if value is None else compact_json(value).encode()
        self._out.append((self._key, rendered, event_time_ms, None, None))
