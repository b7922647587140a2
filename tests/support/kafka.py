"""Short forms of what most tests do with a broker, each with a deadline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from confluent_kafka.cimpl import NewTopic  # .admin imports it, without exporting it to type checkers

from statehouse.kafka.topics import topic_settings
from tests.support.polling import poll_until

DEADLINE_S: Final = 30.0

T = TypeVar("T")

Record = tuple[bytes | None, bytes | None]
PlacedRecord = tuple[int, bytes | None, bytes | None, int]


# Idempotence would cost half a second a producer, for its id. One request at a time keeps the order without, and none
# is sent twice unless its connection breaks.
# `flush` sends what is written to a partition in one go, in one piece: readers see all of it at the same time, or
# nothing.
_PRODUCER: Final = {"acks": "all", "max.in.flight": 1, "linger.ms": 60_000}


def unless(passing: Collection[int], ask: Callable[[], T]) -> T | None:
    """Ask a broker; return None if it fails for one of the reasons that pass, by their codes."""
    try:
        return ask()
    except KafkaException as error:
        if error.args[0].code() not in passing:
            raise
        return None


def create_topic(bootstrap: str, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
    """Create `topic` and return once the broker leads every partition of it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new_topic = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
    admin.create_topics([new_topic], operation_timeout=DEADLINE_S)[topic].result(DEADLINE_S)

    def has_leaders() -> bool:
        found = admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        return len(found) == partitions and all(p.leader >= 0 for p in found.values())

    poll_until(has_leaders, DEADLINE_S, f"leaders of {topic}")


def alter_topic(bootstrap: str, topic: str, config: Mapping[str, str]) -> None:
    """Change settings of a topic, the others stay; returns when the broker shows them, after it has agreed to them."""
    changes = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(DEADLINE_S)
    poll_until(lambda: config.items() <= topic_settings(admin, topic).items(), DEADLINE_S, f"the settings of {topic}")


def topics_of(bootstrap: str) -> set[str]:
    """Return the names of all topics."""
    return set(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=DEADLINE_S).topics)


def produce(bootstrap: str, topic: str, records: Iterable[Record], partition: int = 0) -> None:
    """Write `records` (key, value) to one partition; returns when all are acknowledged."""
    produce_placed(bootstrap, topic, ((partition, key, value, 0) for key, value in records))


def produce_placed(bootstrap: str, topic: str, records: Iterable[PlacedRecord]) -> None:
    """Write `records` (partition, key, value, timestamp in ms, 0: now); returns when all are acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap, **_PRODUCER})
    failures: list[object] = []

    def delivered(error: object, _message: Message) -> None:
        if error is not None:
            failures.append(error)

    for partition, key, value, timestamp_ms in records:
        producer.produce(
            topic, key=key, value=value, partition=partition, timestamp=timestamp_ms, on_delivery=delivered
        )
    left = producer.flush(DEADLINE_S)
    if left or failures:
        raise AssertionError(f"{left} records not acknowledged in {DEADLINE_S:g} s, failures: {failures}")


def read_all(bootstrap: str, topic: str, partitions: Sequence[int] = (0,), *, committed: bool = True) -> list[Record]:
    """Every record of `partitions` up to their ends; only committed ones unless told otherwise.

    Order holds within a partition. The end is where the broker says so: offsets can't tell, as transaction markers
    and aborted records have offsets too.
    """
    return [
        (key, value) for key, value, _ in read_all_with_timestamps(bootstrap, topic, partitions, committed=committed)
    ]


def read_all_with_timestamps(
    bootstrap: str, topic: str, partitions: Sequence[int] = (0,), *, committed: bool = True
) -> list[tuple[bytes | None, bytes | None, int]]:
    """What `read_all` returns, each with the record's timestamp."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"read-all-{topic}",  # required by the client; nothing is committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # a fetch that finds nothing reports the end: writes must not prevent it
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    records: list[tuple[bytes | None, bytes | None, int]] = []
    unfinished = set(partitions)

    def is_at_end() -> bool:
        for message in consumer.consume(20_000, timeout=0.1):
            error = message.error()
            if error is None:
                records.append((message.key(), message.value(), message.timestamp()[1]))
            elif error.code() == KafkaError._PARTITION_EOF:
                unfinished.discard(message.partition())
            elif not error.retriable():
                raise AssertionError(f"reading {topic}: {error}")
        return not unfinished

    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        poll_until(is_at_end, DEADLINE_S, f"the end of {topic}")
    finally:
        consumer.close()
    return records
