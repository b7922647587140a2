"""Aggregates of the rows that a table has now: the logic of the two state operators; pure.

The first operator is keyed by the table's key. It keeps each row and its group, and tells the groups what a batch
changed: the row that was there before, and the one that is there now. The second operator is keyed by the group, and
has its aggregator subtract the one and add the other. Both see a batch whole, and of a batch only the end counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from processor.operators.aggregators import Json, TableAggregator
from processor.operators.order import RecordPosition
from processor.operators.workers.keyed import GROUP, TIME, AggregateProgram, States, without_letters
from processor.operators.workers.subscriptions import FOREIGN_KEY, ROW, is_in, last_changes, split_touched
from processor.rows import OFFSET, PARTITION, TABLE_KEY

PLACE: Final = "group_key"
OLD: Final = "old"
NEW: Final = "new"
TABLE_ROWS: Final = "table_rows"
"""The state with the rows that are in a group: GROUP (the table's key), FOREIGN_KEY (the group), ROW."""
_TABLE_ROWS: Final = pa.schema([(GROUP, pa.binary()), (FOREIGN_KEY, pa.string()), (ROW, pa.string())])
_TOLD: Final = pa.schema(
    [
        (TIME, pa.int64()),
        (PARTITION, pa.int32()),
        (OFFSET, pa.int64()),
        (PLACE, pa.string()),
        (TABLE_KEY, pa.string()),
        (OLD, pa.string()),
        (NEW, pa.string()),
    ]
)


class GroupedRow(NamedTuple):
    """A row, as JSON text, and its group."""

    group: str
    row: str


class GroupChange(NamedTuple):
    """What a batch changed in a group for a key of the table: the row before and the row after it, None for none."""

    position: RecordPosition
    group: str
    table_key: str
    old: str | None
    new: str | None


@dataclass(frozen=True)
class TableChangesProgram:
    """Tells groups of the changes of a bucket's table rows."""

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the kept states."""
        return (TABLE_ROWS,)

    def run(self, sides: Mapping[int, pa.Table], states: States) -> tuple[list[pa.Table], States]:
        """Return dead letters and the changes of groups, and the state to keep; side 0 is the table."""
        live, letters = without_letters(sides[0])
        if not live.num_rows:
            return [letters], {}
        last = last_changes(live, ROW, FOREIGN_KEY)
        kept, rest = split_touched(states.get(TABLE_ROWS), _TABLE_ROWS, lambda table: is_in(table[GROUP], last))
        keys, *columns = (column.to_pylist() for column in kept.columns)
        before = dict(zip(keys, map(GroupedRow, *columns), strict=True))
        told: list[GroupChange] = []
        after: dict[bytes, GroupedRow] = {}
        for key, change in last.items():
            now = None
            if change.row is not None and change.foreign_key is not None:
                now = after[key] = GroupedRow(change.foreign_key, change.row)
            told += self.of_key(key.decode(), change.position, before.get(key), now)
        rows = [list(after), [each.group for each in after.values()], [each.row for each in after.values()]]
        return [letters, _told(told)], {TABLE_ROWS: pa.concat_tables([rest, pa.table(rows, schema=_TABLE_ROWS)])}

    def of_key(
        self, table_key: str, position: RecordPosition, before: GroupedRow | None, now: GroupedRow | None
    ) -> list[GroupChange]:
        """Return what changes in the groups that the row leaves, enters, or stays in."""
        if before == now:
            return []
        if before is not None and now is not None and before.group == now.group:
            return [GroupChange(position, now.group, table_key, before.row, now.row)]
        leaves = [] if before is None else [GroupChange(position, before.group, table_key, before.row, None)]
        return leaves + ([] if now is None else [GroupChange(position, now.group, table_key, None, now.row)])


@dataclass(frozen=True)
class Replacing:
    """Has an aggregator subtract the row before a change, and add the one after it."""

    aggregator: TableAggregator

    def add(self, state: Json | None, row: Mapping[str, Any], position: RecordPosition) -> Json | None:
        """Return the state after a change; `row` has the texts OLD and NEW."""
        if OLD in row:
            state = self.aggregator.subtract(state, json.loads(row[OLD]), position)
        return self.aggregator.add(state, json.loads(row[NEW]), position) if NEW in row else state

    def render(self, state: Json) -> Json | None:
        """Return the group's value."""
        return self.aggregator.render(state)


@dataclass(frozen=True)
class GroupsProgram:
    """Aggregates the changes of a bucket's groups; side 0 has them as events, by group."""

    aggregator: TableAggregator

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the kept states."""
        return self._aggregates.states

    def run(self, sides: Mapping[int, pa.Table], states: States) -> tuple[list[pa.Table], States]:
        """Return records and dead letters, and the state to keep.

        Changes at one position, as when one row of a joined table changes many, apply by the table's key.
        """
        return self._aggregates.run({number: table.sort_by(TABLE_KEY) for number, table in sides.items()}, states)

    @property
    def _aggregates(self) -> AggregateProgram:
        return AggregateProgram(Replacing(self.aggregator), {OLD: OLD, NEW: NEW})


def _told(changes: Sequence[GroupChange]) -> pa.Table:
    columns = [
        [each.position.timestamp_ms * 1000 for each in changes],
        [each.position.partition for each in changes],
        [each.position.offset for each in changes],
        [each.group for each in changes],
        [each.table_key for each in changes],
        [each.old for each in changes],
        [each.new for each in changes],
    ]
    return pa.table(columns, schema=_TOLD)
