"""Heartbeats: the node writes its state and its replicas to the members topic, and a tombstone when it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog
from confluent_kafka import KafkaException, Producer

from statehouse.kafka import clients
from statehouse.kafka.renewed import RenewedProducer
from statehouse.membership import Member, encode_member
from statehouse.waiting import is_set_within

log = structlog.get_logger(__name__)

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
        on_failure: called for each heartbeat that didn't reach Kafka.

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
        on_failure: Callable[[], None],
    ) -> None:
        self._bootstrap, self._client_id, self._topic = bootstrap, client_id, topic
        self._member, self._interval_s, self._timeout_ms = member, interval_s, timeout_ms
        self._on_failure, self._failed = on_failure, 0
        self._due = asyncio.Event()
        self._producer = RenewedProducer(self._new_producer, self._note)

    def due(self) -> None:
        """Write the next heartbeat at once."""
        self._due.set()

    async def write_forever(self) -> None:
        """Write until cancelled. Call this once all members that existed at the start are known."""
        while True:
            self._due.clear()
            if (member := self._member()) is not None:
                key, value = encode_member(member)
                try:
                    self._producer.produce(self._topic, key=key, value=value, partition=0)
                except (BufferError, KafkaException) as error:  # the next heartbeat says the same and more
                    self._note(error)
            await is_set_within(self._due, self._interval_s)

    async def end(self, instance_id: str, *, leaves: bool) -> None:
        """Write no more heartbeats. A node that `leaves` writes a tombstone."""
        if leaves:
            with suppress(BufferError, KafkaException):  # then the session times out
                self._producer.produce(self._topic, key=instance_id.encode(), value=None, partition=0)
        await asyncio.to_thread(self._producer.flush, _FLUSH_S)

    def _note(self, error: object | None) -> None:
        """Count a heartbeat that failed, and log the first one and when they arrive again."""
        if error is None:
            if self._failed:
                log.info("heartbeats reach Kafka again", failed=self._failed)
            self._failed = 0
            return
        self._failed += 1
        self._on_failure()
        if self._failed == 1:
            log.warning("heartbeat not written: a node that is silent for long loses its tasks", error=str(error))

    def _new_producer(self) -> Producer:
        timeout: dict[str, str | float | bool] = {"message.timeout.ms": self._timeout_ms}
        return clients.producer(self._bootstrap, self._client_id, **timeout)
