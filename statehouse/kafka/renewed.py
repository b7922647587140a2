"""Clients that are made anew once they are lost.

A client may be lost for good: since 2.10 librdkafka drops every broker that a metadata answer does not name, and a
broker that is just starting, with no other around, names none (confluentinc/librdkafka#5301). The client then has
nobody left to ask. It happens to a few of a hundred clients in each restart of the only broker; no setting prevents it,
and older versions wait a second at a time for what now takes milliseconds. So a process that reads or writes for long
makes its client anew when it hears nothing: a reader after `SILENCE_S` without a message of a log that has more, a
writer when a record was not delivered in time, and whoever asks the brokers after a question that failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from statehouse.kafka import clients, codes

T = TypeVar("T")

SILENCE_S: Final = 5.0
"""How long a reader waits for records that it knows to be there before it takes its client for lost."""


class RenewedAdmin:
    """An admin client for a process that asks the brokers again and again: made anew after a question that failed.

    What a client remembers of a broker that was away has kept it from asking the one that came back. Threads may share
    it: if the questions of two fail at once, each renews it.
    """

    def __init__(self, bootstrap: str, client_id: str) -> None:
        self._bootstrap, self._client_id = bootstrap, client_id
        self._client = clients.admin(bootstrap, client_id)

    def ask(self, question: Callable[[AdminClient], T]) -> T:
        """Return the answer to a question that is put with the client.

        Raises:
            KafkaException: it failed; the next one is put with another client.

        """
        try:
            return question(self._client)
        except KafkaException:
            self._client = clients.admin(self._bootstrap, self._client_id)
            raise


class RenewedConsumer:
    """A consumer, and when it was last heard of. Belongs to one thread.

    `make()` returns a consumer. `client` is the present one, which has to be told what to read.
    """

    def __init__(self, make: Callable[[], Consumer], clock: Callable[[], float] = time.monotonic) -> None:
        self._make, self._clock = make, clock
        self.client = make()
        self._heard_at = clock()

    def note(self, message: Message) -> None:
        """Take note of a message; a complaint of the client's own is no word of the log."""
        if not codes.is_complaint(message):
            self._heard_at = self._clock()

    def expect(self) -> None:
        """Count silence from now on: there is something new to read."""
        self._heard_at = self._clock()

    @property
    def is_silent(self) -> bool:
        """Whether the client is lost, if what it reads has more."""
        return self._clock() - self._heard_at > SILENCE_S

    def renew(self) -> Consumer:
        """Make the client anew, and return it."""
        self.client.close()
        self.client = self._make()
        self._heard_at = self._clock()
        return self.client

    def close(self) -> None:
        """Close the present client."""
        self.client.close()


class RenewedProducer:
    """A producer for a process that writes again and again, and whose later records make up for the lost ones.

    `make()` returns a producer that gives a record up in a bounded time (`message.timeout.ms`). Made anew before the
    next record when one was given up; what else waits in the client is dropped then. Not thread-safe.
    """

    def __init__(self, make: Callable[[], Producer]) -> None:
        self._make = make
        self._client = make()
        self._is_lost = False

    def produce(self, topic: str, *, key: bytes, value: bytes | None, partition: int) -> None:
        """Look how the earlier records went, and produce one.

        Raises:
            BufferError, KafkaException: it is not sent.

        """
        self._client.poll(0)
        if self._is_lost:
            self._client.purge()
            self._client, self._is_lost = self._make(), False
        self._client.produce(topic, key=key, value=value, partition=partition, on_delivery=self._note)

    def flush(self, timeout_s: float) -> None:
        """Wait until everything is sent, or the time is over."""
        self._client.flush(timeout_s)

    def _note(self, error: KafkaError | None, _message: Message) -> None:
        self._is_lost = error is not None
