"""A node on a real broker before, during and after a store's first batch, which is a transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer

from processor.reports.commits import CommitsPublisher, StoreChangelog
from statehouse.errors import Reason
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import query_service_pb2
from tests.support.fleet import Fleet
from tests.support.polling import poll_until
from tests.support.refusals import why_refused
from tests.support.shared import ServedStore, new_store, shared_fleet


@pytest.fixture(scope="module")
def shared(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with shared_fleet(kafka.bootstrap, tmp_path_factory, "first-batch", partitions=1) as fleet:
        fleet.node("n1")
        yield fleet


class Batches:
    """A processor's part: transactions in the changelog, and the commits topic."""

    def __init__(self, store: ServedStore) -> None:
        self._store = store
        self._producer = Producer(
            {"bootstrap.servers": store.bootstrap, "transactional.id": f"{store.fleet.application_id}-{store.name}"}
        )
        self._producer.init_transactions(30.0)
        changelog = StoreChangelog(store.name, store.changelog, 1)
        self._commits = CommitsPublisher(store.bootstrap, store.fleet.application_id, store.name, [changelog])
        self._commits.start()
        self.number = 0

    def begin(self, **entries: str) -> None:
        self._producer.begin_transaction()
        for key, value in entries.items():
            self._producer.produce(self._store.changelog, key=key.encode(), value=value.encode(), partition=0)
        assert self._producer.flush(30.0) == 0

    def abort(self) -> None:
        self._producer.abort_transaction(30.0)

    def commit(self) -> None:
        self._producer.commit_transaction(30.0)

    def report(self) -> None:
        self._commits.publish("query", self.number, {("events", 0): self.number + 1})
        self.number += 1

    def say_that_there_is_nothing(self) -> None:
        assert self._commits.publish_nothing_to_read("query", 0.0)


def reason(store: ServedStore, key: str) -> Reason | None:
    return why_refused(lambda: store.get(key))


def answered(store: ServedStore, key: str) -> query_service_pb2.GetResponse:
    poll_until(lambda: reason(store, key) is None, 30, "an answer")
    return store.get(key)


def test_a_key_is_absent_only_once_the_first_batch_is_whole(shared: Fleet, unique_name: Callable[[str], str]) -> None:
    store = new_store(shared, shared.processes[0], unique_name("store"), committed=True)
    batches = Batches(store)
    poll_until(lambda: reason(store, "a") is Reason.STORE_NOT_BUILT, 30, "the commits topic to be read")
    batches.begin(b="0")
    batches.abort()
    batches.begin(a="1")
    assert reason(store, "a") is Reason.STORE_NOT_BUILT
    batches.commit()
    poll_until(lambda: store.replica().position > 2, 30, "the records to be read")
    assert reason(store, "a") is Reason.STORE_NOT_BUILT, "whether that was all of the batch isn't known"
    batches.report()
    assert answered(store, "a").value.text == "1"
    assert not store.get("b").found


def test_an_empty_system_says_so_once_its_processor_does(shared: Fleet, unique_name: Callable[[str], str]) -> None:
    store = new_store(shared, shared.processes[0], unique_name("store"), committed=True)
    Batches(store).say_that_there_is_nothing()
    assert not answered(store, "a").found


def test_lag_is_counted_to_the_last_stable_offset(shared: Fleet, unique_name: Callable[[str], str]) -> None:
    store = new_store(shared, shared.processes[0], unique_name("store"), committed=True)
    batches = Batches(store)
    batches.begin(a="1")
    batches.commit()
    batches.report()
    answered(store, "a")
    batches.begin(a="2", b="2", c="2")
    before, begun = store.get("a").replica.position, time.monotonic()

    def is_confirmed_since() -> bool:
        asked = time.monotonic()
        return store.get("a").replica.staleness_ms / 1000 < asked - begun

    poll_until(is_confirmed_since, 30, "the broker to be asked for the end since the transaction began")
    assert store.get("a").replica.lag == 0
    assert store.get("a", max_lag=0).value.text == "1", "what is not committed is not lacking"
    assert store.get("a").replica.position == before
    batches.commit()
    poll_until(lambda: store.get("a", max_lag=3).value.text == "2", 30, "the batch")
