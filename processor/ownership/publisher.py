"""Publishing an assignment: one Kafka transaction an epoch, under an id that lets only the newest controller write.

The transactional id is fixed for an application, so that a controller that starts fences the one before it, as a
Kafka Streams task fences its zombie (KIP-98).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

from confluent_kafka import KafkaError, KafkaException, Producer

from statehouse.errors import StatehouseError
from statehouse.kafka import clients, codes
from statehouse.topology import assignment_topic, members_topic


class FencedError(StatehouseError):
    """A newer controller of the same application has started."""


class PublishError(StatehouseError):
    """Kafka can't be reached, or refuses; whether the last transaction was seen is not known."""


class AssignmentPublisher:
    """A transactional producer that is replaced whole after any failure."""

    def __init__(self, bootstrap: str, application_id: str, timeout_s: float = 5.0) -> None:
        """Prepare; `open` fences. No call takes much longer than `timeout_s`."""
        self._bootstrap, self._application_id, self._timeout_s = bootstrap, application_id, timeout_s
        self._producer: Producer | None = None

    def open(self) -> None:
        """Fence every earlier controller and finish what it left open.

        Raises:
            FencedError: a newer one was faster.
            PublishError: it can't be done now; try again.

        """
        self.close()
        name = f"{self._application_id}-ownership"
        settings: dict[str, str | float | bool] = {
            "transactional.id": name,
            # An open transaction of a dead controller hides later records from readers for so long at most.
            "transaction.timeout.ms": 20_000,
            "message.timeout.ms": 15_000,
            # A sub-topology is one record: with thousands of tasks it outgrows the brokers' default limit of 1 MB.
            # They measure it compressed, and it is mostly names and reasons that repeat.
            "compression.type": "zstd",
            "message.max.bytes": 64 * 1024 * 1024,
        }
        self._producer = clients.producer(self._bootstrap, name, **settings)
        try:
            self._producer.init_transactions(self._timeout_s)
        except KafkaException as error:
            self.close()
            raise _translated(error) from error

    def publish(self, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Write records of the assignment in one transaction; on any failure the producer is closed.

        Raises:
            FencedError: a newer controller has taken over.
            PublishError: it failed otherwise; open again, and read what is in force before the next try.

        """
        self._write(assignment_topic(self._application_id), records)

    def forget_members(self, instance_ids: Iterable[str]) -> None:
        """Delete members' records; otherwise as `publish`."""
        self._write(members_topic(self._application_id), [(name.encode(), None) for name in instance_ids])

    def _write(self, topic: str, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        producer = self._producer
        if producer is None:
            raise PublishError("the publisher is not open")
        try:
            producer.begin_transaction()
            for key, value in records:
                producer.produce(topic, key=key, value=value, partition=0)
            producer.commit_transaction(self._timeout_s)
        except (KafkaException, BufferError) as error:
            self.close()
            raise _translated(error) from error

    def close(self) -> None:
        """Let go of the producer; what it has not committed is never seen."""
        producer, self._producer = self._producer, None
        if producer is not None:
            # The client reports a fatal error (being fenced) once more while it closes, and does so as a
            # SystemError; what was to be said about it has been said.
            with contextlib.suppress(KafkaException, SystemError):
                producer.close(0.0)


def _translated(error: Exception) -> StatehouseError:
    cause = error.args[0] if isinstance(error, KafkaException) and error.args else None
    if isinstance(cause, KafkaError):
        if cause.code() in codes.FENCED:
            return FencedError(
                f"another controller of this application has started ({cause.str()}); only one may publish"
            )
        return PublishError(f"{cause.name()}: {cause.str()}")
    return PublishError(str(error))
