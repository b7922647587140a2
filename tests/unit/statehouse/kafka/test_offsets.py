"""What the client answers about offsets, told from what the broker did."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, OFFSET_INVALID, IsolationLevel, KafkaException
from confluent_kafka.admin import ListOffsetsResultInfo

from statehouse.kafka.offsets import earliest_offsets, first_record_ms, last_stable_offsets, settled_offsets


class FakeAdmin:
    def __init__(self, offsets: Mapping[int, int]) -> None:
        self._offsets = offsets
        self.looks = 0

    def list_topics(self, **_options: Any) -> None:
        self.looks += 1

    def list_offsets(self, request: Any, **_options: Any) -> dict[Any, Future[ListOffsetsResultInfo]]:
        answers = {}
        for at in request:
            answers[at] = future = Future[ListOffsetsResultInfo]()
            future.set_result(ListOffsetsResultInfo(self._offsets[at.partition], -1, -1))
        return answers


@pytest.mark.parametrize("ask", [earliest_offsets, last_stable_offsets])
def test_an_offset_that_nobody_named_is_no_answer(ask: Any) -> None:
    admin = FakeAdmin({0: 7, 1: OFFSET_INVALID})
    assert ask(admin, [("topic", 0), ("topic", 1)]) == {("topic", 0): 7}
    with pytest.raises(KafkaException, match="named no offset"):
        ask(admin, [("topic", 1)])
    assert admin.looks == 2, "who leads was asked again, each time"


class TimedAdmin:
    def __init__(self, offset: int, timestamp_ms: int) -> None:
        self._found = ListOffsetsResultInfo(offset, timestamp_ms, -1)

    def list_offsets(self, request: Any, **_options: Any) -> dict[Any, Future[ListOffsetsResultInfo]]:
        (at,) = request
        future = Future[ListOffsetsResultInfo]()
        future.set_result(self._found)
        return {at: future}


@pytest.mark.parametrize(("offset", "timestamp_ms", "found"), [(7, 1_000, 1_000), (0, 0, 0), (OFFSET_END, -1, None)])
def test_the_first_record_has_a_time_if_there_is_one(offset: int, timestamp_ms: int, found: int | None) -> None:
    admin: Any = TimedAdmin(offset, timestamp_ms)
    assert first_record_ms(admin, "topic", 0) == found


def test_a_broker_that_is_silent_says_nothing_of_the_first_record() -> None:
    admin: Any = TimedAdmin(OFFSET_INVALID, -1)
    with pytest.raises(KafkaException, match="named no offset"):
        first_record_ms(admin, "topic", 0)


class BusyLog:
    """One partition, whose markers come with every second question about what is stable."""

    def __init__(self, end: int, stable: int, markers: int) -> None:
        self._end, self._stable, self._markers, self._asked = end, stable, markers, 0

    def list_offsets(self, request: Any, isolation_level: IsolationLevel, **_options: Any) -> dict[Any, Any]:
        (at,) = request
        offset = self._end
        if isolation_level == IsolationLevel.READ_COMMITTED:
            self._asked += 1
            # Others go on writing: what was there at first is what counts.
            offset = min(self._stable + self._markers * (self._asked // 2), self._end + 5)
        answer = Future[ListOffsetsResultInfo]()
        answer.set_result(ListOffsetsResultInfo(offset, -1, -1))
        return {at: answer}


@pytest.mark.parametrize(
    ("stable", "markers", "settled"), [(10, 1, 10), (4, 3, 10), (4, 6, 10), (4, 7, 11), (3, 0, 10)]
)
def test_markers_that_come_late_are_waited_for(stable: int, markers: int, settled: int) -> None:
    log: Any = BusyLog(10, stable, markers)
    assert settled_offsets(log, [("topic", 0)], timeout_s=0.2) == {("topic", 0): settled}
