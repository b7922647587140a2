"""Marks stand where batches end, whatever partitions know, however far they are, and whenever they begin again."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.watches.moment_marks import MomentMarks
from statehouse.contract.watch_marks import mark_in, position_of, token_of
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2, types_pb2

QUERY = "q"
SEEDS = st.integers(0, 2**32).map(random.Random)


def moment(batch_id: int, query_id: str = QUERY) -> types_pb2.Moment:
    return types_pb2.Moment(query_id=query_id, batch_id=batch_id)


class Stream:
    """A partition's stream from a node. `records`: the batch of each change. `has`: the changes that the caller has.

    `head`: what comes next: the batch that it leads up to, the changes, whether they end and whether they begin again.
    """

    def __init__(self, records: list[int], last_batch: int, rng: random.Random, *, skips: bool = True) -> None:
        self._skips = skips
        self.records, self._last_batch, self._rng = records, last_batch, rng
        self.has: list[int] = []
        self.reached = -1
        self.cursor = 0
        self.head: tuple[int, list[int], bool, bool] | None = None
        self._toward: int | None = None

    def resume(self, after: int) -> None:
        self.reached, self.cursor = after, self._end(after)
        self.head = self._toward = None

    def begin_again(self, least: int) -> None:
        """It can't go on, and sends what there is at the end of a batch."""
        batch_id = self._rng.randint(max(0, least), self._last_batch)
        end = self._end(batch_id)
        to = self._rng.randint(0, end)
        self.head = batch_id, self.records[:to], to == end, True
        self.cursor, self._toward = to, None if to == end else batch_id
        self.reached = batch_id if to == end else -1

    def move(self) -> None:
        """Have the next head, if there is one and the one before was sent."""
        if self.head is not None or self.reached == self._last_batch:
            return
        if self._toward is None:  # nodes need not know all batches
            self._toward = self._rng.randint(self.reached + 1, self._last_batch if self._skips else self.reached + 1)
        end = self._end(self._toward)
        to = self._rng.randint(self.cursor, end)
        self.head = self._toward, self.records[self.cursor : to], to == end, False
        self.cursor = to
        if to == end:
            self.reached, self._toward = self._toward, None

    def _end(self, batch_id: int) -> int:
        return sum(each <= batch_id for each in self.records)


def run(streams: list[Stream], marks: MomentMarks, rng: random.Random, *, restarts: int) -> Iterator[int]:
    """Have the streams move as they happen to, yield each batch that is marked."""
    last = -1
    while True:
        for each in streams:
            each.move()
        waiting = [number for number, each in enumerate(streams) if each.head is not None]
        if not waiting:
            return
        number = rng.choice(waiting)
        stream = streams[number]
        if restarts and rng.random() < 0.3:
            restarts -= 1
            stream.begin_again(last)
        assert stream.head is not None
        batch_id, events, ends, begins = stream.head
        if not marks.may_pass(number, moment(batch_id), begins=begins):
            assert any(marks_may(each, marks, streams) for each in waiting if each != number), "all wait"
            continue
        stream.head = None
        stream.has = [*([] if begins else stream.has), *events]
        if ends:
            position = query_service_pb2.WatchPosition(partition=number, position=len(stream.has))
            mark = marks.ended(number, moment(batch_id), position)
            if mark is not None:
                assert mark.moment.batch_id > last
                last = mark.moment.batch_id
                assert [each.position for each in mark.positions] == [len(each.has) for each in streams]
                yield last


def marks_may(number: int, marks: MomentMarks, streams: list[Stream]) -> bool:
    """Whether a stream has something that may be sent. It doesn't send it, so it looks at what the marks know."""
    standing = marks._partitions[number].batch_id
    return standing < marks.goal or marks.goal == marks._last


def check(streams: list[Stream], batch_id: int) -> None:
    for stream in streams:
        assert stream.has == [each for each in stream.records if each <= batch_id]


