"""The topics that both sides read, and what is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import KafkaException, Producer

from bench.data import key_of, value_of
from bench.failure import BenchFailure
from statehouse.contract.partitioning import partition_for
from statehouse.kafka import clients
from statehouse.kafka.offsets import last_stable_offsets
from statehouse.kafka.topics import TopicSpec, ensure_topics

_TIMEOUT_S = 120.0
_QUEUE_RECORDS = 500_000


def create_topic(bootstrap: str, topic: str, partitions: int, config: Mapping[str, str]) -> None:
    """Create a topic."""
    ensure_topics(clients.admin(bootstrap, "bench"), [TopicSpec(topic, partitions, config)], _TIMEOUT_S)


def produce(
    bootstrap: str,
    topic: str,
    partitions: int,
    numbers: Iterable[int],
    version: int = 0,
    tail_of: Callable[[int], bytes] = lambda _number: b"",
) -> None:
    """Write the keys of these numbers, with their values in a version, to the partitions that Java's clients choose.

    Each value goes on with `tail_of` its key's number.

    Raises:
        BenchFailure: not all were acknowledged.

    """
    producer = clients.producer(
        bootstrap, "bench", **{"linger.ms": 50, "queue.buffering.max.messages": 2 * _QUEUE_RECORDS}
    )
    failures: list[object] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(error)

    for count, number in enumerate(numbers, 1):
        key, value = key_of(number).encode(), value_of(number, version).encode() + tail_of(number)
        _send(producer, topic, key, value, partition_for(key, partitions), delivered)
        if count % _QUEUE_RECORDS == 0:
            producer.flush(_TIMEOUT_S)
    left = producer.flush(_TIMEOUT_S)
    if left or failures:
        raise BenchFailure(f"{left} records of {topic} were not acknowledged, failures: {failures[:3]}")


def _send(producer: Producer, topic: str, key: bytes, value: bytes, partition: int, delivered: object) -> None:
    while True:
        try:
            producer.produce(topic, key=key, value=value, partition=partition, on_delivery=delivered)
        except BufferError:  # as many bytes wait as may wait
            producer.poll(1.0)
            continue
        producer.poll(0)
        return


def record_count(bootstrap: str, topic: str, partitions: int) -> int:
    """Return the sum of a topic's end offsets; 0 if there is no such topic."""
    try:
        ends = last_stable_offsets(clients.admin(bootstrap, "bench"), [(topic, each) for each in range(partitions)])
    except KafkaException:
        return 0
    return sum(ends.values())
