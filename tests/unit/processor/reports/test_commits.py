"""Commit records: what they say before a first batch, and what the thread that repeats them does when that fails."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

import processor.reports.commits
from processor.attach.commits import AttachedCommits
from processor.reports.commits import CommitsPublisher, Heartbeats, QueryFailure, StoreChangelog, Superseded
from statehouse.contract.first_batch import ends_proven
from statehouse.contract.processor_reports import decode_commit
from statehouse.control.v1 import commits_pb2
from tests.support.polling import poll_until


class Query:
    """A query as its heartbeats show it."""

    def __init__(self) -> None:
        self.is_idle = True
        self.failure: QueryFailure | None = None

    def recovered(self, failure: QueryFailure) -> None:
        assert failure is self.failure
        self.failure = None


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
def started(request: pytest.FixtureRequest) -> Callable[[Publisher, Callable[[Exception], None]], Heartbeats]:
    def start(publisher: Publisher, on_failure: Callable[[Exception], None]) -> Heartbeats:
        repeater = Heartbeats(cast("Any", publisher), Query(), 0.02, on_failure)
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
    """The commits topic in the place of the producer and the admin client.

    Every log ends at `ends`, and its last `pending` offsets are not stable yet. Nothing is said of `silent` topics.
    """

    def __init__(self) -> None:
        self.records: dict[str, commits_pb2.Commit] = {}
        self.written = 0
        self.ends = 0
        self.pending = 0
        self.silent: set[str] = set()

    def write(self, produce: Callable[[Any], None]) -> None:
        produce(self)

    def produce(self, _topic: str, *, key: bytes, value: bytes | None, timestamp: int, **_: Any) -> None:
        assert value is not None
        assert timestamp >= 0
        self.records[key.decode()] = decode_commit(key, value)
        self.written += 1

    def present(self, _client: Any, partitions: list[tuple[str, int]], _timeout_s: float) -> dict[tuple[str, int], int]:
        return {at: self.ends for at in partitions if at[0] not in self.silent}

    def stable(self, *asked: Any) -> dict[tuple[str, int], int]:
        return {at: end - self.pending for at, end in self.present(*asked).items()}

    def moments(self) -> dict[str, tuple[int, ...] | None]:
        return {
            store: tuple(each.offset for each in record.changelog_ends) if record.is_moment else None
            for store, record in self.records.items()
        }

    def proves(self) -> dict[str, bool]:
        return {store: ends_proven(record) is not None for store, record in self.records.items()}


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    topic = Topic()
    admin = SimpleNamespace(ask=lambda call: call(None))
    monkeypatch.setattr(processor.reports.commits, "TransactionalProducer", lambda *_, **__: topic)
    monkeypatch.setattr(processor.reports.commits, "RenewedAdmin", lambda *_: admin)
    monkeypatch.setattr(processor.reports.commits, "last_stable_offsets", topic.stable)
    monkeypatch.setattr(processor.reports.commits, "end_offsets", topic.present)
    monkeypatch.setattr(processor.reports.commits, "settled_offsets", topic.present)
    return topic


def publisher_of(*stores: str, added: tuple[str, ...] = (), partitions: int = 1) -> CommitsPublisher:
    changelogs = [StoreChangelog(store, f"app-{store}-changelog", partitions) for store in stores]
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

    repeater = Heartbeats(publisher, Query(), 0.02, lambda _error: None, waiting)
    request.addfinalizer(repeater.stop)
    repeater.start()
    poll_until(lambda: topic.written > 1, 10, "it says so again")
    assert asked[:3] == [None, None, "id"]
    publisher.publish("id", 0, {})
    before = topic.written
    poll_until(lambda: topic.written > before + 1, 10, "it repeats the batch's record")
    assert not topic.records["s"].no_batch


def test_a_batch_says_where_it_ends_in_each_partition(topic: Topic) -> None:
    topic.ends = 9
    publisher = publisher_of("s", "t", partitions=2)
    publisher.publish("id", 3, {}, changelog_ends={("app-s-changelog", 0): 8})
    assert topic.moments() == {"s": (9, 9), "t": (9, 9)}, "where the others end was asked for"
    assert publisher.knows_ends
    publisher.publish("id", 4, {}, changelog_ends={("app-s-changelog", 1): 12, ("a-topic", 0): 50})
    assert topic.moments() == {"s": (9, 12), "t": (9, 9)}
    publisher.say_busy(0.0, None)
    assert publisher.repeat(0.0)
    publisher.finish()
    assert topic.moments() == {"s": (9, 12), "t": (9, 9)}
    topic.ends = 15
    publisher.publish("id", 5, {})
    assert topic.moments() == {"s": (15, 15), "t": (15, 15)}, "what an earlier attempt wrote is asked for"


def test_a_batch_of_ends_that_are_not_all_known_is_no_moment(topic: Topic) -> None:
    topic.silent = {"app-t-changelog"}
    publisher = publisher_of("s", "t")
    publisher.publish("id", 3, {})
    assert topic.moments() == {"s": None, "t": None}
    assert not publisher.knows_ends
    topic.silent = set()
    publisher.publish("id", 4, {}, changelog_ends={("app-s-changelog", 0): 8})
    assert topic.moments() == {"s": (0,), "t": (0,)}


@pytest.mark.parametrize(("pending", "silent", "is_moment"), [(0, "", True), (1, "", False), (0, "s", False)])
def test_at_a_start_the_last_batch_is_a_moment_unless_a_transaction_is_open(
    topic: Topic, pending: int, silent: str, *, is_moment: bool
) -> None:
    """It may be the last batch's own: a commit is answered before each partition has the marker of it."""
    topic.ends, topic.pending, topic.silent = 9, pending, {f"app-{silent}-changelog"}
    publisher = publisher_of("s", "new", added=("new",))
    publisher.publish("id", 3, {("events", 0): 9}, idle=True)
    assert topic.moments() == {"s": (9,) if is_moment else None, "new": None}, "no batch is in a store that was added"
    assert not publisher.knows_ends, "the next batch's must be asked for"
    assert publisher.repeat(0.0)
    assert (topic.moments()["s"] is not None) is is_moment
    topic.silent = set()
    publisher.publish("id", 4, {})
    assert topic.moments() == {"s": (9,), "new": (9,)}


