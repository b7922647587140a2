"""Commit records: what they say before a first batch, and what the thread that repeats them does when that fails."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

import processor.reports.commits
from processor.reports.commits import CommitsPublisher, IdleRepeater, StoreChangelog, Superseded
from statehouse.contract.first_batch import ends_proven
from statehouse.contract.processor_reports import decode_commit
from statehouse.control.v1 import commits_pb2
from tests.support.polling import poll_until


class Publisher:
    """Fails at each call as the list says, then no more."""

    is_before_first_batch = False

    def __init__(self, failures: list[Exception]) -> None:
        self.failures, self.calls = failures, 0

    def repeat(self, _idle_for_s: float) -> bool:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return True


@pytest.fixture
def started(request: pytest.FixtureRequest) -> Callable[[Publisher, Callable[[Exception], None]], IdleRepeater]:
    def start(publisher: Publisher, on_failure: Callable[[Exception], None]) -> IdleRepeater:
        repeater = IdleRepeater(cast("Any", publisher), lambda: True, 0.02, on_failure)
        repeater.start()
        request.addfinalizer(repeater.stop)
        return repeater

    return start


@pytest.mark.parametrize("failure", [Superseded("a newer driver"), RuntimeError("a defect")])
def test_what_ends_the_thread_is_told(failure: Exception, started: Any) -> None:
    told: list[Exception] = []
    started(Publisher([failure]), told.append)
    poll_until(lambda: told == [failure], 5, "the failure")


def test_a_broker_that_is_away_is_asked_again(started: Any) -> None:
    told: list[Exception] = []
    publisher = Publisher([KafkaException(KafkaError(KafkaError._TRANSPORT))])
    started(publisher, told.append)
    poll_until(lambda: publisher.calls > 2, 5, "another try")
    assert not told


class Topic:
    """The commits topic in the place of the producer and the admin client; every log ends at `ends`."""

    def __init__(self) -> None:
        self.records: dict[str, commits_pb2.Commit] = {}
        self.written = 0
        self.ends = 0

    def write(self, produce: Callable[[Any], None]) -> None:
        produce(self)

    def produce(self, _topic: str, *, key: bytes, value: bytes | None, timestamp: int, **_: Any) -> None:
        assert value is not None
        assert timestamp >= 0
        self.records[key.decode()] = decode_commit(key, value)
        self.written += 1

    def proves(self) -> dict[str, bool]:
        return {store: ends_proven(record) is not None for store, record in self.records.items()}


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    topic = Topic()
    admin = SimpleNamespace(ask=lambda call: call(None))
    ends = lambda _client, partitions, _timeout_s: dict.fromkeys(partitions, topic.ends)  # noqa: E731 - three of one kind
    monkeypatch.setattr(processor.reports.commits, "TransactionalProducer", lambda *_, **__: topic)
    monkeypatch.setattr(processor.reports.commits, "RenewedAdmin", lambda *_: admin)
    monkeypatch.setattr(processor.reports.commits, "last_stable_offsets", ends)
    monkeypatch.setattr(processor.reports.commits, "settled_offsets", ends)
    return topic


def publisher_of(*stores: str, added: tuple[str, ...] = ()) -> CommitsPublisher:
    changelogs = [StoreChangelog(store, f"app-{store}-changelog", 1) for store in stores]
    return CommitsPublisher("broker", "app", "q", changelogs, added=added)


def test_a_store_that_was_added_is_built_by_the_next_batch_or_by_sources_without_more(topic: Topic) -> None:
    topic.ends = 9
    publisher = publisher_of("old", "new", added=("new",))
    publisher.publish("id", 3, {("events", 0): 5}, idle=True)
    assert topic.proves() == {"old": True, "new": False}
    assert publisher.repeat(0.0)
    assert topic.proves() == {"old": True, "new": False}, "there are four events that it lacks"
    publisher.publish("id", 4, {("events", 0): 7})
    assert topic.proves() == {"old": True, "new": True}
    publisher.publish("id", 4, {("events", 0): 7}, idle=True)
    assert topic.proves() == {"old": True, "new": True}


def test_a_store_that_was_added_lacks_nothing_once_the_sources_have_nothing_more(topic: Topic) -> None:
    topic.ends = 9
    publisher = publisher_of("new", added=("new",))
    publisher.publish("id", 3, {("events", 0): 9}, idle=True)
    assert topic.proves() == {"new": True}
    publisher.finish()
    assert topic.proves() == {"new": True}


def test_a_query_without_anything_to_read_says_so_until_it_has_a_batch(topic: Topic) -> None:
    publisher = publisher_of("s", "t")
    assert not publisher.repeat(0.0), "nothing is known yet"
    assert publisher.publish_nothing_to_read("id", 60.0)
    assert topic.proves() == {"s": True, "t": True}
    assert not publisher.publish_nothing_to_read("id", 60.0), "not so often"
    assert publisher.publish_nothing_to_read("id", 0.0)
    assert not publisher.repeat(0.0), "that would ask for the backlog of no source"
    publisher.finish()
    assert topic.records["s"].stopped
    assert topic.proves() == {"s": True, "t": True}, "also of a processor that stops"
    publisher.publish("id", 0, {})
    assert not topic.records["s"].no_batch
    assert not publisher.publish_nothing_to_read("id", 0.0), "a batch was committed meanwhile"


def test_the_repeater_asks_whether_there_is_anything_to_read_before_the_first_batch_only(
    topic: Topic, request: pytest.FixtureRequest
) -> None:
    publisher, asked = publisher_of("s"), list[str | None]()
    said: list[str | None] = [None, None, "id"]

    def waiting() -> str | None:
        asked.append(said.pop(0) if said else "id")
        return asked[-1]

    repeater = IdleRepeater(publisher, lambda: True, 0.02, lambda _error: None, waiting)
    request.addfinalizer(repeater.stop)
    repeater.start()
    poll_until(lambda: topic.written > 1, 10, "it says so again")
    assert asked[:3] == [None, None, "id"]
    publisher.publish("id", 0, {})
    before = topic.written
    poll_until(lambda: topic.written > before + 1, 10, "it repeats the batch's record")
    assert not topic.records["s"].no_batch
