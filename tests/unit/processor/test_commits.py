"""The thread that repeats commit records: what it does when that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from processor.commits import IdleRepeater, Superseded
from tests.support.polling import poll_until


class Publisher:
    """Fails at each call as the list says, then no more."""

    def __init__(self, failures: list[Exception]) -> None:
        self.failures, self.calls = failures, 0

    def repeat(self, _idle_for_s: float) -> bool:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return True


@pytest.fixture
def started(request: pytest.FixtureRequest) -> Callable[[Publisher, Callable[[Exception], None]], IdleRepeater]:
    def start(publisher: Publisher, on_failure: Callable[[Exception], None]) -> IdleRepeater:
        repeater = IdleRepeater(cast("Any", publisher), lambda: True, 0.02, on_failure)
        repeater.start()
        request.addfinalizer(repeater.stop)
        return repeater

    return start


@pytest.mark.parametrize("failure", [Superseded("a newer driver"), RuntimeError("a defect")])
def test_what_ends_the_thread_is_told(failure: Exception, started: Any) -> None:
    told: list[Exception] = []
    started(Publisher([failure]), told.append)
    poll_until(lambda: told == [failure], 5, "the failure")


def test_a_broker_that_is_away_is_asked_again(started: Any) -> None:
    told: list[Exception] = []
    publisher = Publisher([KafkaException(KafkaError(KafkaError._TRANSPORT))])
    started(publisher, told.append)
    poll_until(lambda: publisher.calls > 2, 5, "another try")
    assert not told
