"""End offsets, asked for in one request for all partitions."""

from __future__ import annotations

from collections.abc import Collection

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from statehouse.kafka import codes

_OUTDATED_LEADERS = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        codes.NO_LEADER_KNOWN,
        codes.TIMED_OUT,  # asked where no leader is any more
    }
)


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
    ends, failure = _ask(admin, request, timeout_s)
    if failure is not None and failure.args[0].code() in _OUTDATED_LEADERS:
        # The client keeps asking with the leaders it has cached until something else refreshes them.
        admin.list_topics(timeout=timeout_s)
        ends, failure = _ask(admin, request, timeout_s)
    if failure is not None and not ends:
        raise failure
    return ends


def _ask(
    admin: AdminClient, request: dict[TopicPartition, OffsetSpec], timeout_s: float
) -> tuple[dict[tuple[str, int], int], KafkaException | None]:
    """Return what the broker answered, and one of the failures if there was any."""
    futures = admin.list_offsets(request, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=timeout_s)
    ends: dict[tuple[str, int], int] = {}
    failure: KafkaException | None = None
    for at, future in futures.items():
        try:
            offset = future.result().offset
        except KafkaException as error:
            failure = error
            continue
        if offset >= 0:
            ends[at.topic, at.partition] = offset
        else:  # a broker that doesn't answer in time is no error to the client: it makes the offset an invalid one
            failure = KafkaException(KafkaError(KafkaError._TIMED_OUT, "the broker named no offset"))  # noqa: SLF001 - as above
    return ends, failure
