"""What is asked about topics, and what is done when the client is stuck."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from statehouse.kafka.topics import topic_ids


class FakeAdmin:
    """Fails with `code` until it has looked at the cluster."""

    def __init__(self, code: int) -> None:
        self._failure: KafkaException | None = KafkaException(KafkaError(code, "Failed while waiting for controller"))

    def describe_topics(self, _topics: Any, **_options: Any) -> dict[str, Future[Any]]:
        future = Future[Any]()
        if self._failure is None:
            future.set_result(SimpleNamespace(topic_id="an-id"))
        else:
            future.set_exception(self._failure)
        return {"topic": future}

    def list_topics(self, **_options: Any) -> None:
        self._failure = None


def test_a_client_that_waits_for_a_controller_is_made_to_look_who_it_is() -> None:
    assert topic_ids(FakeAdmin(KafkaError._TIMED_OUT), ["topic"]) == {"topic": "an-id"}


def test_other_failures_are_passed_on_and_a_topic_that_is_missing_is_left_out() -> None:
    with pytest.raises(KafkaException):
        topic_ids(FakeAdmin(KafkaError.TOPIC_AUTHORIZATION_FAILED), ["topic"])
    assert topic_ids(FakeAdmin(KafkaError.UNKNOWN_TOPIC_OR_PART), ["topic"]) == {}
