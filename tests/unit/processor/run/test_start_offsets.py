"""A topic that was made a moment ago may have no leaders yet: a start waits for them, within bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from processor.reports.commits import StoreChangelog
from processor.run import start_check
from processor.sink.protocol import OutputTopic, SinkTarget
from statehouse.errors import ConfigurationError
from tests.support.settings import SINK_LIMITS

TARGET = SinkTarget("nobody:1", "app", "query", (OutputTopic("store", "c", 2),), "dead", 1, **SINK_LIMITS)
CHANGELOG = StoreChangelog("store", "c", 2)
BOTH = {("c", 0): 5, ("c", 1): 7}


def answers(monkeypatch: pytest.MonkeyPatch, *given: Any) -> list[Any]:
    """Have the brokers answer so, and after that as last; return what was asked for."""
    asked: list[Any] = []
    each: Iterator[Any] = iter(given)
    last = given[-1]

    def ask(_admin: object, partitions: object) -> Any:
        asked.append(partitions)
        answer = next(each, last)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(start_check, "end_offsets", ask)
    monkeypatch.setattr(start_check, "earliest_offsets", lambda *_: dict.fromkeys(BOTH, 0))
    monkeypatch.setattr(start_check, "_LOOK_S", 0.0)
    return asked


def test_a_start_waits_for_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    no_leaders = KafkaException(KafkaError(KafkaError._NOENT, "no leaders found"))
    asked = answers(monkeypatch, no_leaders, {("c", 0): 5}, BOTH)
    starts, ends = start_check._bounds(TARGET, CHANGELOG)
    assert (set(starts.values()), ends, len(asked)) == ({0}, BOTH, 3)


def test_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_check, "_LED_S", 0.0)
    answers(monkeypatch, {("c", 0): 5})
    with pytest.raises(ConfigurationError, match="c has partitions that no broker leads"):
        start_check._bounds(TARGET, CHANGELOG)


def test_a_missing_right_is_said_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    with pytest.raises(KafkaException):
        start_check._bounds(TARGET, CHANGELOG)
