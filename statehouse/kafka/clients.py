"""Configurations of librdkafka clients, in one place, so that every client behaves alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from statehouse.errors import ConfigurationError
from statehouse.kafka.security import client_options
from statehouse.runtime.brokers import PLAINTEXT, Brokers

Client = TypeVar("Client")

# librdkafka's own lines (reconnects, fencing) go through here instead of stderr.
_LOG = logging.getLogger("statehouse.kafka")

# Reconnect quickly: brokers restart, and staleness grows for as long as we are away. But a consumer whose only broker
# is away never backs off further than its first pause (it looks for its group's coordinator anew each time), and spends
# 2.4 % of a core on it at 50 ms, 0.6 % at 200.
_COMMON: dict[str, str | float | bool] = {
    "reconnect.backoff.ms": 200,
    "reconnect.backoff.max.ms": 1000,
    "socket.connection.setup.timeout.ms": 5000,
    # After a network cut a connection may stay dead for as long again as the cut has lasted. By default requests on it
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


OnError = Callable[[KafkaError], None]
"""Told of a client's own errors, such as a refused login, when the client is polled."""


def consumer(
    brokers: Brokers | str, client_id: str, on_error: OnError | None = None, /, **overrides: str | float | bool
) -> Consumer:
    """Return a read-committed consumer for `assign()` (no group is joined), with partition-end events.

    Raises:
        ConfigurationError: a file of the brokers' security can't be read or used; so do the functions below.

    """
    config = _COMMON | _CONSUMER | {"group.id": f"{client_id}-unused"} | overrides
    return _made(Consumer, brokers, client_id, config, on_error)


def producer(brokers: Brokers | str, client_id: str, **overrides: str | float | bool) -> Producer:
    """Return an idempotent producer; `overrides` are librdkafka settings, by their names with dots."""
    config = _COMMON | {"enable.idempotence": True, "acks": "all", "linger.ms": 5} | overrides
    return _made(Producer, brokers, client_id, config, None)


def admin(brokers: Brokers | str, client_id: str, on_error: OnError | None = None) -> AdminClient:
    """Return an admin client."""
    return _made(AdminClient, brokers, client_id, _COMMON, on_error)


def _made(
    kind: Callable[..., Client],
    brokers: Brokers | str,
    client_id: str,
    config: Mapping[str, str | float | bool],
    on_error: OnError | None,
) -> Client:
    """Make a client of a kind. Here, and only here, the secret goes into it."""
    brokers = Brokers.of(brokers)
    told = {} if on_error is None else {"error_cb": on_error}
    names = {"bootstrap.servers": brokers.bootstrap, "client.id": client_id}
    security = client_options(brokers.security)
    try:
        return kind({**names, **config, **security, **told}, logger=_LOG)
    except KafkaException as failure:
        # Such as a key that does not fit its certificate: the client loads both together.
        if brokers.security == PLAINTEXT:
            raise
        raise ConfigurationError(f"the settings kafka_* give no client: {failure.args[0].str()}") from failure
