"""Which updates a suppress buffer lets pass, change by change."""

from __future__ import annotations

from datetime import timedelta

import pytest

from processor.operators.suppression import (
    Buffer,
    BufferedUpdate,
    KeyUpdate,
    Suppression,
    TimeLimit,
    WhenFull,
    WindowCloses,
    pass_on,
)
from statehouse.errors import ConfigurationError

UNBOUNDED = Buffer()
TEN = TimeLimit(timedelta(milliseconds=10), UNBOUNDED)


def at(time: int | None, key: str, row: str = "", since: int | None = None) -> KeyUpdate:
    return KeyUpdate(key, row or f"{key}{time}", time, since)


def run(
    suppression: Suppression, *changes: KeyUpdate, buffered: dict[str, BufferedUpdate] | None = None, stream_ms: int = 0
):
    passed = pass_on(buffered or {}, stream_ms, changes, suppression)
    return passed.rows, passed.buffered


def test_the_last_row_passes_once_the_first_has_waited_long_enough():
    assert run(TEN, at(1, "a"), at(10, "a")) == ([], {"a": BufferedUpdate(1, "a10")})
    assert run(TEN, at(1, "a"), at(10, "a"), at(11, "b")) == (["a10"], {"b": BufferedUpdate(11, "b11")})
    assert run(TEN, at(1, "a"), at(11, "a")) == (["a11"], {}), "its own update moves stream time, too"


def test_what_has_waited_longest_passes_first_and_at_once_if_nothing_is_to_wait():
    assert run(TEN, at(2, "b"), at(1, "a"), at(30, "c")) == (["a1", "b2"], {"c": BufferedUpdate(30, "c30")})
    assert run(TimeLimit(timedelta(0), UNBOUNDED), at(2, "b"), at(1, "a")) == (["b2", "a1"], {})


def test_a_key_that_passes_twice_in_a_batch_is_put_out_as_it_passed_last():
    assert run(TEN, at(1, "a"), at(20, "b"), at(21, "a"), at(40, "c"))[0] == ["b20", "a21"]


def test_what_has_no_time_has_the_streams():
    assert run(TEN, at(None, "a"), stream_ms=7) == ([], {"a": BufferedUpdate(7, "aNone")})


def test_stream_time_does_not_step_back():
    passed = pass_on({"a": BufferedUpdate(95, "a")}, 100, [at(3, "b"), at(104, "c")], TEN)
    assert (passed.rows, passed.stream_ms) == (["b3"], 104)


def test_a_window_passes_when_its_grace_is_over():
    closing = WindowCloses(timedelta(milliseconds=5), UNBOUNDED)
    changes = [at(8, "a", since=60), at(59, "a", since=60), at(64, "b", since=120)]
    assert run(closing, *changes) == ([], {"a": BufferedUpdate(60, "a59"), "b": BufferedUpdate(120, "b64")})
    assert run(closing, *changes, at(65, "b", since=120))[0] == ["a59"]


@pytest.mark.parametrize("bound", [Buffer(max_records=2), Buffer(max_bytes=2 * len("aa1"))])
def test_a_full_buffer_shuts_down_or_lets_the_oldest_pass(bound: Buffer):
    changes = [at(3, "a"), at(1, "b"), at(4, "b"), at(5, "c")]
    assert run(TimeLimit(TEN.wait, bound), *changes[:3])[0] == []
    with pytest.raises(
        ConfigurationError, match=r"would hold 3 records of 9 bytes, and may hold (2 rec|6 byt).* Raise"
    ):
        run(TimeLimit(TEN.wait, bound), *changes)
    early = Buffer(bound.max_records, bound.max_bytes, WhenFull.EMIT_EARLY)
    assert run(TimeLimit(TEN.wait, early), *changes) == (
        ["b4"],
        {"a": BufferedUpdate(3, "a3"), "c": BufferedUpdate(5, "c5")},
    )


def test_a_row_larger_than_the_buffer_passes_at_once():
    early = TimeLimit(TEN.wait, Buffer(max_bytes=10, when_full=WhenFull.EMIT_EARLY))
    assert run(early, at(1, "a"), at(2, "b", "x" * 20)) == (["a1", "x" * 20], {})


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Buffer(max_records=0),
        lambda: Buffer(max_bytes=-1),
        lambda: TimeLimit(timedelta(microseconds=1), UNBOUNDED),
        lambda: WindowCloses(timedelta(seconds=-1), UNBOUNDED),
        lambda: WindowCloses(timedelta(0), Buffer(max_records=1, when_full=WhenFull.EMIT_EARLY)),
    ],
)
def test_what_cannot_work_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="suppress"):
        wrong()