def test_a_batch_of_another_program_is_a_moment_too(topic: Topic) -> None:
    topic.ends = 9
    checkpoint: Any = SimpleNamespace(
        batch=lambda _batch_id: SimpleNamespace(committed_at_ms=1), source_ends=lambda _batch_id: {}
    )
    settings: Any = SimpleNamespace(brokers="broker", heartbeat_interval_ms=0)
    target: Any = SimpleNamespace(application_id="app", query="q")
    changelog = StoreChangelog("s", "app-s-changelog", 2)
    publisher = AttachedCommits(checkpoint, settings, target, changelog, lambda: None, lambda _cause: None)
    publisher.publish_again("id", 7)
    assert topic.moments() == {"s": (9, 9)}
    publisher.publish("id", 12, {}, changelog_ends={(changelog.topic, 1): 14})
    assert topic.moments() == {"s": (9, 14)}


DIED = QueryFailure(2, "ZeroDivisionError at topology.py:19, record orders/3/812", given_up=False)


@pytest.mark.feature("failures-are-seen")
def test_while_a_batch_runs_the_record_says_that_and_proves_nothing_newer(topic: Topic) -> None:
    publisher = publisher_of("s")
    publisher.publish("id", 3, {("events", 0): 5})
    before = topic.records["s"]
    publisher.say_busy(60.0, None)
    assert topic.records["s"] is before, "not so often"
    publisher.say_busy(0.0, None)
    said = topic.records["s"]
    assert (said.busy, said.batch_id, said.changelog_ends) == (True, 3, before.changelog_ends)
    assert said.age_ms >= before.age_ms
    assert publisher.repeat(0.0)
    assert not topic.records["s"].busy
    assert topic.records["s"].age_ms == 0


@pytest.mark.feature("failures-are-seen")
def test_a_failure_is_said_at_once_and_stays_until_a_batch(topic: Topic) -> None:
    publisher = publisher_of("s")
    publisher.say_busy(60.0, DIED)
    said = topic.records["s"].failure
    assert (said.restarts, said.reason, said.given_up) == (2, DIED.reason, False)
    assert topic.proves() == {"s": False}, "it died before its first batch"
    again = QueryFailure(3, DIED.reason, given_up=True)
    publisher.say_busy(60.0, again)
    assert topic.records["s"].failure.given_up
    publisher.publish("id", 0, {})
    assert not topic.records["s"].HasField("failure")
    publisher.say_busy(0.0, DIED)
    publisher.finish(again)
    assert topic.records["s"].stopped
    assert topic.records["s"].failure.given_up


@pytest.mark.feature("failures-are-seen")
def test_a_query_has_recovered_once_nothing_is_left_of_what_made_it_die(
    topic: Topic, request: pytest.FixtureRequest
) -> None:
    publisher, query = publisher_of("s"), Query()
    topic.ends = 6
    publisher.publish("id", 3, {("events", 0): 5})
    query.failure = DIED
    heartbeats = Heartbeats(publisher, query, 0.02, lambda _error: None)
    request.addfinalizer(heartbeats.stop)
    heartbeats.start()
    poll_until(lambda: topic.records["s"].HasField("failure"), 10, "the failure")
    before = topic.written
    poll_until(lambda: topic.written > before + 2, 10, "it says so again")
    assert topic.records["s"].HasField("failure"), "the record that made it die is left"
    topic.ends = 5
    poll_until(lambda: query.failure is None, 10, "its recovery")
    poll_until(lambda: not topic.records["s"].HasField("failure"), 10, "the record of it")
