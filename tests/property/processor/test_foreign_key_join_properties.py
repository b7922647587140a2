"""Foreign-key joins against a plain model: batches split at random, keys and places spread over several buckets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from processor.operators.workers.buckets import Program
from processor.operators.workers.joined_rows import Sides
from processor.operators.workers.keyed import GROUP, KIND, LETTER, TIME, RowKind
from processor.operators.workers.subscriptions import (
    ACTION,
    FOREIGN_KEY,
    LEFT_KEY,
    PLACE,
    ROW,
    SubscriptionJoinProgram,
    SubscriptionProgram,
    place_of,
)
from processor.rows import DELETED, KEY, OFFSET, PARTITION, REASON
from tests.support.examples import given_many

BUCKETS = 3


class Left(NamedTuple):
    key: str
    row: str | None
    foreign_key: str | None
    time: int


class Right(NamedTuple):
    key: str
    row: str | None
    time: int


Change = Left | Right

_TIMES = st.integers(1, 4)
_FOREIGN = st.sampled_from(["a", "b", "c", "l0", None])  # a foreign key may look like a left key
_LEFTS = st.builds(
    Left, st.sampled_from(["l0", "l1", "l2", "l3"]), st.sampled_from(["x", "y", "z", None]), _FOREIGN, _TIMES
)
_RIGHTS = st.builds(Right, st.sampled_from(["a", "b", "c", "l0"]), st.sampled_from(["p", "q", None]), _TIMES)
_BATCHES = st.lists(st.lists(st.one_of(_LEFTS, _RIGHTS), max_size=8), max_size=8)


class Model:
    """Both tables, and their join as one would write it."""

    def __init__(self, *, keeps_unmatched: bool) -> None:
        self._keeps_unmatched = keeps_unmatched
        self.lefts: dict[str, Left] = {}
        self.rights: dict[str, str] = {}

    def apply(self, change: Change) -> None:
        if isinstance(change, Left):
            self.lefts.pop(change.key, None)
            if change.row is not None:
                self.lefts[change.key] = change
            return
        self.rights.pop(change.key, None)
        if change.row is not None:
            self.rights[change.key] = change.row

    def joined(self) -> dict[str, Sides]:
        matches = {key: self.rights.get(left.foreign_key or "") for key, left in self.lefts.items()}
        return {
            key: Sides(self.lefts[key].row, right)
            for key, right in matches.items()
            if self._keeps_unmatched or right is not None
        }


class Operator:
    """A state operator: a program, and the state of each bucket."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._states: dict[int, dict[str, pa.Table]] = defaultdict(dict)

    def run(self, sides: Sequence[pa.Table]) -> list[pa.Table]:
        found = []
        for bucket in range(BUCKETS):
            shares = {number: _of_bucket(table, bucket) for number, table in enumerate(sides)}
            given = {number: share for number, share in shares.items() if share.num_rows}
            if given:
                put_out, changed = self._program.run(given, self._states[bucket])
                found += put_out
                self._states[bucket].update(changed)
                # As Spark does: a state without rows is absent.
                self._states[bucket] = {name: table for name, table in self._states[bucket].items() if table.num_rows}
        return found

    @property
    def kept(self) -> dict[str, int]:
        """The rows of each state."""
        names = {name for states in self._states.values() for name in states}
        return {
            name: sum(states[name].num_rows for states in self._states.values() if name in states) for name in names
        }


