"""Sessions of a bucket against a plain model that forgets nothing, with batches split at random."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from processor.operators.aggregators import Reduce
from processor.operators.session_windows import SessionProgram
from processor.operators.workers.keyed import GROUP, KIND, TIME, RowKind
from processor.operators.workers.raised import OnError
from processor.operators.workers.session_fold import SessionFold
from processor.rows import DETAIL, KEY, OFFSET, PARTITION, REASON, TOPIC, VALUE
from tests.support.examples import given_many

GAP, GRACE = 10, 15
FOLD = SessionFold(
    Reduce(lambda state, row: [*state, row["number"]], first=lambda row: [row["number"]]),
    lambda one, other: [*one, *other],
    GAP,
    GRACE,
)


class Event(NamedTuple):
    key: str
    at_ms: int


Bounds = tuple[str, int, int]
_EVENTS = st.builds(Event, st.sampled_from(["a", "b"]), st.integers(0, 120))
_BATCHES = st.lists(st.lists(_EVENTS, max_size=6), max_size=10)


@dataclass
class Model:
    """Every session as the list of its events' times and numbers, and what was late."""

    sessions: dict[str, list[list[tuple[int, int]]]] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)
    now_ms: int = 0

    def run(self, batch: Sequence[tuple[Event, int]]) -> None:
        for (key, at_ms), number in sorted(batch, key=lambda each: (each[0].at_ms, each[1])):
            self.now_ms = max(self.now_ms, at_ms)
            of_key = self.sessions.setdefault(key, [])
            joined = [each for each in of_key if self._is_open(each) and self._is_near(each, at_ms)]
            made = [event for each in joined for event in each] + [(at_ms, number)]
            if not self._is_open(made):
                self.late.add(number)
                continue
            self.sessions[key] = [each for each in of_key if each not in joined] + [made]

    def store(self) -> dict[Bounds, list[int]]:
        return {
            (key, min(each)[0], max(each)[0]): sorted(number for _, number in each)
            for key, of_key in self.sessions.items()
            for each in of_key
        }

    def _is_open(self, session: list[tuple[int, int]]) -> bool:
        return max(session)[0] >= self.now_ms - GAP - GRACE

    @staticmethod
    def _is_near(session: list[tuple[int, int]], at_ms: int) -> bool:
        return any(abs(at_ms - other) <= GAP for other, _ in session)


def table(batch: Sequence[tuple[Event, int]]) -> pa.Table:
    count = len(batch)
    return pa.table(
        {
            GROUP: pa.array([event.key.encode() for event, _ in batch], pa.binary()),
            KIND: pa.array([RowKind.EVENT.value] * count, pa.int8()),
            KEY: pa.array([event.key.encode() for event, _ in batch], pa.binary()),
            VALUE: pa.array([b"as it came"] * count, pa.binary()),
            TOPIC: pa.array(["topic"] * count),
            TIME: pa.array([event.at_ms * 1000 for event, _ in batch], pa.int64()),
            PARTITION: pa.array([0] * count, pa.int32()),
            OFFSET: pa.array([number for _, number in batch], pa.int64()),
            REASON: pa.nulls(count, pa.string()),
            DETAIL: pa.nulls(count, pa.string()),
            "event_number": pa.array([number for _, number in batch], pa.int64()),
        }
    )


class Bucket:
    """The program with its states, and the store that its records make."""

    def __init__(self, *, record_cache: bool) -> None:
        self._program = SessionProgram(FOLD, {"event_number": "number"}, record_cache)
        self._states: dict[str, pa.Table] = {}
        self.store: dict[Bounds, list[int]] = {}
        self.late: set[int] = set()
        self.seen: list[list[Bounds]] = []

    def run(self, batch: Sequence[tuple[Event, int]]) -> None:
        sides = {0: table(batch)} if batch else {}
        put_out, changed = self._program.run(sides, self._states)
        self._states |= changed
        put: list[Bounds] = []
        for row in (row for each in put_out for row in each.to_pylist()):
            if row.get(REASON) is not None:
                assert (row[REASON], row[VALUE]) == ("late", b"as it came")
                self.late.add(row[OFFSET])
                continue
            bounds = (row[KEY].decode(), row["start_ms"], row["end_ms"])
            assert row[TIME] == row["end_ms"] * 1000
            put.append(bounds)
            if row[VALUE] is None:
                assert self.store.pop(bounds, None) is not None or not self._program.record_cache
            else:
                self.store[bounds] = sorted(json.loads(row[VALUE]))
        self.seen.append(put)

    def kept(self) -> int:
        sessions: Any = self._states.get("sessions")
        return 0 if sessions is None else sum(len(json.loads(text)) for text in sessions["sessions"].to_pylist())


