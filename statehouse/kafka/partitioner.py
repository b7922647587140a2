"""Kafka's partitioner as librdkafka has it, compiled: for who looks up many keys, and has that library anyway.

`statehouse.contract.partitioning` is the rule, and everybody else's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import structlog
from confluent_kafka import cimpl

from statehouse.contract.partitioning import CONFORMANCE_VECTORS, partition_for

log = structlog.get_logger(__name__)

Partitioner = Callable[[bytes, int], int]
"""Takes a key and a number of partitions, and returns what `partition_for` does."""

# Tells one hash from another, except for the sign, which partitions don't depend on.
_MANY = 2**31 - 1


def partitioner() -> Partitioner:
    """Return librdkafka's partitioner; `partition_for` where it can't be called, or disagrees."""
    try:
        found = _librdkafkas()
        wrong = [key for key, _ in CONFORMANCE_VECTORS if found(key, _MANY) != partition_for(key, _MANY)]
        if not wrong:
            return found
        reason = f"it disagrees about {wrong[0].hex()}"
    except (OSError, AttributeError) as error:  # built otherwise than the wheels
        reason = str(error)
    log.info("librdkafka's partitioner is not used; lookups take a little longer", reason=reason)
    return partition_for


def _librdkafkas() -> Partitioner:
    # The extension module is linked to librdkafka, so its names are found through it. PyDLL keeps the interpreter: to
    # let it go for a microsecond would cost more.
    call = ctypes.PyDLL(cimpl.__file__).rd_kafka_msg_partitioner_murmur2
    # The topic, key, its length, partitions, and two pointers; only the key and the partitions are used (rdkafka.h).
    # Without argtypes, ctypes passes bytes as a pointer and numbers as int, in half of the time. That a length arrives
    # whole, though it is a size_t there, is shown by the vectors, as all else is.

    def partition(key: bytes, partition_count: int) -> int:
        if partition_count < 1:  # it would divide by it
            return partition_for(key, partition_count)
        chosen: int = call(None, key, len(key), partition_count, None, None)
        return chosen

    return partition