class Join:
    """Both operators, one after the other."""

    def __init__(self, *, keeps_unmatched: bool) -> None:
        self.send = Operator(SubscriptionProgram(keeps_unmatched))
        self.join = Operator(SubscriptionJoinProgram(keeps_unmatched))

    def run(self, batch: Sequence[tuple[int, Change]]) -> list[dict[str, object]]:
        """Return the rows that a batch puts out; changes come with their offsets."""
        lefts = [(offset, each) for offset, each in batch if isinstance(each, Left)]
        rights = [(offset, each) for offset, each in batch if isinstance(each, Right)]
        changes = _table(
            ((left.key, left.time, offset) for offset, left in lefts),
            {ROW: [left.row for _, left in lefts], FOREIGN_KEY: [left.foreign_key for _, left in lefts]},
        )
        sent = [table for table in self.send.run([changes]) if PLACE in table.column_names]
        told = pa.concat_tables(sent).to_pylist() if sent else []
        places = {(each[PLACE], each[LEFT_KEY]) for each in told}
        assert len(places) == len(told), "a place is told of a key once a batch"
        told_table = _table(
            ((each[PLACE], each[TIME] // 1000, each[OFFSET]) for each in told),
            {
                ACTION: pa.array([each[ACTION] for each in told], pa.int8()),
                LEFT_KEY: [each[LEFT_KEY] for each in told],
                ROW: [each[ROW] for each in told],
            },
        )
        right_table = _table(
            ((place_of(right.key), right.time, offset) for offset, right in rights),
            {ROW: [right.row for _, right in rights]},
        )
        found = self.join.run([told_table, right_table])
        return [row for table in found for row in table.to_pylist() if REASON not in table.column_names]


def _table(rows: Iterable[tuple[str, int, int]], payload: dict[str, object]) -> pa.Table:
    given = list(rows)
    columns: dict[str, object] = {name: pa.array([None for _ in given], pa.string()) for name in LETTER}
    columns |= {
        GROUP: pa.array([key.encode() for key, _, _ in given], pa.binary()),
        KIND: pa.array([RowKind.ROW.value for _ in given], pa.int8()),
        TIME: pa.array([time * 1000 for _, time, _ in given], pa.int64()),
        PARTITION: pa.array([0 for _ in given], pa.int32()),
        OFFSET: pa.array([offset for _, _, offset in given], pa.int64()),
    }
    texts = {name: pa.array(each, pa.string()) if isinstance(each, list) else each for name, each in payload.items()}
    return pa.table(columns | texts)


def _of_bucket(table: pa.Table, bucket: int) -> pa.Table:
    return table.filter(pa.array([crc32(key) % BUCKETS == bucket for key in table[GROUP].to_pylist()], pa.bool_()))


@pytest.mark.feature("foreign-key-join")
@given_many(_BATCHES, st.booleans())
def test_after_each_batch_what_was_put_out_adds_up_to_the_join(
    batches: list[list[Change]], keeps_unmatched: bool
) -> None:
    model, join = Model(keeps_unmatched=keeps_unmatched), Join(keeps_unmatched=keeps_unmatched)
    store: dict[str, Sides] = {}
    offset = 0
    for batch in batches:
        numbered = list(enumerate(batch, offset))
        offset += len(batch)
        before = dict(model.lefts)
        for _, change in sorted(numbered, key=lambda pair: (pair[1].time, pair[0])):
            model.apply(change)
        rows = join.run(numbered)
        keys = [row[KEY].decode() for row in rows]
        assert len(keys) == len(set(keys)), "one row a key and batch"
        for key, row in zip(keys, rows, strict=True):
            moved = key in before and key in model.lefts and before[key].foreign_key != model.lefts[key].foreign_key
            shown = None if row[DELETED] else Sides(row["left"], row["right"])
            assert shown != store.get(key) or moved, "only what has changed, or what came from another place"
            times = {change.time for change in batch}
            assert row[TIME] // 1000 in times, "the time of a change in this batch"
            if shown is None:
                store.pop(key, None)
            else:
                store[key] = shown
        assert store == model.joined()
    there = [left for left in model.lefts.values() if keeps_unmatched or left.foreign_key is not None]
    assert join.send.kept.get("foreign_keys", 0) == len(there), "nothing is kept of what is gone"
    assert join.join.kept.get("subscriptions", 0) == len(there)
    assert join.join.kept.get("rows", 0) == len(model.rights)


@given_many(st.lists(st.one_of(_LEFTS, _RIGHTS), max_size=20), st.lists(st.integers(0, 20), max_size=4), st.booleans())
def test_the_end_is_the_same_wherever_batches_are_split(
    changes: list[Change], cuts: list[int], keeps_unmatched: bool
) -> None:
    ordered = [each._replace(time=time) for time, each in enumerate(changes)]
    stores = []
    for bounds in ([0, len(ordered)], sorted({0, len(ordered), *(min(cut, len(ordered)) for cut in cuts)})):
        join, store = Join(keeps_unmatched=keeps_unmatched), dict[str, Sides]()
        for begin, end in pairwise(bounds):
            for row in join.run(list(enumerate(ordered))[begin:end]):
                store.pop(row[KEY].decode(), None)
                if not row[DELETED]:
                    store[row[KEY].decode()] = Sides(row["left"], row["right"])
        stores.append(store)
    assert stores[0] == stores[1]
