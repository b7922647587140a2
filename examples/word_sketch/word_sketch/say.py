"""Sends one message: `python -m word_sketch.say news "Spark reads, Spark writes"`."""

from __future__ import annotations

from typing import Annotated

import typer
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from .topology import MESSAGES


def main(
    channel: Annotated[str, typer.Argument(help="Where it is said: the message's key.")],
    text: Annotated[str, typer.Argument(help="What is said.")],
    bootstrap: Annotated[str, typer.Option(help="Kafka bootstrap servers.")] = "127.0.0.1:9092",
) -> None:
    """Send a message, creating the topic if there is none."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    try:
        admin.create_topics([NewTopic(MESSAGES, num_partitions=2)])[MESSAGES].result(30)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(MESSAGES, key=channel, value=text)
    if producer.flush(30):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