@pytest.mark.feature("watch-batches-whole")
@settings(max_examples=500)
@given(
    st.lists(st.lists(st.integers(0, 8), min_size=4, max_size=12).map(sorted), min_size=2, max_size=4),
    st.integers(0, 8),
    SEEDS,
)
def test_at_each_mark_all_has_come_of_its_batch_and_nothing_of_a_later_one(
    partitions: list[list[int]], restarts: int, rng: random.Random
) -> None:
    streams = [Stream(records, 8, rng) for records in partitions]
    marks = MomentMarks("store", range(len(streams)), {})
    last = -1
    for last in run(streams, marks, rng, restarts=restarts):
        check(streams, last)
    assert last == 8, "in the end all have all"
    assert marks.last == moment(8)


@given(st.lists(st.lists(st.integers(0, 8), max_size=12).map(sorted), min_size=1, max_size=4), SEEDS)
def test_each_batch_that_all_know_is_marked(partitions: list[list[int]], rng: random.Random) -> None:
    streams = [Stream(records, 8, rng, skips=False) for records in partitions]
    assert list(run(streams, MomentMarks("store", range(len(streams)), {}), rng, restarts=0)) == list(range(9))


@given(
    st.lists(st.lists(st.integers(0, 8), max_size=12).map(sorted), min_size=1, max_size=4),
    st.integers(0, 3),
    SEEDS,
)
def test_a_watch_that_goes_on_after_a_mark_loses_and_repeats_nothing(
    partitions: list[list[int]], stop_after: int, rng: random.Random
) -> None:
    streams = [Stream(records, 8, rng) for records in partitions]
    whole = MomentMarks("store", range(len(streams)), {})
    last = -1
    for count, batch_id in enumerate(run(streams, whole, rng, restarts=0)):
        last = batch_id
        if count == stop_after:
            break
    if last == 8:
        return
    after = {
        number: query_service_pb2.WatchPosition(partition=number, after=moment(last)) for number in range(len(streams))
    }
    for stream in streams:
        stream.has = [each for each in stream.records if each <= last]  # what came since, the caller has thrown away
        stream.resume(last)
    resumed = MomentMarks("store", range(len(streams)), after)
    for batch_id in run(streams, resumed, rng, restarts=1):
        assert batch_id > last
        check(streams, batch_id)
        last = batch_id
    assert last == 8


def test_a_query_that_began_anew_ends_the_watch_unless_it_was_so_when_it_was_resumed() -> None:
    resumed = query_service_pb2.WatchPosition(partition=0, after=moment(7))
    assert MomentMarks("store", [0, 1], {0: resumed}).last == moment(7)
    marks = MomentMarks("store", [0, 1], {0: resumed})
    assert marks.may_pass(0, moment(2, "new"), begins=True)
    assert marks.last is None
    with pytest.raises(LookupFailure) as failure:
        marks.may_pass(1, moment(9), begins=False)
    assert failure.value.reason is Reason.MOMENT_GONE


@given(st.integers(0, 2**62), st.integers(0, 2**62), st.booleans())
def test_where_a_partition_goes_on(position: int, batch_id: int, ends: bool) -> None:
    response = query_service_pb2.WatchResponse(
        position=position, topic_id="id", moment=moment(batch_id), moment_ends=ends
    )
    found = position_of(3, response)
    assert (found.partition, found.position, found.topic_id) == (3, position, "id")
    assert (found.after.batch_id if found.HasField("after") else -1) == (batch_id if ends else batch_id - 1)
    assert not position_of(3, query_service_pb2.WatchResponse(position=position)).HasField("after")


@given(st.lists(st.integers(0, 2**62), max_size=5), st.integers(0, 2**62))
def test_marks_as_text(offsets: list[int], batch_id: int) -> None:
    positions = [
        query_service_pb2.WatchPosition(partition=number, position=offset, topic_id="id", after=moment(batch_id))
        for number, offset in enumerate(offsets)
    ]
    mark = query_service_pb2.WatchMark(moment=moment(batch_id), positions=positions)
    assert mark_in(token_of(mark)) == mark


@pytest.mark.parametrize("text", ["", "x", "!", "é", token_of(query_service_pb2.WatchMark())])
def test_no_marks(text: str) -> None:
    with pytest.raises(ValueError, match="not a mark of a watch"):
        mark_in(text)
