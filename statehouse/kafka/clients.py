"""Configurations of librdkafka clients, in one place, so that every client behaves alike."""

from __future__ import annotations

import logging

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

# librdkafka's own lines (reconnects, fencing) go through here instead of stderr.
_LOG = logging.getLogger("statehouse.kafka")

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
    """Return an idempotent producer; `overrides` are librdkafka settings, by their names with dots."""
    config = _COMMON | {"enable.idempotence": True, "acks": "all", "linger.ms": 5} | overrides
    return Producer({"bootstrap.servers": bootstrap, "client.id": client_id, **config}, logger=_LOG)


def admin(bootstrap: str, client_id: str) -> AdminClient:
    """Return an admin client."""
    return AdminClient({"bootstrap.servers": bootstrap, "client.id": client_id, **_COMMON}, logger=_LOG)
