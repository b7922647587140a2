"""Questions about topics, and what is done when the client is stuck."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from statehouse.errors import ConfigurationError
from statehouse.kafka import topics
from statehouse.kafka.topic_changes import FoundState
from statehouse.kafka.topics import TopicSpec, ensure_topics, topic_states


class FakeAdmin:
    """Fails with `code` until it has looked at the cluster."""

    def __init__(self, code: int) -> None:
        self._failure: KafkaException | None = KafkaException(KafkaError(code, "Failed while waiting for controller"))

    def describe_topics(self, _topics: Any, **_options: Any) -> dict[str, Future[Any]]:
        future = Future[Any]()
        if self._failure is None:
            future.set_result(SimpleNamespace(topic_id="an-id", partitions=[0, 1]))
        else:
            future.set_exception(self._failure)
        return {"topic": future}

    def list_topics(self, **_options: Any) -> None:
        self._failure = None


def test_a_client_that_waits_for_a_controller_is_made_to_look_who_it_is() -> None:
    assert topic_states(FakeAdmin(KafkaError._TIMED_OUT), ["topic"]) == {"topic": FoundState("an-id", 2)}


def test_other_failures_are_passed_on_and_a_topic_that_is_missing_is_left_out() -> None:
    with pytest.raises(KafkaException):
        topic_states(FakeAdmin(KafkaError.TOPIC_AUTHORIZATION_FAILED), ["topic"])
    assert topic_states(FakeAdmin(KafkaError.UNKNOWN_TOPIC_OR_PART), ["topic"]) == {}


class FencedBrokers:
    """Has no broker for a replica the first times it is asked to create a topic."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.created: list[str] = []

    def describe_topics(self, _wanted: Any, **_options: Any) -> dict[str, Future[Any]]:
        told = {name: Future[Any]() for name in ("a", "b")}
        for name, future in told.items():
            if name in self.created:
                future.set_result(SimpleNamespace(partitions=[0]))
            else:
                future.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        return told

    def create_topics(self, wanted: list[Any], **_options: Any) -> dict[str, Future[None]]:
        told = {topic.topic: Future[None]() for topic in wanted}
        for name, future in told.items():
            if name == "b" and self.refusals > 0:
                self.refusals -= 1
                fenced = KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, "All brokers are currently fenced.")
                future.set_exception(KafkaException(fenced))
            else:
                self.created.append(name)
                future.set_result(None)
        return told


def test_brokers_that_have_just_started_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_BROKERS_POLL_S", 0.001)
    admin = FencedBrokers(refusals=2)
    assert ensure_topics(admin, [TopicSpec("a", 1), TopicSpec("b", 1)]) == ["a", "b"]
    assert admin.created == ["a", "b"], "what was created is not asked for again"


def test_brokers_that_are_too_few_are_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_BROKERS_POLL_S", 0.001)
    monkeypatch.setattr(topics, "_BROKERS_WAIT_S", 0.01)
    with pytest.raises(ConfigurationError, match=r"too few brokers .*b: All brokers are currently fenced.*replication"):
        ensure_topics(FencedBrokers(refusals=10**6), [TopicSpec("a", 1), TopicSpec("b", 1)])
