"""What brokers refuse: a login, or a right. A process ends by it at its start; later it waits, as for absent brokers.

The rights are in docs/kafka-security.md.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient

from statehouse.errors import ConfigurationError, LookupFailure, Reason
from statehouse.kafka import clients, codes
from statehouse.runtime.brokers import PLAINTEXT, Brokers

log = structlog.get_logger(__name__)

_POLL_S: Final = 0.05


class AccessRefused(ConfigurationError):
    """The brokers refuse a login, or a right is missing."""


class LoginWatch:
    """Takes a client's errors, and keeps the last one by which its login was refused."""

    def __init__(self, brokers: Brokers | str) -> None:
        self._brokers = Brokers.of(brokers)
        self._refusal: KafkaError | None = None

    def note(self, error: KafkaError) -> None:
        """Take an error of the client (its `on_error`)."""
        if codes.is_login_refused(error):
            self._refusal = error

    def check(self) -> None:
        """Raise AccessRefused if the login was refused."""
        if self._refusal is not None:
            raise AccessRefused(
                f"no connection to Kafka at {self._brokers}, {self._brokers.security.protocol}: {self._refusal.str()}. "
                "Check the settings kafka_*"
            )


def check_login(brokers: Brokers | str, client_id: str, timeout_s: float = 10.0) -> None:
    """Connect once; return if a broker answers, or if none does in time: the next request finds that out.

    Raises:
        AccessRefused: the brokers refuse the login, or can't be trusted.
        ConfigurationError: a file of the settings can't be read.

    """
    if Brokers.of(brokers).security == PLAINTEXT:
        return
    watch = LoginWatch(brokers)
    admin = clients.admin(brokers, client_id, watch.note)
    answer = admin.describe_cluster(request_timeout=timeout_s)
    deadline = time.monotonic() + timeout_s
    while not answer.done() and time.monotonic() < deadline:
        admin.poll(_POLL_S)
        watch.check()


@contextmanager
def failures_told(brokers: Brokers | str) -> Iterator[None]:
    """Have a command say what it means that Kafka fails.

    Raises:
        AccessRefused: the brokers refuse a login or a right.
        LookupFailure: UNREACHABLE, with what the client says.

    """
    try:
        yield
    except KafkaException as error:
        if (refused := refusal(brokers, error)) is not None:
            raise refused from error
        raise LookupFailure(Reason.UNREACHABLE, error.args[0].str(), {"target": str(brokers)}) from error


@contextmanager
def needing(operation: str, resource: str) -> Iterator[None]:
    """Have a refusal name the right that is missing, as WRITE on "topic orders".

    Raises:
        KafkaException: the one that was raised within; a refusal's text names the right.

    """
    try:
        yield
    except KafkaException as failure:
        error: KafkaError = failure.args[0]
        if error.code() not in codes.RIGHT_MISSING:
            raise
        raise KafkaException(_named(error, [operation], resource)) from failure


def refusal(brokers: Brokers | str, failure: KafkaException) -> AccessRefused | None:
    """Return a failure as what it means at a start; None if it is no refusal."""
    error: KafkaError = failure.args[0]
    if error.code() not in codes.RIGHT_MISSING and not codes.is_login_refused(error):
        return None
    return AccessRefused(f"Kafka at {brokers} refuses: {error.str()}")


def check_rights(
    admin: AdminClient, topics: Collection[str], operations: Collection[AclOperation], timeout_s: float = 10.0
) -> None:
    """Refuse topics for which the login lacks a right.

    The topics' users meet all other errors, and try again: brokers take a moment to be ready.

    Raises:
        KafkaException: a right is missing, which the text names.

    """
    if not topics:
        return
    asked = admin.describe_topics(
        TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=timeout_s
    )
    for topic, future in asked.items():
        granted: Collection[AclOperation] | None = None
        with _refusals_only(), needing("DESCRIBE", f"topic {topic}"):
            granted = future.result().authorized_operations
        # Old brokers don't say.
        missing = [each.name for each in operations if granted and each not in granted]
        if missing:
            raise KafkaException(_named(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), missing, f"topic {topic}"))


def check_group(admin: AdminClient, group: str, timeout_s: float = 10.0) -> None:
    """Refuse a consumer group that the login may not use, whether it exists or not.

    Raises:
        KafkaException: as above.

    """
    # Not by the group's offsets: librdkafka ends the process by SIGSEGV where a broker says that it isn't the
    # coordinator, as one that has just started does (2.16; librdkafka's issue 5040).
    asked = admin.describe_consumer_groups([group], include_authorized_operations=True, request_timeout=timeout_s)
    granted: Collection[AclOperation] | None = None
    with _refusals_only(), needing("READ", f"group {group}"):
        granted = asked[group].result().authorized_operations
    if granted and AclOperation.READ not in granted:
        raise KafkaException(_named(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED), ["READ"], f"group {group}"))


@contextmanager
def _refusals_only() -> Iterator[None]:
    try:
        yield
    except KafkaException as failure:
        error: KafkaError = failure.args[0]
        if error.code() in codes.RIGHT_MISSING or codes.is_login_refused(error):
            raise
        log.info("rights are not checked now", reason=error.str())


def _named(error: KafkaError, operations: Iterable[str], resource: str) -> KafkaError:
    """Return a refusal with the right that is missing."""
    message = f"{error.str()}: {' and '.join(operations)} on {resource} is missing (docs/kafka-security.md)"
    return KafkaError(error.code(), message)
