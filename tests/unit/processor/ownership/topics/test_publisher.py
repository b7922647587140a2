"""What the publisher makes of a transaction that fails."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, KafkaException

from processor.ownership.topics.publisher import AssignmentPublisher, FencedError, PublishError
from statehouse.kafka.transactions import FailureMeaning, TransactionalProducer


@pytest.mark.parametrize(
    ("aborted", "told"),
    [(FailureMeaning.FENCED, FencedError), (None, PublishError), (FailureMeaning.AGAIN, PublishError)],
)
def test_a_lost_transaction_of_who_is_fenced_is_not_written_again(
    monkeypatch: pytest.MonkeyPatch, aborted: FailureMeaning | None, told: type[Exception]
) -> None:
    """To open again would fence the newer controller."""

    def lost(_producer: TransactionalProducer, _produce: Callable[..., None]) -> None:
        raise KafkaException(KafkaError(KafkaError.UNKNOWN, "scripted", False, False, True))

    monkeypatch.setattr(TransactionalProducer, "initialise", lambda _: None)
    monkeypatch.setattr(TransactionalProducer, "write", lost)
    monkeypatch.setattr(TransactionalProducer, "abort", lambda _: aborted)
    publisher = AssignmentPublisher("127.0.0.1:1", "tests")
    publisher.open()
    with pytest.raises(told):
        publisher.publish([(b"key", b"value")])
    with pytest.raises(PublishError, match="not open"):
        publisher.publish([])
