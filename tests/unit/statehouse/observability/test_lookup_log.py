"""Lines about lookups: how many there are, and what is left out is counted."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from statehouse.observability.line_limit import LINES_AT_ONCE, LINES_PER_S, LineLimit
from statehouse.observability.lookup_log import LookupLog


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.feature("line-log-failed")
def test_a_storm_of_failures_writes_no_more_than_its_share():
    clock = Clock()
    lines = LookupLog(0, has_keys=False, clock=clock)
    with capture_logs() as written:
        for _ in range(100_000):
            clock.now += 0.001
            lines.write(is_failure=True, store="s", reason="NO_REPLICA_AVAILABLE")
    assert len(written) <= LINES_AT_ONCE + 100 * LINES_PER_S + 1
    told = sum(line.get("left_out", 0) for line in written)
    assert len(written) + told > 99_000, "almost all are told of, the last ones with the next line"


def test_lines_that_were_left_out_are_told_of_once():
    clock, limit = Clock(), LineLimit(at_once=1, per_s=1.0)
    assert [limit.take(clock.now) for _ in range(3)] == [True, False, False]
    assert limit.left_out == 2
    clock.now += 1.0
    assert limit.take(clock.now)


def test_failures_leave_room_for_the_share_of_all():
    lines = LookupLog(1.0, has_keys=False, clock=Clock())
    with capture_logs() as written:
        for _ in range(10 * LINES_AT_ONCE):
            lines.write(is_failure=True, outcome="FAILED")
        lines.write(is_failure=False, outcome="OK")
    assert written[-1]["outcome"] == "OK"


def test_a_share_is_drawn():
    draws = iter([0.05, 0.5, 0.09, 0.11])
    lines = LookupLog(0.1, has_keys=False, draw=lambda: next(draws))
    assert [lines.samples() for _ in range(4)] == [True, False, True, False]


def test_without_a_share_nothing_is_drawn():
    lines = LookupLog(0, has_keys=False, draw=lambda: 1 / 0)
    assert not lines.samples()
    assert not lines.is_sampling


def test_what_is_not_known_has_no_field():
    with capture_logs() as written:
        LookupLog(0, has_keys=False, clock=Clock()).write(is_failure=True, store="s", partition=None, ms=0)
    assert written == [{"event": "lookup", "log_level": "info", "store": "s", "ms": 0}]
