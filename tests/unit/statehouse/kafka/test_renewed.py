"""Clients made anew: when one is taken for lost, and what becomes of what it was doing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from statehouse.kafka import clients, codes
from statehouse.kafka.offsets import end_offsets
from statehouse.kafka.renewed import SILENCE_S, RenewedAdmin, RenewedConsumer, RenewedProducer
from statehouse.kafka.topics import topic_id


def test_an_admin_is_kept_until_a_question_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, ...]] = []

    def make(*names: str) -> int:
        made.append(names)
        return len(made)

    def fail(_client: object) -> None:
        raise KafkaException(KafkaError(codes.TIMED_OUT))

    monkeypatch.setattr(clients, "admin", make)
    admin = RenewedAdmin("broker", "me")
    assert [admin.ask(lambda client: client) for _ in range(2)] == [1, 1]
    with pytest.raises(KafkaException):
        admin.ask(fail)
    assert admin.ask(lambda client: client) == 2
    assert made == [("broker", "me")] * 2


@pytest.mark.parametrize(
    "question",
    [lambda client: end_offsets(client, [("t", 0)], 0.1), lambda client: topic_id(client, "t", 0.1)],
    ids=["ends", "id"],
)
def test_an_admin_that_failed_ends_without_a_search_for_garbage(question: Callable[[AdminClient], Any]) -> None:
    made: list[weakref.ref[AdminClient]] = []

    def asked(client: AdminClient) -> Any:
        made.append(weakref.ref(client))
        return question(client)

    admin = RenewedAdmin("127.0.0.1:9", "me")
    gc.disable()
    try:
        for _ in range(2):
            with pytest.raises(KafkaException):
                admin.ask(asked)
    finally:
        gc.enable()
    assert made[0]() is None


class Message:
    """What a consumer returns: a record, its word that the partition ends, or a complaint."""

    def __init__(self, code: int | None = None) -> None:
        self._code = code

    def error(self) -> KafkaError | None:
        return None if self._code is None else KafkaError(self._code)


class Consumer:
    """Only knows whether it was closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Clock:
    """Time as the test wants it."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("event", "is_silent"),
    [
        (lambda consumer: consumer.note(Message()), False),
        (lambda consumer: consumer.note(Message(codes.PARTITION_EOF)), False),
        (lambda consumer: consumer.expect(), False),
        (lambda consumer: consumer.renew(), False),
        (lambda consumer: consumer.note(Message(codes.ALL_BROKERS_DOWN)), True),
        (lambda _consumer: None, True),
    ],
    ids=["a record", "the end", "something new to read", "a new client", "a complaint", "nothing"],
)
def test_a_consumer_is_silent_until_the_log_is_heard_of(
    event: Callable[[RenewedConsumer], None], is_silent: bool
) -> None:
    clock = Clock()
    consumer = RenewedConsumer(Consumer, clock)
    clock.pass_by(SILENCE_S)
    assert not consumer.is_silent
    clock.pass_by(0.001)
    assert consumer.is_silent
    event(consumer)
    assert consumer.is_silent is is_silent


def test_a_consumer_that_is_renewed_is_closed_and_another_takes_its_place() -> None:
    consumer = RenewedConsumer(Consumer)
    first = consumer.client
    second = consumer.renew()
    assert consumer.client is second is not first
    assert (first.is_closed, second.is_closed) == (True, False)
    consumer.close()
    assert second.is_closed


class Producer:
    """Tells of deliveries when it is asked, as scripted."""

    def __init__(self, outcomes: list[KafkaError | None]) -> None:
        self.outcomes = outcomes
        self.produced: list[bytes | None] = []
        self.waiting: list[Callable[..., None]] = []
        self.is_purged = False
        self.flushed: list[float] = []

    def produce(self, _topic: str, *, value: bytes | None, on_delivery: Callable[..., None], **_more: Any) -> None:
        if value == b"refused":
            raise BufferError
        self.produced.append(value)
        self.waiting.append(on_delivery)

    def poll(self, _timeout_s: float) -> None:
        while self.waiting and self.outcomes:
            self.waiting.pop(0)(self.outcomes.pop(0), None)

    def purge(self) -> None:
        self.is_purged = True

    def flush(self, timeout_s: float) -> None:
        self.flushed.append(timeout_s)


class Made:
    """The producers that were made."""

    def __init__(self, *outcomes: KafkaError | None) -> None:
        self.all: list[Producer] = []
        self._outcomes = list(outcomes)

    def __call__(self) -> Producer:
        self.all.append(Producer(self._outcomes if not self.all else [None] * 10))
        return self.all[-1]

    @property
    def produced(self) -> list[list[bytes | None]]:
        return [producer.produced for producer in self.all]


LATE = KafkaError(KafkaError._MSG_TIMED_OUT)


def _produce(producer: RenewedProducer, *values: bytes | None) -> None:
    for value in values:
        producer.produce("topic", key=b"k", value=value, partition=0)


def test_a_producer_is_kept_while_records_are_delivered() -> None:
    made = Made(None, None, None)
    _produce(RenewedProducer(made), b"1", b"2", None)
    assert made.produced == [[b"1", b"2", None]]


def test_a_producer_is_made_anew_before_the_record_after_a_loss() -> None:
    made = Made(None, LATE)
    producer = RenewedProducer(made)
    _produce(producer, b"1", b"2", b"3", b"4")
    assert made.produced == [[b"1", b"2"], [b"3", b"4"]]
    assert [each.is_purged for each in made.all] == [True, False]
    producer.flush(5.0)
    assert [each.flushed for each in made.all] == [[], [5.0]]


def test_a_loss_that_a_delivery_follows_shows_that_the_client_is_well() -> None:
    made = Made(None, LATE, None)
    producer = RenewedProducer(made)
    first = made.all[0]
    first.outcomes, later = [], first.outcomes
    _produce(producer, b"1", b"2", b"3")
    first.outcomes += later
    _produce(producer, b"4")
    assert made.produced == [[b"1", b"2", b"3", b"4"]]


def test_a_record_that_is_refused_leaves_the_client_as_it_is() -> None:
    made = Made(None, None)
    producer = RenewedProducer(made)
    with pytest.raises(BufferError):
        _produce(producer, b"refused")
    _produce(producer, b"1")
    assert made.produced == [[b"1"]]
