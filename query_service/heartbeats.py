"""Heartbeats: the node writes its state and its replicas to the members topic, and a tombstone when it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from confluent_kafka import KafkaException, Producer

from statehouse.kafka import clients
from statehouse.kafka.renewed import RenewedProducer
from statehouse.membership import Member, encode_member
from statehouse.waiting import is_set_within

_FLUSH_S = 5.0


class Heartbeats:
    """Writes a heartbeat at every interval, and at once when something has changed.

    Args:
        bootstrap: Kafka bootstrap servers.
        client_id: the producer's client id.
        topic: the members topic.
        member: returns the node's heartbeat, None while the node must be silent.
        interval_s: seconds between heartbeats.
        timeout_ms: a heartbeat that waits longer in the client is dropped: it comes too late to keep us a member.

    """

    def __init__(
        self,
        bootstrap: str,
        client_id: str,
        topic: str,
        member: Callable[[], Member | None],
        *,
        interval_s: float,
        timeout_ms: int,
    ) -> None:
        self._bootstrap, self._client_id, self._topic = bootstrap, client_id, topic
        self._member, self._interval_s, self._timeout_ms = member, interval_s, timeout_ms
        self._due = asyncio.Event()
        self._producer = RenewedProducer(self._new_producer)

    def due(self) -> None:
        """Write the next heartbeat at once."""
        self._due.set()

    async def write_forever(self) -> None:
        """Write until cancelled. Call this once all members that existed at the start are known."""
        while True:
            self._due.clear()
            if (member := self._member()) is not None:
                key, value = encode_member(member)
                with suppress(BufferError, KafkaException):  # the next heartbeat says the same and more
                    self._producer.produce(self._topic, key=key, value=value, partition=0)
            await is_set_within(self._due, self._interval_s)

    async def end(self, instance_id: str, *, leaves: bool) -> None:
        """Write no more heartbeats. A node that `leaves` writes a tombstone."""
        if leaves:
            with suppress(BufferError, KafkaException):  # then the session times out
                self._producer.produce(self._topic, key=instance_id.encode(), value=None, partition=0)
        await asyncio.to_thread(self._producer.flush, _FLUSH_S)

    def _new_producer(self) -> Producer:
        timeout: dict[str, str | float | bool] = {"message.timeout.ms": self._timeout_ms}
        return clients.producer(self._bootstrap, self._client_id, **timeout)
