"""Reads the record of versions, and changes it: one writer at a time, and none from an old record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaException, Producer

from statehouse.contract.topology import assignment_topic
from statehouse.contract.versions import VERSIONS_KEY, VersionRefused, Versions, decode_versions, encode_versions
from statehouse.kafka.authors import RecordSigning
from statehouse.kafka.control_read import read_to_ends
from statehouse.kafka.transactions import FailureMeaning, TransactionalProducer, meaning_of
from statehouse.runtime.brokers import Brokers

_MEANS_OTHER: Final = frozenset({FailureMeaning.FENCED, FailureMeaning.OVER})


def read_versions(brokers: Brokers | str, name: str, timeout_s: float) -> Versions:
    """Return the versions of an application; as long as nobody has deployed one there is only the first.

    Raises:
        ContractError: the record can't be read.
        LookupFailure: UNREACHABLE, Kafka could not be read in time.
        AccessRefused: the brokers refuse the login, or a right is missing.

    """
    found: list[bytes | None] = [None]

    def take(key: bytes | None, value: bytes | None, _timestamp_ms: int) -> None:
        if key == VERSIONS_KEY:
            found[0] = value

    read_to_ends(brokers, {assignment_topic(name): take}, f"{name}-versions", timeout_s)
    return Versions() if found[0] is None else decode_versions(found[0])


def change_versions(
    brokers: Brokers | str, name: str, change: Callable[[Versions], Versions], timeout_s: float
) -> Versions:
    """Write what `change` makes of the versions, and return it. Another writer that began before can't write any more.

    Raises:
        VersionRefused: it can't be made, or another command changes the versions at the same time.
        ContractError: the record can't be read.
        LookupFailure: UNREACHABLE, Kafka could not be read in time.
        AccessRefused: the brokers refuse the login, or a right is missing.
        KafkaException: the brokers can't be reached, or refuse the write.

    """
    topic, signing = assignment_topic(name), RecordSigning(brokers)
    producer = TransactionalProducer(brokers, f"{name}-versions", timeout_s)
    try:
        producer.initialise()  # from here on no earlier writer's record is committed
        changed = change(read_versions(brokers, name, timeout_s))
        value = encode_versions(changed)

        def produce(client: Producer) -> None:
            signed = signing.options(topic, VERSIONS_KEY, value)
            client.produce(topic, key=VERSIONS_KEY, value=value, partition=0, **signed)

        try:
            producer.write(produce)
        except KafkaException as error:
            if meaning_of(error) in _MEANS_OTHER or producer.abort() is FailureMeaning.FENCED:
                raise VersionRefused(
                    "another command changes the versions at this moment: look, and repeat it"
                ) from error
            raise
    finally:
        producer.close()
    return changed
