from collections import Counter
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from processor.reports.metrics import ProcessorMetrics
from processor.reports.progress_listener import QueryProgressListener
from statehouse.control.v1 import commits_pb2
from tests.support.progress import progress_json


@pytest.fixture(autouse=True)
def everything_is_logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Log as by default, whatever a test before has configured for its process."""
    before = structlog.get_config()
    structlog.reset_defaults()
    monkeypatch.setattr("processor.reports.progress_listener.log", structlog.get_logger())
    yield
    structlog.configure(**before)


def heard(*texts: str) -> tuple[ProcessorMetrics, list[dict[str, object]]]:
    metrics = ProcessorMetrics()
    listener = QueryProgressListener(["counts"], metrics, interval_s=5.0)
    with capture_logs() as logged:
        for text in texts:
            listener.take(text)
    return metrics, list(logged)


def test_progress_becomes_metrics():
    metrics, logged = heard(progress_json(1), progress_json(2))
    figures = {
        "input_rows_total": 200,
        "input_rows_per_second": 9.6,
        "state_rows": 32,
        "state_bytes": 8544,
        "late_rows_total": 6,
        "watermark_seconds": 60.5,
        "trigger_seconds_count": 2,
    }
    value = metrics.registry.get_sample_value
    assert {name: value(f"statehouse_processor_{name}", {"query": "counts"}) for name in figures} == figures
    of_scores = {"query": "counts", "topic": "scores"}
    assert value("statehouse_processor_input_offsets_total", of_scores) == 200
    assert value("statehouse_processor_commit_lag_offsets", of_scores) == 100
    assert logged == []


def test_a_backlog_is_told_until_it_is_over():
    times = [f"2026-11-21T12:00:{second:02}.000Z" for second in (1, 4, 7, 9)]
    lefts = [3_000, 2_000, 1_000, 0]
    texts = [
        progress_json(n, timestamp=at, duration_ms=1_000, scores=(0, 1_000, 1_000 + left))
        for n, (at, left) in enumerate(zip(times, lefts, strict=True))
    ]
    _, logged = heard(*texts)
    assert logged == [
        {
            "event": "working off a backlog",
            "log_level": "info",
            "query": "counts",
            "records_left": 1_000,
            "records_per_s": 1_000,
            "eta_s": 3,
        },
        {"event": "backlog worked off", "log_level": "info", "query": "counts"},
    ]


def test_commit_records_are_given_the_figures_of_the_last_batch():
    metrics = ProcessorMetrics()
    listener = QueryProgressListener(["counts"], metrics)
    assert listener.figures("counts") is None
    listener.take(progress_json(1))
    metrics.batch("counts", 1, Counter({("", "not_json"): 2, ("", "null_key"): 1, ("", "skipped"): 1}), 0.1)
    assert listener.figures("counts") == commits_pb2.QueryFigures(
        input_rows_per_second=9.6,
        backlog=100,
        backlog_eta_ms=1_548,
        watermark_ms=60_500,
        state_rows=32,
        state_bytes=8_544,
        dead_letters=3,
        batch_ms=1548,
        dead_letters_by_reason={"not_json": 2, "null_key": 1},
        late_rows=3,
    )


def test_other_queries_of_the_session_are_left_alone():
    metrics, logged = heard(progress_json(query=None), progress_json(query="theirs"))
    assert "statehouse_processor_input_rows_total" not in {
        sample.name for family in metrics.registry.collect() for sample in family.samples
    }
    assert logged == []


def test_progress_of_another_form_is_told_and_passed_over():
    for text in ("no JSON", "[]", "{}", progress_json(sources=None)):
        _, logged = heard(text)
        assert [line["log_level"] for line in logged] == ["warning"], text
