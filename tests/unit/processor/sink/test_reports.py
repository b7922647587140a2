"""A batch is reported while the next one is written: in order, and no failure is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from processor.sink import batch
from processor.sink.batch import StoreSink
from processor.sink.protocol import ForeignClaim, OutputTopic, SinkTarget
from processor.sink.record_cache_pool import RecordCachePool
from processor.spark.checkpoint import Offsets
from statehouse.errors import StatehouseError
from tests.support.polling import poll_until
from tests.support.settings import SINK_LIMITS

WAIT_S = 20
FRAME: Any = SimpleNamespace(sparkSession=None, _jdf=None)


class Checkpoint:
    def query_id(self) -> str:
        return "a-query"

    def source_ends(self, batch_id: int) -> Offsets:
        return {("scores", 0): batch_id}


class Reports:
    """Notes reports; those of `held` batches wait to be let go."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ends: list[Offsets | None] = []
        self.let_go = threading.Event()
        self.held: set[int] = set()
        self.failing: set[int] = set()
        self.knows_ends = True

    def traceparent(self) -> str:
        return ""

    def publish(
        self, _query: str, batch_id: int, _ends: Offsets, *, changelog_ends: Offsets | None, traceparent: str
    ) -> None:
        assert not traceparent
        if batch_id in self.held:
            assert self.let_go.wait(WAIT_S)
        if batch_id in self.failing:
            raise StatehouseError(f"batch {batch_id} can't be reported")
        self.begun.append(batch_id)
        self.ends.append(changelog_ends)


class Task:
    """Stands for the task: notes which batches were written."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.failing: set[int] = set()
        self.report = '[{"counts": [["store", "changelog", 2]], "ends": [["c", 0, 7]], "unread": 0}]'

    def write(self, _frame: object, _column: int, _target: str, batch_id: int, *_: object) -> str:
        self.written.append(batch_id)
        if batch_id in self.failing:
            raise RuntimeError("some of it is written")
        return self.report


@pytest.fixture
def reports() -> Iterator[Reports]:
    made = Reports()
    yield made
    made.let_go.set()


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    made = Task()
    monkeypatch.setattr(batch, "task_object", lambda *_: made)
    return made


@pytest.fixture
def sink(reports: Reports, task: Task) -> StoreSink:
    target = SinkTarget("nobody:1", "app", "query", (OutputTopic("store", "c", 1),), "dead", 1, **SINK_LIMITS)
    return StoreSink(target, Checkpoint(), reports, lambda *_: None, tasks=1, record_cache=RecordCachePool(0, 1))


def test_the_next_batch_is_written_while_one_is_reported(sink: StoreSink, reports: Reports, task: Task) -> None:
    reports.held = {1}
    sink(FRAME, 0)
    sink(FRAME, 1)
    assert not sink.is_idle, "its report is under way"
    next_one = threading.Thread(target=sink, args=(FRAME, 2))
    next_one.start()
    poll_until(lambda: task.written == [0, 1, 2], WAIT_S, "the next batch to be written")
    assert reports.begun == [0], "no report comes before the one of an earlier batch"
    assert not sink.drain(0.0)
    reports.let_go.set()
    next_one.join(WAIT_S)
    assert sink.drain(WAIT_S)
    assert reports.begun == [0, 1, 2]
    assert sink.is_idle


def test_the_first_batch_is_reported_before_spark_may_commit_it(sink: StoreSink, reports: Reports) -> None:
    reports.failing = {0}
    with pytest.raises(StatehouseError, match="batch 0"):
        sink(FRAME, 0)
    assert isinstance(sink.failure, StatehouseError)


def test_a_report_that_fails_is_seen_without_a_next_batch_and_stops_it(sink: StoreSink, reports: Reports) -> None:
    sink(FRAME, 0)
    reports.failing = {1}
    sink(FRAME, 1)
    with pytest.raises(StatehouseError, match="batch 1"):
        sink.settle()
    assert isinstance(sink.failure, StatehouseError)
    with pytest.raises(StatehouseError, match="batch 1"):
        sink(FRAME, 2)
    assert reports.begun == [0]
    assert sink.drain(WAIT_S), "nothing is under way"


def test_the_ends_are_those_of_the_batch_s_own_transactions(sink: StoreSink, reports: Reports, task: Task) -> None:
    sink(FRAME, 0)
    sink(FRAME, 1)
    sink.settle()
    assert reports.ends == [None, {("c", 0): 7}], "what was before the first one is asked for"


CLAIMED = '[{"counts": [["", "claimed", 1]], "ends": [], "unread": 0}]'
SKIPPED = '[{"counts": [["", "skipped", 1]], "ends": [["c", 0, 7]], "unread": 0}]'


@pytest.mark.parametrize("earlier", ["died", "claimed", "skipped"])
def test_what_an_attempt_has_written_that_was_not_reported_is_asked_for(
    sink: StoreSink, reports: Reports, task: Task, earlier: str
) -> None:
    """The next batch may leave such a partition alone: of the same rows, or of a newer state that is compared."""
    sink(FRAME, 0)
    usual = task.report
    if earlier == "skipped":
        task.report = SKIPPED
    else:
        task.report, task.failing = CLAIMED, {1} if earlier == "died" else set()
        with pytest.raises((RuntimeError, ForeignClaim)):
            sink(FRAME, 1)
        task.report = usual
    sink(FRAME, 2)
    task.report = usual
    sink(FRAME, 3)
    sink.settle()
    assert reports.ends == [None, None, {("c", 0): 7}]


@pytest.mark.parametrize("reason", ["skipped", "unknown"])
def test_ends_that_are_asked_for_are_not_the_next_batch_s(
    sink: StoreSink, reports: Reports, task: Task, reason: str
) -> None:
    sink(FRAME, 0)
    reports.held = {1}
    if reason == "skipped":
        task.report = SKIPPED
    else:
        reports.knows_ends = False
    returned = threading.Event()

    def write() -> None:
        sink(FRAME, 1)
        returned.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert not returned.wait(0.2), "Spark may not go on while they are asked for"
    assert task.written == [0, 1]
    reports.let_go.set()
    assert returned.wait(WAIT_S)
    writer.join(WAIT_S)
    assert sink.drain(WAIT_S)
