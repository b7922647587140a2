"""What the processor last reported for each store."""

from __future__ import annotations

import pytest

from statehouse.contract.processor_reports import (
    SETTINGS_MAX,
    ProcessorReport,
    ProcessorReports,
    decode_commit,
    input_backlog,
    written_at_s,
)
from statehouse.control.v1 import commits_pb2
from statehouse.errors import ContractError


@pytest.mark.feature("clocks-jump-staleness")
def test_a_record_is_as_old_as_the_clocks_say_and_never_of_the_future() -> None:
    assert written_at_s(7_000, now_s=50.0, wall_ms=9_500) == 47.5
    assert written_at_s(9_500, now_s=50.0, wall_ms=9_500) == 50.0
    assert written_at_s(20_000, now_s=50.0, wall_ms=9_500) == 50.0, "the driver's clock is ahead of ours"


def test_an_age_is_in_whole_milliseconds() -> None:
    report = ProcessorReport(47.5, None)
    assert report.age_ms(50.0) == 2_500
    assert report.age_ms(47.0) == 0


def test_stores_are_kept_apart_and_forgotten_when_their_application_begins_anew() -> None:
    reports = ProcessorReports()
    reports.take(commits_pb2.Commit(store="boards", input_backlog=3), 10.0)
    reports.take(commits_pb2.Commit(store="ranks"), 11.0)
    assert reports.latest == {"boards": ProcessorReport(10.0, 3), "ranks": ProcessorReport(11.0, None)}
    reports.forget("boards")
    reports.forget("boards")
    assert list(reports.latest) == ["ranks"]
    reports.take(commits_pb2.Commit(store="boards", query_id="anew", input_backlog=0), 9.0)
    assert reports.latest["boards"] == ProcessorReport(9.0, 0), "what was forgotten holds nothing up"


def test_a_record_of_the_commits_topic_is_checked() -> None:
    commit = commits_pb2.Commit(store="boards", batch_id=4, input_backlog=0)
    assert decode_commit(b"boards", commit.SerializeToString()) == commit
    for key in (b"ranks", b"", None):
        with pytest.raises(ContractError, match="boards"):
            decode_commit(key, commit.SerializeToString())
    with pytest.raises(ContractError, match="no commit record"):
        decode_commit(b"boards", b"\xff\xff")
    with pytest.raises(ContractError, match="backlog must be from 0"):
        decode_commit(b"boards", commits_pb2.Commit(store="boards", input_backlog=-1).SerializeToString())
    many = commits_pb2.Commit(store="boards")
    many.changelog.settings.extend([commits_pb2.ComparedSetting(name="a")] * (SETTINGS_MAX + 1))
    unprintable = commits_pb2.Commit(store="boards")
    unprintable.changelog.settings.add(name="a\x00")
    for wrong, why in ((many, "201 settings"), (unprintable, "can't be shown")):
        with pytest.raises(ContractError, match=why):
            decode_commit(b"boards", wrong.SerializeToString())


@pytest.mark.parametrize(
    ("processed", "ends", "backlog"),
    [
        ({}, {}, None),
        ({("a", 0): 3}, {("a", 0): 3}, 0),
        ({("a", 0): 3, ("a", 1): 5, ("b", 0): 0}, {("a", 0): 10, ("a", 1): 5, ("b", 0): 1}, 8),
        ({("a", 0): 3, ("a", 1): 5}, {("a", 0): 10}, None),
        ({("a", 0): 3}, {("a", 0): 2}, 0),
        ({("a", 0): 3}, {("a", 0): 4, ("a", 1): 9}, 1),
    ],
    ids=["no source", "none left", "summed", "an end is missing", "a truncated source", "a partition nobody reads yet"],
)
def test_the_input_backlog(
    processed: dict[tuple[str, int], int], ends: dict[tuple[str, int], int], backlog: int | None
) -> None:
    assert input_backlog(processed, ends) == backlog
