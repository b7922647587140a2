"""What counts as a stall of the machine."""

from __future__ import annotations

import pytest

from tests.support.stalls import Stalls, stalls


def test_only_ticks_that_are_far_too_late_count() -> None:
    watched = Stalls(10.0)
    for now_s in (10.02, 10.05, 10.1):
        watched.tick(now_s)
    assert watched.seconds == 0.0
    for now_s in (12.12, 12.14, 13.16):
        watched.tick(now_s)
    assert watched.seconds == pytest.approx(3.0)


def test_a_watch_ends_with_its_block() -> None:
    with stalls() as watched:
        pass
    assert watched.seconds < 60.0
