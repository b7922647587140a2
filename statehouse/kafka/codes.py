"""librdkafka's own error codes. The Python client names them as if they were private; they are public constants."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError, Message

PARTITION_EOF: Final = KafkaError._PARTITION_EOF  # noqa: SLF001
AUTO_OFFSET_RESET: Final = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001
NO_LEADER_KNOWN: Final = KafkaError._NOENT  # noqa: SLF001
TIMED_OUT: Final = KafkaError._TIMED_OUT  # noqa: SLF001
TRANSPORT: Final = KafkaError._TRANSPORT  # noqa: SLF001
ALL_BROKERS_DOWN: Final = KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001
WAIT_COORDINATOR: Final = KafkaError._WAIT_COORD  # noqa: SLF001
QUEUE_FULL: Final = KafkaError._QUEUE_FULL  # noqa: SLF001
FATAL: Final = KafkaError._FATAL  # noqa: SLF001
"""A producer is used after an error that it can't recover from, such as being fenced."""
FENCED: Final = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}  # noqa: SLF001
)
"""A newer producer with the same transactional id has started."""


def is_complaint(message: Message) -> bool:
    """Whether a consumer's message only reports an error, and says nothing about the log."""
    error = message.error()
    return error is not None and error.code() != PARTITION_EOF
