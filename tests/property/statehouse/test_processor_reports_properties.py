"""The last report of each store, from any log: late, repeated, of other clocks, of a processor that stopped."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.contract.processor_reports import ProcessorReports, written_at_s
from statehouse.control.v1 import commits_pb2

# The wall clock when our monotonic clock is 0.
WALL_MS = 1_000_000


@dataclass(frozen=True)
class Record:
    """A record of the log: after how long it was read, and how far its time is from the time of its reading."""

    store: str
    pause_s: float
    written_ms_ago: int
    commit: commits_pb2.Commit


commits = st.builds(
    commits_pb2.Commit,
    query_id=st.sampled_from(["first", "anew"]),
    batch_id=st.integers(0, 3),
    idle=st.booleans(),
    stopped=st.booleans(),
    input_backlog=st.none() | st.integers(0, 5),
)
records = st.lists(
    st.builds(
        Record,
        st.sampled_from(["boards", "ranks"]),
        st.sampled_from([0.0, 0.5, 3.0]),
        st.integers(-10_000, 10_000),
        commits,
    ),
    max_size=12,
)


def taken(reports: ProcessorReports, record: Record, now_s: float) -> float:
    """Take a record that is read now; return when it was written."""
    commit = commits_pb2.Commit()
    commit.CopyFrom(record.commit)
    commit.store = record.store
    wall_ms = WALL_MS + now_s * 1000
    at_s = written_at_s(round(wall_ms) - record.written_ms_ago, now_s, wall_ms)
    reports.take(commit, at_s)
    return at_s


@pytest.mark.feature("processor-age-ms")
@given(records, st.sampled_from([0.0, 7.0]))
def test_reports_are_those_of_a_plain_model(log: list[Record], later_s: float) -> None:
    reports, now_s = ProcessorReports(), 0.0
    times: dict[str, list[float]] = {}
    backlogs: dict[str, int | None] = {}
    for record in log:
        now_s += record.pause_s
        before = {store: report.age_ms(now_s) for store, report in reports.latest.items()}
        at_s = taken(reports, record, now_s)
        times.setdefault(record.store, []).append(at_s)
        has_backlog = record.commit.HasField("input_backlog")
        backlogs[record.store] = record.commit.input_backlog if has_backlog else None
        after = {store: report.age_ms(now_s) for store, report in reports.latest.items()}
        assert all(0 <= after[store] <= age for store, age in before.items()), "no report makes an age grow"
        assert after[record.store] <= max(0, record.written_ms_ago) + 1
    assert {store: report.at_s for store, report in reports.latest.items()} == {s: max(at) for s, at in times.items()}
    assert {store: report.input_backlog for store, report in reports.latest.items()} == backlogs
    for report in reports.latest.values():
        grown = report.age_ms(now_s + later_s) - report.age_ms(now_s)
        assert abs(grown - later_s * 1000) <= 1, "in silence an age grows as time passes, whoever wrote last"


@given(records)
def test_a_record_that_is_read_twice_changes_nothing(log: list[Record]) -> None:
    once, twice = ProcessorReports(), ProcessorReports()
    now_s = 0.0
    for record in log:
        now_s += record.pause_s
        taken(once, record, now_s)
        for _ in range(2):
            taken(twice, record, now_s)
    assert once.latest == twice.latest
