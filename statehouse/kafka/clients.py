"""Configurations of librdkafka clients, in one place, so that every client behaves alike.

A client may be lost for good: since 2.10 librdkafka drops every broker that a metadata answer does not name, and one
that is just starting, with no other around, names none (confluentinc/librdkafka#5301). The client then has nobody left
to ask. It happens to a few of a hundred clients in each restart of the only broker; no setting prevents it, and older
versions wait a second at a time for what now takes milliseconds. So who reads or writes for long makes its client anew
when it hears nothing: a reader after `SILENCE_S` without a record of a log that goes on, a writer when a record was not
delivered in time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

# librdkafka's own lines (reconnects, fencing) go through here instead of stderr.
_LOG = logging.getLogger("statehouse.kafka")

T = TypeVar("T")

SILENCE_S: Final = 5.0
"""How long a reader waits for records that it knows to be there before it takes its client for lost."""

# Reconnect quickly: brokers restart, and staleness grows for as long as we are away. But a consumer whose only broker
# is away never backs off further than its first pause (it looks for its group's coordinator anew each time), and spends
# 2.4 % of a core on it at 50 ms, 0.6 % at 200.
_COMMON: dict[str, str | float | bool] = {
    "reconnect.backoff.ms": 200,
    "reconnect.backoff.max.ms": 1000,
    "socket.connection.setup.timeout.ms": 5000,
    # After a network cut a connection may stay dead for as long again as the cut has lasted; by default requests on it
    # are given up after 60 s, and a node whose heartbeats get through would be made active while it reads nothing.
    "socket.timeout.ms": 10_000,
    "topic.metadata.refresh.interval.ms": 60_000,
    "log.connection.close": False,
}

# Restores are bound by how much librdkafka may queue and how soon it asks again; the defaults leave
# a follower idle for up to half a second when it has drained its queue.
_CONSUMER: dict[str, str | float | bool] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "fetch.wait.max.ms": 100,
    "fetch.queue.backoff.ms": 5,
    "queued.min.messages": 200_000,
    "queued.max.messages.kbytes": 65_536,
}


def consumer(bootstrap: str, client_id: str, **overrides: str | float | bool) -> Consumer:
    """Return a read-committed consumer for `assign()` (no group is joined), with partition-end events."""
    config = _COMMON | _CONSUMER | {"group.id": f"{client_id}-unused"} | overrides
    return Consumer({"bootstrap.servers": bootstrap, "client.id": client_id, **config}, logger=_LOG)


def producer(bootstrap: str, client_id: str, **overrides: str | float | bool) -> Producer:
    """Return an idempotent producer; pass `transactional_id` style settings through `overrides` with dots."""
    config = _COMMON | {"enable.idempotence": True, "acks": "all", "linger.ms": 5} | overrides
    return Producer({"bootstrap.servers": bootstrap, "client.id": client_id, **config}, logger=_LOG)


def admin(bootstrap: str, client_id: str) -> AdminClient:
    """Return an admin client."""
    return AdminClient({"bootstrap.servers": bootstrap, "client.id": client_id, **_COMMON}, logger=_LOG)


class RenewedAdmin:
    """An admin client for who asks the brokers again and again: after a question that failed it is made anew.

    What a client remembers of a broker that was away has kept it from asking the one that came back. Threads may share
    it: of two that fail at once each renews it.
    """

    def __init__(self, bootstrap: str, client_id: str) -> None:
        self._bootstrap, self._client_id = bootstrap, client_id
        self._admin = admin(bootstrap, client_id)

    def ask(self, question: Callable[[AdminClient], T]) -> T:
        """Return what a question that is put with the client is answered.

        Raises:
            KafkaException: it failed; the next one is put with another client.

        """
        try:
            return question(self._admin)
        except KafkaException:
            self._admin = admin(self._bootstrap, self._client_id)
            raise
