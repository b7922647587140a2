"""How long a store's puts, deletes and flushes take."""

from __future__ import annotations

import pytest

from query_service.telemetry.metrics import WriteKind, WriteTimes


@pytest.mark.feature("durations-puts-deletes")
def test_records_share_their_batch_s_time_and_the_longest_batch_is_the_longest_write() -> None:
    times = WriteTimes()
    times.wrote(3, 1, 0.4, now_s=10.0)
    times.wrote(1, 0, 0.1, now_s=11.0)
    times.wrote(0, 0, 9.0, now_s=12.0)
    assert times.seconds == pytest.approx({WriteKind.PUT: 0.4, WriteKind.DELETE: 0.1, WriteKind.FLUSH: 0.0})
    assert times.longest(WriteKind.PUT, 12.0) == times.longest(WriteKind.DELETE, 12.0) == 0.4
    assert times.longest(WriteKind.FLUSH, 12.0) is None
    assert times.longest(WriteKind.PUT, 80.0) is None, "a minute later"


def test_flushes_are_counted() -> None:
    times = WriteTimes()
    times.flushed(0.2, now_s=10.0)
    times.flushed(0.1, now_s=11.0)
    assert (times.flushes, times.longest(WriteKind.FLUSH, 12.0)) == (2, 0.2)
    assert times.seconds[WriteKind.FLUSH] == pytest.approx(0.3)
