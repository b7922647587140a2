"""How the limit of a run's batches comes from the rates of the run before."""

from __future__ import annotations

import pytest

from processor.reports.progress import BatchProgress
from processor.run.batch_limit import RateMeter, batch_limit
from tests.support.progress import progress_json

LIMIT = 1_000


@pytest.mark.parametrize(
    ("fixed", "rate", "expected"),
    [
        (None, None, 20_000),
        (None, 4_000.0, 20_000),
        (None, 33_333.3, 166_666),
        (None, 0.5, 100),
        (None, 1e9, 1_000_000),
        (7, None, 7),
        (7, 4_000.0, 7),
    ],
)
def test_the_limit_of_a_run(fixed: int | None, rate: float | None, expected: int) -> None:
    assert batch_limit(fixed, rate, 5_000) == expected


def kept(*batches: tuple[int, float], query: str = "counts", meter: RateMeter | None = None) -> list[float]:
    """Give a meter batches of so many events and seconds; return the rates that are to be kept, in order."""
    meter = meter or RateMeter(LIMIT, ["scores"])
    found = []
    for number, (events, seconds) in enumerate(batches):
        text = progress_json(number, query=query, duration_ms=round(seconds * 1_000), scores=(0, events, 5_000))
        rate = meter.take(BatchProgress.parse(text))
        found += [] if rate is None else [round(rate)]
    return found


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        # The first batch never counts, and one alone shows nothing.
        ([], []),
        ([(1_000, 9.0), (1_000, 1.0)], []),
        # The slower of two in a row may be an accident.
        ([(1_000, 9.0), (1_000, 2.0), (1_000, 1.0)], [1_000]),
        ([(1_000, 9.0), (1_000, 1.0), (1_000, 60.0), (1_000, 1.0)], [1_000]),
        # It gets slower for good; then faster, which changes nothing for the next run's beginning.
        ([(1_000, 9.0), *[(1_000, 1.0)] * 3, *[(1_000, 2.0)] * 3, *[(1_000, 1.0)] * 3], [1_000, 500]),
        # Some minutes at a tenth of the speed don't slow the next run that much.
        ([(1_000, 9.0), *[(1_000, 1.0)] * 9, *[(1_000, 10.0)] * 3], [1_000, 500]),
        ([(1_000, 9.0), (1_000, 2.0), (1_000, 2.0), (1_000, 1.0), (1_000, 1.0)], [500]),
        # A little slower isn't worth a file.
        ([(1_000, 9.0), (1_000, 1.0), (1_000, 1.0), (1_000, 1.04), (1_000, 1.04)], [1_000]),
        # Small batches say nothing of a backlog, and separate the others.
        ([(1_000, 9.0), *[(498, 1.0)] * 3], []),
        ([(1_000, 9.0), (1_000, 1.0), (10, 0.2), (1_000, 1.0)], []),
        ([(1_000, 9.0), (500, 1.0), (1_000, 1.0)], [1_000]),
    ],
)
def test_the_rate_is_that_of_two_slow_batches_in_a_row(batches: list[tuple[int, float]], expected: list[int]) -> None:
    assert kept(*batches) == expected


def test_the_slowest_query_counts() -> None:
    meter = RateMeter(LIMIT, ["scores"])
    assert kept(*[(1_000, 1.0)] * 3, query="slow", meter=meter) == [1_000]
    assert kept(*[(1_000, 0.5)] * 3, query="fast", meter=meter) == []
    assert kept(*[(1_000, 4.0)] * 3, query="slower", meter=meter) == [250]


def test_tables_have_no_limit_and_say_nothing() -> None:
    assert kept(*[(1_000, 1.0)] * 3, meter=RateMeter(LIMIT, ["players"])) == []
