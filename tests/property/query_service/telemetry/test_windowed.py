"""A maximum over the last minute, against a list of all values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query_service.telemetry.windowed import SAMPLE_S, WindowedMaximum

steps = st.lists(st.tuples(st.sampled_from([0.0, 1.0, 15.0, 30.0, 45.0, 100.0]), st.integers(0, 9)), max_size=20)


@pytest.mark.feature("durations-puts-deletes")
@given(steps, st.sampled_from([0.0, 20.0, 40.0, 70.0]))
def test_it_is_the_largest_of_the_present_and_the_last_half_minute(
    log: list[tuple[float, int]], later_s: float
) -> None:
    maximum, now_s = WindowedMaximum(), 1_000.0
    values: list[tuple[float, float]] = []
    for pause_s, value in log:
        now_s += pause_s
        maximum.add(value, now_s)
        values.append((now_s, value))
    now_s += later_s
    sample = now_s // SAMPLE_S
    counted = [value for at_s, value in values if at_s // SAMPLE_S >= sample - 1]
    assert maximum.at(now_s) == max(counted, default=None)
    assert {value for at_s, value in values if now_s - at_s < SAMPLE_S} <= set(counted), "half a minute at least"
    assert all(now_s - at_s < 2 * SAMPLE_S for at_s, value in values if at_s // SAMPLE_S >= sample - 1), (
        "a minute at most"
    )
