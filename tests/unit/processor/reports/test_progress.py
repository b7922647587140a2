import json
from datetime import UTC, datetime, timedelta

import pytest

from processor.reports.progress import Backlog, BacklogReports, BacklogStatus, BatchProgress, BufferSize, TopicProgress
from tests.support.progress import progress_json

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_figures_of_a_batch():
    batch = BatchProgress.parse(progress_json())
    assert (batch.query, batch.batch_id, batch.input_rows, batch.input_rows_per_s) == ("counts", 1, 100, 9.6)
    assert batch.topics == {"scores": TopicProgress(100, 100), "players": TopicProgress(0, 0)}
    assert (batch.read, batch.left) == (100, 100)
    assert (batch.state_rows, batch.state_bytes, batch.late_rows) == (32, 8544, 3)
    assert batch.watermark_ms == 60_500
    assert batch.buffers == {1: BufferSize(7, 640)}
    assert batch.duration_s == 1.548
    assert batch.ended_at_s == pytest.approx(datetime(2026, 11, 21, 22, 28, 13, 305_000, UTC).timestamp())


def test_the_first_batch_has_read_its_rows_as_nobody_knows_from_where():
    assert BatchProgress.parse(progress_json(0, scores=(None, 100, 300))).topics["scores"] == TopicProgress(99, 200)


@pytest.mark.parametrize("event_time", [{}, {"watermark": "1970-01-01T00:00:00.000Z"}])
def test_no_watermark_is_none(event_time: dict[str, str]):
    assert BatchProgress.parse(progress_json(eventTime=event_time)).watermark_ms is None


def test_a_query_that_holds_nothing_back_observes_nothing():
    assert BatchProgress.parse(progress_json(observedMetrics={})).buffers == {}


def test_sources_that_are_not_kafka_have_rows_and_no_offsets():
    rate = {"description": "RateStreamV2", "startOffset": 3, "endOffset": 4, "latestOffset": None, "numInputRows": 5}
    files = rate | {"startOffset": {"logOffset": 0}, "endOffset": {"logOffset": 1}}
    batch = BatchProgress.parse(progress_json(sources=[rate, files], stateOperators=[]))
    assert (batch.input_rows, batch.topics, batch.state_rows) == (100, {}, 0)


def test_a_partition_that_is_new_is_all_read():
    source = json.loads(progress_json())["sources"][0]
    source["startOffset"] = {"scores": {"0": 40}}
    assert BatchProgress.parse(progress_json(sources=[source])).topics["scores"].read == 160


def batch(number: int, second: float, *, read: int, left: int, took_s: float = 1.0) -> BatchProgress:
    """A batch that ended at that second."""
    began = NOON + timedelta(seconds=second - took_s)
    return BatchProgress.parse(
        progress_json(
            number,
            timestamp=began.isoformat(),
            duration_ms=round(took_s * 1000),
            scores=(0, read, read + left),
        )
    )


def test_one_batch_gives_a_first_estimate():
    assert Backlog().take(batch(1, 1, read=100, left=1_000)) == BacklogStatus(1_000, 100.0, 10.0)


def test_arrivals_make_it_take_longer():
    backlog = Backlog()
    for second in range(1, 5):  # 100 a second are processed, and 60 arrive
        status = backlog.take(batch(second, second, read=100, left=1_000 - 40 * second))
    assert status == BacklogStatus(840, 100.0, pytest.approx(21.0))


def test_a_backlog_that_grows_has_no_end():
    backlog = Backlog()
    backlog.take(batch(1, 1, read=100, left=1_000))
    assert backlog.take(batch(2, 2, read=100, left=1_000)).eta_s is None
    assert backlog.take(batch(3, 3, read=100, left=1_200)).eta_s is None


def test_pauses_between_batches_are_no_part_of_the_speed_but_of_the_time_to_go():
    backlog = Backlog()
    backlog.take(batch(1, 10, read=100, left=1_000))
    assert backlog.take(batch(2, 20, read=100, left=900)) == BacklogStatus(900, 100.0, 90.0)


def test_only_the_last_half_minute_counts_but_two_batches_at_least():
    backlog = Backlog()
    backlog.take(batch(1, 0, read=10, left=2_000))
    backlog.take(batch(2, 31, read=1_000, left=1_500))
    assert backlog.take(batch(3, 32, read=1_000, left=1_400)) == BacklogStatus(1_400, 1_000.0, 14.0)
    assert backlog.take(batch(4, 1_000, read=100, left=400)).records_per_s == 550.0


def test_what_was_before_the_backlog_has_no_part_in_it():
    backlog = Backlog()
    assert backlog.take(batch(1, 1, read=100, left=0)) == BacklogStatus(0, 100.0, 0.0)
    assert backlog.take(batch(2, 1_000, read=100, left=500)) == BacklogStatus(500, 100.0, 5.0)


def test_a_query_that_begins_anew_has_no_past():
    backlog = Backlog()
    backlog.take(batch(7, 1, read=100, left=500))
    assert backlog.take(batch(0, 2, read=200, left=5_000)) == BacklogStatus(5_000, 200.0, 25.0)


def said(lefts: list[tuple[float, int]]) -> list[float]:
    reports = BacklogReports(10.0)
    return [at for at, left in lefts if reports.is_due(at, left)]


def test_a_short_backlog_is_not_worth_a_line():
    assert said([(0, 0), (1, 500), (5, 300), (10, 0), (11, 500), (20, 0)]) == []


def test_a_long_one_is_told_at_intervals_and_its_end_once():
    assert said([(0, 900), (4, 800), (10, 700), (15, 600), (20, 500), (39, 100), (41, 0), (42, 0)]) == [10, 20, 39, 41]
