"""Aggregates of tables against a plain model: batches split at random, rows that are late, doubled, deleted or null."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from processor.operators.order import RecordPosition
from processor.operators.workers.buckets import Program
from processor.operators.workers.keyed import GROUP, KIND, LETTER, TIME, RowKind
from processor.operators.workers.subscriptions import FOREIGN_KEY, ROW
from processor.operators.workers.table_changes import NEW, OLD, PLACE, GroupsProgram, TableChangesProgram
from processor.rows import KEY, OFFSET, PARTITION, TABLE_KEY, VALUE
from tests.support.examples import given_many

BUCKETS = 3


class Change(NamedTuple):
    key: str
    n: int | None  # None: deleted
    group: str | None
    time: int


_CHANGES = st.builds(
    Change,
    st.sampled_from(["k0", "k1", "k2", "k3"]),
    st.one_of(st.none(), st.integers(0, 3)),
    st.sampled_from(["a", "b", "k0", None]),
    st.integers(1, 4),
)
_BATCHES = st.lists(st.lists(_CHANGES, max_size=8), max_size=8)


class Rows:
    """The rows of a group, so that one that is subtracted twice, or never, shows."""

    def add(self, state: list[int] | None, row: Mapping[str, Any], position: RecordPosition) -> list[int]:  # noqa: ARG002
        return sorted([*(state or []), row["n"]])

    def subtract(self, state: list[int] | None, row: Mapping[str, Any], position: RecordPosition) -> list[int] | None:  # noqa: ARG002
        assert state is not None
        state.remove(row["n"])
        return state or None

    def render(self, state: list[int]) -> list[int]:
        return state


class Operator:
    """A state operator: a program, and the state of each bucket."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._states: dict[int, dict[str, pa.Table]] = defaultdict(dict)

    def run(self, rows: pa.Table) -> list[dict[str, Any]]:
        found = []
        for bucket in range(BUCKETS):
            mine = pa.array([crc32(key) % BUCKETS == bucket for key in rows[GROUP].to_pylist()], pa.bool_())
            share = rows.filter(mine)
            if share.num_rows:
                put_out, changed = self._program.run({0: share}, self._states[bucket])
                found += [row for table in put_out for row in table.to_pylist()]
                kept = self._states[bucket] | changed
                # As Spark does: a state without rows is absent.
                self._states[bucket] = {name: table for name, table in kept.items() if table.num_rows}
        return found

    @property
    def kept(self) -> int:
        """The rows of all states."""
        return sum(table.num_rows for states in self._states.values() for table in states.values())


def _table(kind: RowKind, rows: Sequence[tuple[str, int, int]], payload: Mapping[str, list[str | None]]) -> pa.Table:
    columns: dict[str, pa.Array] = {name: pa.array([None for _ in rows], pa.string()) for name in LETTER}
    columns |= {
        GROUP: pa.array([key.encode() for key, _, _ in rows], pa.binary()),
        KIND: pa.array([kind.value for _ in rows], pa.int8()),
        TIME: pa.array([time_us for _, time_us, _ in rows], pa.int64()),
        PARTITION: pa.array([0 for _ in rows], pa.int32()),
        OFFSET: pa.array([offset for _, _, offset in rows], pa.int64()),
    }
    return pa.table(columns | {name: pa.array(values, pa.string()) for name, values in payload.items()})


@pytest.mark.feature("aggregate-table")
@given_many(_BATCHES)
def test_after_each_batch_groups_have_the_rows_that_the_table_has(batches: list[list[Change]]) -> None:
    changed, groups = Operator(TableChangesProgram()), Operator(GroupsProgram(Rows()))
    table: dict[str, Change] = {}
    store: dict[str, list[int]] = {}
    offset = 0
    for batch in batches:
        numbered = list(enumerate(batch, offset))
        offset += len(batch)
        for _, change in sorted(numbered, key=lambda pair: (pair[1].time, pair[0])):
            table.pop(change.key, None)
            if change.n is not None and change.group is not None:
                table[change.key] = change
        rows = [None if each.n is None else json.dumps({"n": each.n}) for each in batch]
        given = [(each.key, each.time * 1000, number) for number, each in numbered]
        told = changed.run(_table(RowKind.ROW, given, {ROW: rows, FOREIGN_KEY: [each.group for each in batch]}))
        told.reverse()  # as after a shuffle
        places = [(each[PLACE], each[TIME], each[OFFSET]) for each in told]
        put_out = groups.run(
            _table(RowKind.EVENT, places, {name: [each[name] for each in told] for name in (TABLE_KEY, OLD, NEW)})
        )
        keys = [row[KEY].decode() for row in put_out]
        assert len(keys) == len(set(keys)), "one row a group and batch"
        for key, row in zip(keys, put_out, strict=True):
            store.pop(key, None)
            if row[VALUE] is not None:
                store[key] = json.loads(row[VALUE])
        expected: dict[str, list[int]] = defaultdict(list)
        for row in table.values():
            expected[row.group or ""].append(row.n or 0)
        assert store == {group: sorted(numbers) for group, numbers in expected.items()}
        assert (changed.kept, groups.kept) == (len(table), len(expected)), "nothing is kept of what is gone"


@pytest.mark.feature("aggregate-table")
@given_many(_BATCHES)
def test_a_batch_that_comes_twice_changes_nothing(batches: list[list[Change]]) -> None:
    changed = Operator(TableChangesProgram())
    for batch in batches:
        rows = [None if each.n is None else str(each.n) for each in batch]
        given = [(each.key, each.time * 1000, number) for number, each in enumerate(batch)]
        table = _table(RowKind.ROW, given, {ROW: rows, FOREIGN_KEY: [each.group for each in batch]})
        changed.run(table)
        assert changed.run(table) == []
