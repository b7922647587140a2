"""Ages of the processor's reports while clocks are set: by a second, minutes, days, on either machine, at any time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.contract.processor_reports import ProcessorReports, ReportTimes, written_at_s
from statehouse.control.v1 import commits_pb2
from statehouse.runtime.clocks import MachineClock

STEPS_S = (-172_800.0, -600.0, -1.0, 1.0, 600.0, 172_800.0)
WALL_S = 1_700_000_000.0
REPORTS_EVERY_S = 1.0
LOOKS_EVERY_S = 0.5
"""How often the reader is at the topic's end, if it is in touch with Kafka."""
ROUNDING_S = 0.002
QUICK_S = 0.05
AWAY_S = 12.0


@dataclass(frozen=True)
class Interval:
    """One report, `after_s` the one before; `took_s` until it arrives. Clocks are set before it is written."""

    after_s: float
    took_s: float
    driver_step_s: float
    reader_step_s: float


def step(longest_s: float = 200_000.0, shortest_s: float = 0.0) -> st.SearchStrategy[float]:
    found = [each for each in STEPS_S if shortest_s < abs(each) < longest_s]
    return st.one_of(st.just(0.0), st.just(0.0), st.sampled_from(found))


def taking(took_s: float) -> st.SearchStrategy[Interval]:
    # While the reader is away, a step that is shorter than that looks the same as a report that took so long.
    away_s = took_s if took_s > QUICK_S else 0.0
    pauses = st.sampled_from((REPORTS_EVERY_S, 1.5, 30.0))
    return st.builds(Interval, pauses, st.just(took_s), step(shortest_s=away_s), step())


intervals = st.lists(st.sampled_from((0.003, 0.003, 0.02, AWAY_S)).flatmap(taking), min_size=1, max_size=15)


@dataclass
class Follower:
    """Reads the commits topic of a driver. `now_s` is true time, which both monotonic clocks show."""

    reports: ProcessorReports = field(default_factory=ProcessorReports)
    times: ReportTimes = field(default_factory=ReportTimes)
    now_s: float = 100.0
    driver_off_s: float = 0.0
    reader_off_s: float = 0.0

    def take(self, interval: Interval) -> float:
        """Take the next report; return when it was written."""
        self.driver_off_s += interval.driver_step_s
        self.reader_off_s += interval.reader_step_s
        written_s = self.now_s + interval.after_s
        self.now_s = written_s + interval.took_s
        commit = commits_pb2.Commit(store="s", age_ms=0)
        timestamp_ms = round((WALL_S + written_s + self.driver_off_s) * 1000)
        wall_ms = (WALL_S + self.now_s + self.reader_off_s) * 1000
        # Either it came soon, and the reader was there a moment before; or the reader was cut off meanwhile.
        silence_s = interval.took_s + LOOKS_EVERY_S / 2
        self.reports.take(commit, self.times.written_at_s(commit, timestamp_ms, self.now_s, wall_ms, silence_s))
        return written_s

    def age_s(self) -> float:
        return self.reports.latest["s"].age_ms(self.now_s) / 1000


@pytest.mark.feature("clocks-jump-staleness")
@given(intervals)
def test_no_step_makes_an_age_wrong(log: list[Interval]) -> None:
    follower = Follower()
    for interval in log:
        written_s = follower.take(interval)
        told_s = follower.age_s()
        assert told_s >= follower.now_s - written_s - ROUNDING_S, "never younger than it is"
        assert told_s <= interval.took_s + LOOKS_EVERY_S + ROUNDING_S, "nor older than the reader was away"


@given(intervals, st.floats(0.0, 60.0))
def test_what_is_known_of_the_clocks_outlasts_an_absence(log: list[Interval], away_s: float) -> None:
    follower, usual = Follower(), Interval(REPORTS_EVERY_S, 0.003, 0.0, 0.0)
    for interval in [*log, usual, usual]:
        follower.take(interval)
    follower.take(Interval(away_s, 0.003, 0.0, 0.0))
    written_s = follower.now_s - 0.003
    assert follower.age_s() <= follower.now_s - written_s + LOOKS_EVERY_S + 0.001 * away_s + ROUNDING_S


@given(st.sampled_from(STEPS_S), st.booleans(), st.integers(1, 20))
def test_a_step_shows_in_no_age(step_s: float, is_driver: bool, before: int) -> None:
    follower, usual = Follower(), Interval(REPORTS_EVERY_S, 0.003, 0.0, 0.0)
    for _ in range(before + 1):
        follower.take(usual)
    driver_s, reader_s = (step_s, 0.0) if is_driver else (0.0, step_s)
    follower.take(Interval(REPORTS_EVERY_S, 0.003, driver_s, reader_s))
    for _ in range(3):
        assert 0.003 - ROUNDING_S <= follower.age_s() <= LOOKS_EVERY_S
        follower.take(usual)


@given(st.floats(0.0, 10.0**6), st.sampled_from(STEPS_S))
def test_a_report_of_what_was_so_long_ago_says_so(ago_s: float, off_s: float) -> None:
    """As of a batch that another program has committed, or of a processor that ends without a word on its sources."""
    times = ReportTimes()
    commit = commits_pb2.Commit(store="s", age_ms=round(ago_s * 1000))
    timestamp_ms = round((WALL_S + off_s - ago_s) * 1000)
    at_s = times.written_at_s(commit, timestamp_ms, 100.0, WALL_S * 1000, 0.3)
    assert abs(100.0 - at_s - ago_s) <= 0.3 + ROUNDING_S


@given(st.floats(0.0, 30.0), st.floats(0.0, 30.0), st.sampled_from((0.0, *STEPS_S)))
def test_a_controllers_record_is_no_older_than_we_were_away(took_s: float, before_s: float, off_s: float) -> None:
    timestamp_ms = round((WALL_S + off_s - took_s) * 1000)
    age_s = 100.0 - written_at_s(timestamp_ms, 100.0, WALL_S * 1000, took_s + before_s)
    assert 0.0 <= age_s <= took_s + before_s + ROUNDING_S
    # One that was there before we first came to the end can be dated by the clocks only.
    assert abs(100.0 - written_at_s(timestamp_ms, 100.0, WALL_S * 1000) - max(0.0, took_s - off_s)) <= ROUNDING_S


@given(st.lists(st.floats(0.0, 3_600_000.0), max_size=5))
def test_the_time_of_day_goes_on_by_itself(pauses_ms: list[float]) -> None:
    elapsed_ms = 5_000.0
    clock = MachineClock("boot", 1_700_000_000_000, lambda: elapsed_ms)
    before = clock.now_ms()
    for pause_ms in pauses_ms:
        elapsed_ms += pause_ms
        assert abs(clock.now_ms() - before - pause_ms) <= 1
        before = clock.now_ms()
