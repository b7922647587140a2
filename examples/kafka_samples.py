"""Shared code of the programs that produce sample data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer
from confluent_kafka import KafkaError, Message

from statehouse.kafka import clients
from statehouse.kafka.topics import TopicSpec, ensure_topics, partition_counts

Record = tuple[bytes | None, bytes | None]

BootstrapOption = Annotated[str, typer.Option(envvar="STATEHOUSE_BOOTSTRAP", help="Kafka's bootstrap servers.")]
PartitionsOption = Annotated[int, typer.Option(help="Partitions of the topics of events, if they are created.")]

_TIMEOUT_S = 30.0
_CLIENT = "sample-data"
_NOW = 0  # to the client library


def create_missing_topics(bootstrap: str, specs: Iterable[TopicSpec]) -> None:
    """Create missing topics; existing ones stay unchanged."""
    admin, wanted = clients.admin(bootstrap, _CLIENT), list(specs)
    existing = partition_counts(admin, [spec.name for spec in wanted])
    ensure_topics(admin, [spec for spec in wanted if existing[spec.name] is None])


def produce_records(bootstrap: str, topic: str, records: Sequence[Record]) -> None:
    """Produce records with the present time, and print their number; see `send`."""
    send(bootstrap, ((topic, key, value, _NOW) for key, value in records))
    print(f"{topic}: {len(records)} records")


def send(bootstrap: str, records: Iterable[tuple[str, bytes | str | None, bytes | str | None, int]]) -> None:
    """Produce (topic, key, value, timestamp in ms), partitioned like Java's client; return when all are acknowledged.

    Raises:
        SystemExit: the broker doesn't acknowledge them in time.

    """
    producer = clients.producer(bootstrap, _CLIENT, partitioner="murmur2_random")
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    for topic, key, value, timestamp_ms in records:
        producer.produce(topic, key=key, value=value, timestamp=timestamp_ms, on_delivery=delivered)
        producer.poll(0)
    left = producer.flush(_TIMEOUT_S)
    if left or failures:
        raise SystemExit(f"{left} records unacknowledged after {_TIMEOUT_S:g} s, failures: {failures}")
