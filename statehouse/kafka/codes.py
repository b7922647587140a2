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
FATAL: Final = KafkaError._FATAL  # noqa: SLF001
"""A producer is used after an error that it can't recover from, such as being fenced."""
FENCED: Final = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}  # noqa: SLF001
)
"""A newer producer with the same transactional id has started."""
LOGIN_REFUSED: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001
        KafkaError._SSL,  # noqa: SLF001
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
    }
)
"""No connection: the brokers refuse who we are, or we don't trust theirs."""
_TLS_ALERT: Final = "SSL alert number"
RIGHT_MISSING: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""The brokers know us, and refuse what we ask."""


def is_login_refused(error: KafkaError) -> bool:
    """Whether an error of a client says that the brokers refuse its login, or it theirs."""
    # In TLS 1.3 a client hears of its certificate's refusal when it first reads: only OpenSSL's words tell.
    return error.code() in LOGIN_REFUSED or (error.code() == TRANSPORT and _TLS_ALERT in error.str())


def is_complaint(message: Message) -> bool:
    """Whether a consumer's message only reports an error, and says nothing about the log."""
    error = message.error()
    return error is not None and error.code() != PARTITION_EOF
