"""Clients that are replaced when they are lost.

A client may be lost for good: since 2.10 librdkafka drops every broker that a metadata answer does not name, and a
broker that is just starting, with no other around, names none (confluentinc/librdkafka#5301). The client then has no
broker left to ask. Each restart of the only broker does this to a few of a hundred clients. No setting prevents it, and
older versions wait seconds where this one waits milliseconds. So a process that reads or writes for long makes a new
client when the old one gets no answer: a consumer after `SILENCE_S` without a message from a log that has more, a
producer when a record was not delivered in time, an admin client after a question that failed.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any, Final, TypeVar

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from statehouse.errors import ConfigurationError
from statehouse.kafka import clients, codes
from statehouse.runtime.brokers import Brokers

log = structlog.get_logger(__name__)

T = TypeVar("T")

SILENCE_S: Final = 5.0
"""How long a reader waits for records that it knows to be there before it takes its client for lost."""


def _anew(make: Callable[[], T], present: T) -> T:
    """Return a new client; the present one if the files of the login can't be read, as while somebody changes them."""
    try:
        return make()
    except ConfigurationError as error:
        log.warning("a Kafka client can't be replaced", reason=str(error))
        return present


class RenewedAdmin:
    """An admin client for a process that asks the brokers again and again; a new one is made after a failed question.

    Clients that remembered a broker as away have failed to ask it when it was back. Threads may share this object: if
    the questions of two fail at the same time, each makes a new client.
    """

    def __init__(self, brokers: Brokers | str, client_id: str) -> None:
        self._brokers, self._client_id = brokers, client_id
        self._client = clients.admin(brokers, client_id)

    def ask(self, question: Callable[[AdminClient], T]) -> T:
        """Ask a question with the client, and return the answer.

        Raises:
            KafkaException: the question failed; the next one uses a new client.

        """
        try:
            return question(self._client)
        except KafkaException as failed:
            # The failure's frames have the question's futures, and these the failure. So it would stay, and with it the
            # client and its threads, until garbage is looked for: servers do that seldom, and ask every second.
            traceback.clear_frames(failed.__traceback__)
            self._client = _anew(lambda: clients.admin(self._brokers, self._client_id), self._client)
            raise


class RenewedConsumer:
    """A consumer, and when the log was last heard of through it. Belongs to one thread.

    `make()` returns a consumer. `client` is the present one; the caller assigns what it reads.
    """

    def __init__(self, make: Callable[[], Consumer], clock: Callable[[], float] = time.monotonic) -> None:
        self._make, self._clock = make, clock
        self.client = make()
        self._heard_at = clock()

    def note(self, message: Message) -> None:
        """Note a message. A message that only reports an error does not count: it says nothing about the log."""
        if not codes.is_complaint(message):
            self._heard_at = self._clock()

    def expect(self) -> None:
        """Count silence from now on: there is something new to read."""
        self._heard_at = self._clock()

    @property
    def is_silent(self) -> bool:
        """Whether the client is lost, provided that the log has more."""
        return self._clock() - self._heard_at > SILENCE_S

    def renew(self) -> Consumer:
        """Replace the client by a new one, and return that."""
        before, self.client = self.client, _anew(self._make, self.client)
        if self.client is not before:
            before.close()
        self._heard_at = self._clock()
        return self.client

    def close(self) -> None:
        """Close the present client."""
        self.client.close()


class RenewedProducer:
    """A producer for a process that writes again and again, and whose later records make up for lost ones.

    `make()` returns a producer that gives a record up in a bounded time (`message.timeout.ms`). If one was given
    up, the next record gets a new producer, and what still waits in the old one is dropped. Not thread-safe.

    `on_outcome(error)` is called for each record, with None for one that was delivered, during a later `produce` or a
    `flush`.
    """

    def __init__(
        self, make: Callable[[], Producer], on_outcome: Callable[[KafkaError | None], None] = lambda _error: None
    ) -> None:
        self._make, self._on_outcome = make, on_outcome
        self._client = make()
        self._is_lost = False

    def produce(self, topic: str, *, key: bytes, value: bytes | None, partition: int, **more: Any) -> None:  # noqa: ANN401 - as the client takes it
        """Learn whether earlier records were delivered, and produce one. `more`: as the client takes it.

        Raises:
            BufferError, KafkaException: the record is not sent.

        """
        self._client.poll(0)
        if self._is_lost:
            self._client.purge()
            self._client.poll(0)  # what was dropped has its outcome, too
            self._client, self._is_lost = _anew(self._make, self._client), False
        self._client.produce(topic, key=key, value=value, partition=partition, on_delivery=self._note, **more)

    def flush(self, timeout_s: float) -> None:
        """Wait until everything is sent, or the time is over."""
        self._client.flush(timeout_s)

    def _note(self, error: KafkaError | None, _message: Message) -> None:
        self._is_lost = error is not None
        self._on_outcome(error)
