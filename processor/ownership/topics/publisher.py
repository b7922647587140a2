"""Publishes assignments: one Kafka transaction per epoch, with an id that lets only the newest controller write.

Each application has a fixed transactional id, so a controller fences the earlier one when it starts, as a task in
Kafka Streams fences its zombie (KIP-98).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from confluent_kafka import KafkaException, Producer

from statehouse.contract.topology import assignment_topic, members_topic
from statehouse.errors import StatehouseError
from statehouse.kafka.access import refusal
from statehouse.kafka.authors import RecordSigning
from statehouse.kafka.transactions import FailureMeaning, TransactionalProducer, meaning_of
from statehouse.runtime.brokers import Brokers


class FencedError(StatehouseError):
    """A newer controller of the same application has started."""


class PublishError(StatehouseError):
    """Kafka can't be reached, or refuses; readers may or may not have seen the last transaction."""


class AssignmentPublisher:
    """A transactional producer; any failure replaces it with a new one."""

    def __init__(self, brokers: Brokers | str, application_id: str, timeout_s: float = 5.0) -> None:
        """Prepare; `open` fences other controllers. No call takes much longer than `timeout_s` seconds."""
        self._brokers, self._application_id, self._timeout_s = brokers, application_id, timeout_s
        self._producer: TransactionalProducer | None = None
        self._has_opened = False
        self._signing = RecordSigning(brokers)

    @property
    def signs_as(self) -> int:
        """What records are signed with: a number that grows when the certificate changes; 0 if they aren't signed."""
        return self._signing.version

    def open(self) -> None:
        """Fence every earlier controller and end its open transaction.

        Raises:
            FencedError: a newer controller was faster.
            PublishError: it failed; try again.
            AccessRefused: a right is missing, and has been so from the start.

        """
        self.close()
        name = f"{self._application_id}-ownership"
        options: dict[str, str | float | bool] = {
            # The open transaction of a dead controller hides later records from readers for at most this time.
            "transaction.timeout.ms": 20_000,
            "message.timeout.ms": 15_000,
            # A sub-topology is one record, and with thousands of tasks it exceeds the brokers' default limit of 1 MB.
            # They measure the compressed size, and most of the record is repeated names and reasons.
            "compression.type": "zstd",
            "message.max.bytes": 64 * 1024 * 1024,
        }
        self._producer = TransactionalProducer(self._brokers, name, self._timeout_s, **options)
        try:
            self._producer.initialise()
        except KafkaException as error:
            self.close()
            refused = None if self._has_opened else refusal(self._brokers, error)
            raise refused or _translated(error, meaning_of(error)) from error
        self._has_opened = True

    def publish(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write records of the assignment in one transaction; on any failure the producer is closed.

        Raises:
            FencedError: a newer controller has taken over.
            PublishError: it failed otherwise; open again, and read the assignment in force before the next attempt.

        """
        self._write(assignment_topic(self._application_id), records)

    def forget_members(self, instance_ids: Iterable[str]) -> None:
        """Delete the records of members; raises as `publish` does."""
        self._write(members_topic(self._application_id), [(name.encode(), None) for name in instance_ids])

    def _write(self, topic: str, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        producer = self._producer
        if producer is None:
            raise PublishError("the publisher is not open")

        def produce(client: Producer) -> None:
            for key, value in records:
                signed = self._signing.options(topic, key, value)
                client.produce(topic, key=key, value=value, partition=0, **signed)

        try:
            producer.write(produce)
        except BufferError as error:
            self.close()
            raise PublishError(str(error)) from error
        except KafkaException as error:
            meaning = meaning_of(error)
            if meaning is FailureMeaning.LOST:
                # A controller fenced in a commit may hear it only now; to open again would fence the newer controller.
                meaning = producer.abort() or meaning
            self.close()
            raise _translated(error, meaning) from error

    def close(self) -> None:
        """Drop the producer; readers never see its uncommitted records."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()


def _translated(error: KafkaException, meaning: FailureMeaning) -> StatehouseError:
    cause = error.args[0]
    if meaning is FailureMeaning.FENCED:
        return FencedError(f"another controller of this application has started ({cause.str()}); only one may publish")
    return PublishError(f"{cause.name()}: {cause.str()}")
