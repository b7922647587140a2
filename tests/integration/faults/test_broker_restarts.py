"""Clients go on when the only broker comes back."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from statehouse.kafka import clients
from statehouse.local.kafka import EmbeddedKafka
from tests.support.kafka import create_topic, produce
from tests.support.polling import poll_until

CLIENTS = 60
RESTARTS = 10


@pytest.mark.long  # each client forgets the broker in one restart of some dozens, if it can forget it
@pytest.mark.timeout(600)
def test_no_consumer_forgets_a_broker_that_names_none_while_it_starts(tmp_path: Path) -> None:
    with EmbeddedKafka(data_dir=tmp_path) as kafka:
        create_topic(kafka.bootstrap, "topic")
        consumers = [clients.consumer(kafka.bootstrap, f"client-{number}") for number in range(CLIENTS)]
        for consumer in consumers:
            consumer.assign([TopicPartition("topic", 0, 0)])
        read: Counter[int] = Counter()

        def have_read(count: int) -> bool:
            for number, consumer in enumerate(consumers):
                read[number] += sum(message.error() is None for message in consumer.consume(10, 0.01))
            return min(read[number] for number in range(CLIENTS)) >= count

        for count in range(1, RESTARTS + 2):
            produce(kafka.bootstrap, "topic", [(b"k", b"v")])
            poll_until(partial(have_read, count), 30, "every client to read on")
            kafka.stop()
            kafka.start()
        for consumer in consumers:
            consumer.close()
