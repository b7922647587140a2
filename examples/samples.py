"""Sample data of the examples, and the program that produces it: `python -m examples.samples examples.tally`.

A module `<example>.sample` names its topics (TOPICS: name -> settings) and its records (RECORDS, in order).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import Annotated, NamedTuple

import typer
from confluent_kafka import KafkaError, Message

from statehouse.errors import ConfigurationError
from statehouse.kafka import clients
from statehouse.kafka.topics import TopicSpec, ensure_topics, partition_counts
from statehouse.partitioning import partition_for

_TIMEOUT_S = 30.0


class Sample(NamedTuple):
    """A record of a sample. Its timestamp is its event time, in epoch milliseconds."""

    topic: str
    key: str | None
    value: str | None
    timestamp_ms: int


def create_topics(bootstrap: str, topics: Mapping[str, Mapping[str, str]], partitions: int) -> None:
    """Create the source topics that are missing. Records of any time stay: nothing is deleted by their age."""
    admin = clients.admin(bootstrap, "samples")
    existing = partition_counts(admin, list(topics))
    kept = {"retention.ms": "-1", "message.timestamp.before.max.ms": str(2**63 - 1)}
    wanted = [TopicSpec(name, partitions, kept | dict(config)) for name, config in topics.items()]
    ensure_topics(admin, [spec for spec in wanted if existing[spec.name] is None])


def produce(bootstrap: str, records: Iterable[Sample]) -> int:
    """Produce records, placed by their keys as Kafka's Java clients do, and wait for the broker to have them.

    Raises:
        SystemExit: it doesn't take them.

    """
    producer = clients.producer(bootstrap, "samples")
    counts = partition_counts(clients.admin(bootstrap, "samples"), list({record.topic for record in records}))
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    produced = 0
    for topic, key, value, timestamp_ms in records:
        partition = 0 if key is None else partition_for(key.encode(), counts[topic] or 1)
        producer.produce(
            topic, key=key, value=value, partition=partition, timestamp=timestamp_ms, on_delivery=delivered
        )
        producer.poll(0)
        produced += 1
    left = producer.flush(_TIMEOUT_S)
    if left or failures:
        raise SystemExit(f"{left} records unacknowledged after {_TIMEOUT_S:g} s, failures: {failures}")
    return produced


def main(
    example: Annotated[str, typer.Argument(help="Package of the example, as in examples.tally.")],
    bootstrap: Annotated[str, typer.Option(envvar="STATEHOUSE_BOOTSTRAP", help="Kafka's bootstrap servers.")],
    partitions: Annotated[int, typer.Option(help="Partitions of the source topics, if they are created.")] = 4,
) -> None:
    """Create an example's source topics if they are missing, and produce its sample data."""
    try:
        sample = importlib.import_module(f"{example}.sample")
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{example} has no sample data: module {error.name} not found") from error
    create_topics(bootstrap, sample.TOPICS, partitions)
    print(f"{produce(bootstrap, sample.RECORDS)} records to {', '.join(sample.TOPICS)}")


if __name__ == "__main__":
    typer.run(main)
