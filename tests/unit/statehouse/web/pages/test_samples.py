"""The last hour, in spans of half a minute."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.web.pages.samples import COLUMN_S, COLUMNS_MAX, SPAN_MS, SPANS_MAX, SampleColumn, Samples
from statehouse.web.pages.views.overview import overview
from tests.unit.statehouse.web.pages.fleets import at, fleet, recorder

KNOWN = st.none() | st.floats(0, 1e6)


def column(at_ms: int, lookups: float | None = None, lag: float | None = None, failed: float | None = None):
    return SampleColumn(at_ms, {}, lookups, lag, failed)


def test_an_hour_is_kept_and_no_more():
    samples = Samples()
    for nth in range(2 * SPANS_MAX):
        samples.add(column(nth * SPAN_MS, nth))
        samples.add(column(nth * SPAN_MS + 2_000, nth))
    assert (len(samples.spans), len(samples.columns)) == (SPANS_MAX, COLUMNS_MAX)
    assert samples.spans[-1].at_ms - samples.spans[0].at_ms == 3_600_000 - SPAN_MS


@given(st.lists(st.tuples(st.integers(0, SPAN_MS - 1), KNOWN, KNOWN, KNOWN), min_size=1, max_size=30))
def test_a_span_has_the_mean_of_lookups_and_the_most_of_the_rest(given_: list[tuple[int, ...]]):
    samples = Samples()
    for each in given_:
        samples.add(column(*each))
    (span,) = samples.spans
    lookups, lags, failed = ([each[at] for each in given_ if each[at] is not None] for at in (1, 2, 3))
    assert (span.at_ms, span.counted) == (given_[0][0], len(lookups))
    assert (span.lag, span.failed) == (max(lags, default=None), max(failed, default=None))
    assert span.lookups == (pytest.approx(sum(lookups) / len(lookups)) if lookups else None)


@given(st.lists(st.integers(0, 10**8), max_size=300))
def test_a_clock_that_jumps_makes_no_more_spans(times: list[int]):
    samples = Samples()
    for at_ms in times:
        samples.add(column(at_ms))
    starts = [span.at_ms // SPAN_MS for span in samples.spans]
    assert starts == sorted(set(starts))


@pytest.mark.feature("page-hour-of-history")
def test_the_overview_has_the_hour_and_its_newest_minutes_in_full():
    found = recorder(fleet())
    for nth in range(1_000):
        found.sample(at(nth * COLUMN_S))
    times = [point.at_ms for point in overview(found, at(2_000), is_measured=False).points]
    assert times == sorted(set(times))
    assert COLUMNS_MAX < len(times) <= COLUMNS_MAX + SPANS_MAX
    assert times[-1] - times[0] > 1_900_000
