"""Sample data of the examples, and the program that produces it: `python -m examples.samples examples.tally`.

A module `<example>.sample` names its topics (TOPICS: name -> settings) and its records (RECORDS, in order).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Annotated, NamedTuple

import typer

from examples.kafka_samples import BootstrapOption, PartitionsOption, create_missing_topics, send
from statehouse.errors import ConfigurationError
from statehouse.kafka.topics import TopicSpec


class Sample(NamedTuple):
    """A sample record; the timestamp is the event time, in epoch milliseconds."""

    topic: str
    key: str | None
    value: str | None
    timestamp_ms: int


def create_topics(bootstrap: str, topics: Mapping[str, Mapping[str, str]], partitions: int) -> None:
    """Create missing source topics. They keep records of any age."""
    kept = {"retention.ms": "-1", "message.timestamp.before.max.ms": str(2**63 - 1)}
    create_missing_topics(
        bootstrap, (TopicSpec(name, partitions, kept | dict(config)) for name, config in topics.items())
    )


def main(
    example: Annotated[str, typer.Argument(help="Package of the example, as in examples.tally.")],
    bootstrap: BootstrapOption,
    partitions: PartitionsOption = 4,
) -> None:
    """Create the missing source topics of an example, and produce its sample data."""
    try:
        sample = importlib.import_module(f"{example}.sample")
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{example} has no sample data: module {error.name} not found") from error
    create_topics(bootstrap, sample.TOPICS, partitions)
    send(bootstrap, sample.RECORDS)
    print(f"{len(sample.RECORDS)} records to {', '.join(sample.TOPICS)}")


if __name__ == "__main__":
    typer.run(main)
