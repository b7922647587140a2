"""The Spark settings of one query: which, and that none of them stays with the session."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import Mock

import pytest

from processor.outputs import OutputMode, Query
from processor.outputs.frames import query_settings, set_for_a_while

ADAPTIVE = "spark.sql.adaptive.enabled"


class Session:
    """Spark's settings, as a session has them."""

    def __init__(self, **settings: str) -> None:
        self.settings, self.conf = settings, self

    def get(self, name: str, default: str | None) -> str | None:
        return self.settings.get(name, default)

    def set(self, name: str, value: str) -> None:
        self.settings[name] = value

    def unset(self, name: str) -> None:
        del self.settings[name]


def test_a_query_plans_its_sink_without_adaptive_execution_unless_somebody_wants_it():
    frame: Any = Mock()
    assert query_settings(Query("a", "q", frame), {}) == {ADAPTIVE: "false"}
    assert query_settings(Query("a", "q", frame), {ADAPTIVE: "true"}) == {}
    of_query = Query("a", "q", frame, OutputMode.APPEND, {ADAPTIVE: "true", "spark.x": "1"})
    expected = {"spark.sql.streaming.noDataMicroBatches.enabled": "true", ADAPTIVE: "true", "spark.x": "1"}
    assert query_settings(of_query, {}) == expected


def test_settings_are_as_before_also_after_an_error():
    session: Any = Session(a="0")

    def start() -> None:
        with set_for_a_while(session, {"a": "1", "b": "2"}):
            assert session.settings == {"a": "1", "b": "2"}
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        start()
    assert session.settings == {"a": "0"}


def test_a_thread_does_not_take_what_another_has_set_for_the_sessions_own():
    session: Any = Session(a="0")
    inside, let_go = threading.Event(), threading.Event()

    def first() -> None:
        with set_for_a_while(session, {"a": "1"}):
            inside.set()
            assert let_go.wait(10)

    def second() -> None:
        with set_for_a_while(session, {"a": "2"}):
            assert session.settings == {"a": "2"}

    threads = [threading.Thread(target=each) for each in (first, second)]
    threads[0].start()
    assert inside.wait(10)
    threads[1].start()
    threads[1].join(0.05)
    assert threads[1].is_alive(), "the second waits"
    let_go.set()
    for thread in threads:
        thread.join(10)
    assert session.settings == {"a": "0"}