def numbered(batches: list[list[Event]]) -> list[list[tuple[Event, int]]]:
    numbers = iter(range(1_000))
    return [[(event, next(numbers)) for event in batch] for batch in batches]


@pytest.mark.feature("session-windows-read")
@given_many(_BATCHES)
def test_sessions_are_those_of_the_model_and_only_open_ones_are_kept(batches: list[list[Event]]) -> None:
    model = Model()
    cached, each = Bucket(record_cache=True), Bucket(record_cache=False)
    for batch in numbered(batches):
        model.run(batch)
        for bucket in (cached, each):
            bucket.run(batch)
            assert bucket.store == model.store()
            assert bucket.late == model.late
            assert len(set(cached.seen[-1])) == len(cached.seen[-1]), "a session has one row a batch"
            if batch:
                touched = {event.key for event, _ in batch}
                still_open = [bounds for bounds in model.store() if bounds[2] >= model.now_ms - GAP - GRACE]
                untouched = [bounds for bounds in model.store() if bounds[0] not in touched]
                assert len(still_open) <= bucket.kept() <= len(still_open) + len(untouched)


def _add(state: list[int] | None, row: Any) -> list[int]:
    numbers = [] if state is None else state
    numbers.append(row["number"])
    if row["number"] % 3 == 0:
        raise ZeroDivisionError
    return numbers


@pytest.mark.feature("on-error")
@given_many(_BATCHES)
def test_an_event_that_people_s_code_raises_for_leaves_no_trace(batches: list[list[Event]]) -> None:
    picky = SessionFold(Reduce(_add, first=lambda row: _add(None, row)), lambda one, other: one + other, GAP, GRACE)
    program = SessionProgram(picky, {"event_number": "number"}, on_error=OnError.DEAD_LETTER)
    states, store = dict[str, pa.Table](), dict[Bounds, list[int]]()
    raised: set[int] = set()
    for batch in numbered(batches):
        put_out, changed = program.run({0: table(batch)} if batch else {}, states)
        states |= changed
        for row in (row for each in put_out for row in each.to_pylist()):
            if row.get(REASON) is not None:
                raised |= {row[OFFSET]} if row[REASON] == "raised" else set()
            elif row[VALUE] is None:
                store.pop((row[KEY].decode(), row["start_ms"], row["end_ms"]), None)
            else:
                store[row[KEY].decode(), row["start_ms"], row["end_ms"]] = sorted(json.loads(row[VALUE]))
    assert all(number % 3 == 0 for number in raised)
    assert all(number % 3 for numbers in store.values() for number in numbers)
    kept = [json.loads(text) for text in states["sessions"]["sessions"].to_pylist()] if "sessions" in states else []
    assert all(number % 3 for sessions in kept for _, _, numbers in sessions for number in numbers)


@given_many(_BATCHES)
def test_with_grace_for_all_batches_make_no_difference(batches: list[list[Event]]) -> None:
    """However events come, sessions are the runs of events without a gap."""
    fold = SessionFold(FOLD.aggregator, FOLD.merge, GAP, 1_000)
    states: dict[str, pa.Table] = {}
    store: dict[Bounds, list[int]] = {}
    arrived = numbered(batches)
    for batch in arrived:
        if batch:
            put_out, changed = SessionProgram(fold, {"event_number": "number"}).run({0: table(batch)}, states)
            states |= changed
            for row in (row for each in put_out for row in each.to_pylist()):
                bounds = (row[KEY].decode(), row["start_ms"], row["end_ms"])
                store.pop(bounds, None)
                if row[VALUE] is not None:
                    store[bounds] = sorted(json.loads(row[VALUE]))
    expected: dict[Bounds, list[int]] = {}
    for key in ("a", "b"):
        run: list[tuple[int, int]] = []
        for at_ms, number in [
            *sorted((e.at_ms, n) for batch in arrived for e, n in batch if e.key == key),
            (10**6, -1),
        ]:
            if run and at_ms - run[-1][0] > GAP:
                expected[(key, run[0][0], run[-1][0])] = sorted(number for _, number in run)
                run = []
            run.append((at_ms, number))
    assert store == expected
