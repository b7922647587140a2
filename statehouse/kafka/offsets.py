"""End offsets, asked for in one request for all partitions."""

from __future__ import annotations

from collections.abc import Collection

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec


def earliest_offsets(
    admin: AdminClient, partitions: Collection[tuple[str, int]], timeout_s: float = 5.0
) -> dict[tuple[str, int], int]:
    """Return the first offset still in each (topic, partition); ones the broker didn't answer for are left out.

    Raises:
        KafkaException: no partition could be answered for.

    """
    return _list_offsets(admin, partitions, OffsetSpec.earliest(), timeout_s)


def last_stable_offsets(
    admin: AdminClient, partitions: Collection[tuple[str, int]], timeout_s: float = 5.0
) -> dict[tuple[str, int], int]:
    """Return the last stable offset of each (topic, partition); ones the broker didn't answer for are left out.

    Raises:
        KafkaException: no partition could be answered for.

    """
    return _list_offsets(admin, partitions, OffsetSpec.latest(), timeout_s)


def _list_offsets(
    admin: AdminClient, partitions: Collection[tuple[str, int]], spec: OffsetSpec, timeout_s: float
) -> dict[tuple[str, int], int]:
    if not partitions:
        return {}
    request = {TopicPartition(topic, partition): spec for topic, partition in partitions}
    futures = admin.list_offsets(request, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=timeout_s)
    ends: dict[tuple[str, int], int] = {}
    failure: KafkaException | None = None
    for at, future in futures.items():
        try:
            ends[at.topic, at.partition] = future.result().offset
        except KafkaException as error:
            failure = error
    if failure is not None and not ends:
        raise failure
    return ends
