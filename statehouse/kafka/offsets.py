"""First and end offsets, asked for in one request for all partitions."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

from confluent_kafka import OFFSET_END, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from statehouse.kafka import codes

_SETTLE_POLL_S: Final = 0.005
_OUTDATED_LEADERS = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        codes.NO_LEADER_KNOWN,
        codes.TIMED_OUT,  # the broker that was asked leads no longer
    }
)


def earliest_offsets(
    admin: AdminClient, partitions: Collection[tuple[str, int]], timeout_s: float = 5.0
) -> dict[tuple[str, int], int]:
    """Return the first offset still in each (topic, partition); ones the broker didn't answer for are left out.

    Raises:
        KafkaException: the brokers answered for no partition.

    """
    return _list_offsets(admin, partitions, OffsetSpec.earliest(), timeout_s)


def last_stable_offsets(
    admin: AdminClient, partitions: Collection[tuple[str, int]], timeout_s: float = 5.0
) -> dict[tuple[str, int], int]:
    """Return the last stable offset of each (topic, partition); ones the broker didn't answer for are left out.

    Raises:
        KafkaException: the brokers answered for no partition.

    """
    return _list_offsets(admin, partitions, OffsetSpec.latest(), timeout_s)


def end_offsets(
    admin: AdminClient, partitions: Collection[tuple[str, int]], timeout_s: float = 5.0
) -> dict[tuple[str, int], int]:
    """Return the end of each (topic, partition), after the records of open transactions; otherwise as above.

    Raises:
        KafkaException: the brokers answered for no partition.

    """
    return _list_offsets(admin, partitions, OffsetSpec.latest(), timeout_s, IsolationLevel.READ_UNCOMMITTED)


def first_record_ms(admin: AdminClient, topic: str, partition: int, timeout_s: float = 5.0) -> int | None:
    """Return the time of the first record still in a partition, in milliseconds since 1970; None if there is none.

    Markers of transactions count as records.

    Raises:
        KafkaException: the broker can't be reached, or refuses.

    """
    request = {TopicPartition(topic, partition): OffsetSpec.for_timestamp(0)}
    (asked,) = admin.list_offsets(
        request, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=timeout_s
    ).values()
    found = asked.result()
    if found.offset < OFFSET_END:
        raise _named_none()
    return None if found.offset == OFFSET_END else int(found.timestamp)


def settled_offsets(
    admin: AdminClient, partitions: Collection[tuple[str, int]], timeout_s: float = 5.0
) -> dict[tuple[str, int], int]:
    """Return the last stable offset of each (topic, partition), once it has reached the log's present end.

    So all that was committed before the call lies before these offsets. Without the wait it might not: the coordinator
    answers a commit before the partitions get their markers (KIP-98). If a transaction stays open for longer than
    `timeout_s`, the end itself is returned.

    Raises:
        KafkaException: the brokers answered for no partition.

    """
    deadline = time.monotonic() + timeout_s
    ends = end_offsets(admin, partitions, timeout_s)
    while True:
        stable = last_stable_offsets(admin, partitions, timeout_s)
        if all(stable.get(at, 0) >= end for at, end in ends.items()) or time.monotonic() >= deadline:
            return {at: max(end, ends[at]) for at, end in stable.items() if at in ends}
        time.sleep(_SETTLE_POLL_S)


def _list_offsets(
    admin: AdminClient,
    partitions: Collection[tuple[str, int]],
    spec: OffsetSpec,
    timeout_s: float,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[tuple[str, int], int]:
    if not partitions:
        return {}
    request = {TopicPartition(topic, partition): spec for topic, partition in partitions}
    ends, failure = _ask(admin, request, timeout_s, isolation)
    if failure is not None and failure.args[0].code() in _OUTDATED_LEADERS:
        # The client keeps asking with the leaders it has cached until something else refreshes them.
        admin.list_topics(timeout=timeout_s)
        ends, failure = _ask(admin, request, timeout_s, isolation)
    if failure is not None and not ends:
        raise failure
    return ends


def _ask(
    admin: AdminClient, request: dict[TopicPartition, OffsetSpec], timeout_s: float, isolation: IsolationLevel
) -> tuple[dict[tuple[str, int], int], KafkaException | None]:
    """Return what the broker answered, and one of the failures if there was any."""
    futures = admin.list_offsets(request, isolation_level=isolation, request_timeout=timeout_s)
    ends: dict[tuple[str, int], int] = {}
    failure: KafkaException | None = None
    for at, future in futures.items():
        try:
            offset = future.result().offset
        except KafkaException as error:
            # With its frames it would refer to itself, and to the client, until garbage is looked for.
            failure = error.with_traceback(None)
            continue
        if offset >= 0:
            ends[at.topic, at.partition] = offset
        else:  # the broker didn't answer in time: the client reports an invalid offset, no error
            failure = _named_none()
    return ends, failure


def _named_none() -> KafkaException:
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, "the broker named no offset"))  # noqa: SLF001 - as above
