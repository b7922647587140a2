"""Produce the sample data: `python -m examples.leaderboard.produce --bootstrap HOST:PORT`."""

from __future__ import annotations

from typing import Annotated

import typer
from confluent_kafka import KafkaError, Message

from examples.leaderboard import sample
from examples.leaderboard.topology import PLAYERS, PRODUCTS, SCORES
from statehouse.kafka import clients
from statehouse.kafka.topics import TopicSpec, ensure_topics, partition_counts

_TIMEOUT_S = 30.0


def create_source_topics(bootstrap: str, partitions: int) -> None:
    """Create the source topics that are missing; tables are compacted."""
    admin = clients.admin(bootstrap, "leaderboard-produce")
    compacted = {"cleanup.policy": "compact"}
    wanted = [
        TopicSpec(SCORES, partitions),
        TopicSpec(PLAYERS, partitions, compacted),
        TopicSpec(PRODUCTS, 1, compacted),
    ]
    existing = partition_counts(admin, [spec.name for spec in wanted])
    ensure_topics(admin, [spec for spec in wanted if existing[spec.name] is None])


def produce_records(bootstrap: str, topic: str, records: list[sample.Record]) -> None:
    """Produce records and wait for the broker to have them.

    Raises:
        SystemExit: it doesn't take them.

    """
    producer = clients.producer(bootstrap, "leaderboard-produce")
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    for key, value in records:
        producer.produce(topic, key=key, value=value, on_delivery=delivered)
    left = producer.flush(_TIMEOUT_S)
    if left or failures:
        raise SystemExit(f"{topic}: {left} records unacknowledged after {_TIMEOUT_S:g} s, failures: {failures}")


def main(
    bootstrap: Annotated[str, typer.Option(envvar="STATEHOUSE_BOOTSTRAP", help="Kafka's bootstrap servers.")],
    partitions: Annotated[int, typer.Option(help="Partitions of score-events and players, if they are created.")] = 4,
) -> None:
    """Create the source topics if they are missing, and produce the tables, then the scores."""
    create_source_topics(bootstrap, partitions)
    for topic, records in (
        (PLAYERS, sample.player_records()),
        (PRODUCTS, sample.product_records()),
        (SCORES, sample.score_records()),
    ):
        produce_records(bootstrap, topic, records)
        print(f"{topic}: {len(records)} records")


if __name__ == "__main__":
    typer.run(main)
