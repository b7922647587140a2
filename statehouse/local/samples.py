"""Sample data of applications, and the program that feeds it: `python -m statehouse.local.samples hello.sample`.

A module of sample data names its topics (TOPICS: name -> settings) and its records (RECORDS, in order). The one of an
application is the module `sample` next to its topology.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer
from confluent_kafka import KafkaError, Message

from statehouse.errors import ConfigurationError
from statehouse.kafka import clients
from statehouse.kafka.topics import TopicSpec, ensure_topics, partition_counts
from statehouse.local.errors import LocalError
from statehouse.observability import logs

NOW: Final = 0
DEFAULT_PARTITIONS: Final = 4

_TIMEOUT_S: Final = 30.0
_CLIENT: Final = "sample-data"


class Sample(NamedTuple):
    """A sample record; text is UTF-8. The timestamp is the event time, in epoch milliseconds; NOW: when it is sent."""

    topic: str
    key: str | bytes | None
    value: str | bytes | None
    timestamp_ms: int = NOW


class Unacknowledged(LocalError):
    """The broker hasn't acknowledged all records of a sample."""


def create_topics(bootstrap: str, topics: Mapping[str, Mapping[str, str]], partitions: int) -> None:
    """Create missing source topics, which then keep records of any age; existing ones stay unchanged."""
    kept = {"retention.ms": "-1", "message.timestamp.before.max.ms": str(2**63 - 1)}
    admin = clients.admin(bootstrap, _CLIENT)
    existing = partition_counts(admin, list(topics))
    missing = [TopicSpec(name, partitions, kept | dict(topics[name])) for name in topics if existing[name] is None]
    ensure_topics(admin, missing)


def send(bootstrap: str, records: Iterable[Sample]) -> None:
    """Produce records, partitioned like Java's client; return when all are acknowledged.

    Raises:
        Unacknowledged: the broker doesn't acknowledge them in time.

    """
    producer = clients.producer(bootstrap, _CLIENT, partitioner="murmur2_random")
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    for topic, key, value, timestamp_ms in records:
        while True:
            try:
                producer.produce(topic, key=key, value=value, timestamp=timestamp_ms, on_delivery=delivered)
            except BufferError:  # more than the client can hold
                producer.poll(1.0)
            else:
                break
        producer.poll(0)
    left = producer.flush(_TIMEOUT_S)
    if left or failures:
        said = "; ".join(sorted({failure.str() for failure in failures})) or "no answer"
        raise Unacknowledged(
            f"the broker has not acknowledged all records, {left + len(failures)} of them within {_TIMEOUT_S:g} s "
            f"({said}): look into its log, and feed the sample again."
        )


def main(
    sample: Annotated[str, typer.Argument(help="Module with the sample, as in examples.tally.sample.")],
    bootstrap: Annotated[str, typer.Option(envvar="STATEHOUSE_BOOTSTRAP", help="Kafka's bootstrap servers.")],
    partitions: Annotated[
        int, typer.Option(min=1, help="Partitions of the topics that are created.")
    ] = DEFAULT_PARTITIONS,
) -> None:
    """Create the missing topics of a sample, and produce its records."""
    logs.configure("WARNING")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(sample)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{sample} can't be imported: module {error.name} not found") from error
    missing = [name for name in ("TOPICS", "RECORDS") if not hasattr(module, name)]
    if missing:
        raise ConfigurationError(f"{sample} must define TOPICS and RECORDS: it lacks {', '.join(missing)}")
    create_topics(bootstrap, module.TOPICS, partitions)
    send(bootstrap, module.RECORDS)
    sys.stdout.write(f"{len(module.RECORDS)} records to {', '.join(module.TOPICS)}\n")


if __name__ == "__main__":
    typer.run(main)
