"""A restart amid a backlog: its batches hold what the last run's rate allows."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
import structlog
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.application.topology import Topology
from processor.run import batch_limit
from processor.run.kept_rate import NOTE, KeptRate
from processor.run.processor import Processor
from processor.settings import ProcessorSettings
from processor.spark.checkpoint import CheckpointReader
from statehouse.contract.topology import commits_topic
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.processor.backlogs import fill
from tests.integration.processor.support import ProcessorProcess, commits, writing_checksums
from tests.support.constants import settings_of
from tests.support.kafka import create_topic, produce
from tests.support.polling import poll_until

log = structlog.get_logger(__name__)

pytestmark = pytest.mark.timeout(240)

EVENTS = 6_000
FIRST_LIMIT = 200
BACKLOG = 1_000_000
MAX_BATCH_MS = 5_000
# Batches of the first start and of the second: together they don't read the whole backlog.
BATCHES = (6, 6)


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_a_start_reads_what_the_last_run_could_process_in_time(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_limit, "_FIRST", FIRST_LIMIT)
    monkeypatch.setattr(batch_limit, "_LEAST", 1)
    application, events = unique_name("app"), unique_name("events")
    create_topic(kafka.bootstrap, events)
    produce(kafka.bootstrap, events, [(b"k", str(number).encode()) for number in range(EVENTS)])

    def slowly(value: str) -> str:
        time.sleep(0.001)
        return value

    def build(app: Application) -> None:
        value = F.udf(slowly, "string", useArrow=False)(F.col("value").cast("string"))
        app.store("store", app.stream(events).select("key", value.alias("value")))

    settings = settings_of(
        ProcessorSettings, bootstrap=kafka.bootstrap, checkpoint_dir=str(tmp_path), max_batch_ms=1_500
    )
    kept = tmp_path / application / NOTE

    def ends() -> list[int]:
        found = commits(kafka.bootstrap, commits_topic(application))
        return sorted({commit.source_ends[0].offset for commit in found if commit.source_ends})

    def run(is_enough: Callable[[], bool], what: str) -> None:
        processor = Processor(Topology(application, build), settings)
        processor.start()
        try:
            poll_until(is_enough, 90.0, what)
        finally:
            processor.stop()

    run(kept.exists, "the rate of the first run")
    done = ends()
    assert done[-1] < EVENTS, "the backlog must last until the second start"
    assert {end - begin for begin, end in pairwise([0, *done])} == {FIRST_LIMIT}
    limit = batch_limit.batch_limit(None, float(kept.read_text()), settings.max_batch_ms)

    run(lambda: ends()[-1] == EVENTS, "the end of the backlog")
    # A batch that the first run has planned, and perhaps not done, is done by the second as it was planned.
    first, *full, last = [end - begin for begin, end in pairwise(end for end in ends() if end >= done[-1])]
    assert limit > 1.5 * FIRST_LIMIT
    assert first in (FIRST_LIMIT, limit)
    assert full
    assert set(full) == {limit}
    assert last <= limit


@pytest.mark.long
@pytest.mark.timeout(900)
def test_of_a_large_backlog_each_batch_but_the_first_is_done_in_time(tmp_path: Path) -> None:
    """The leaderboard, in a process of its own. From commit to commit it takes a batch, and what lies between two."""
    with EmbeddedKafka() as broker:
        fill(broker, "examples.leaderboard.topology", BACKLOG)
        for nth, count in enumerate(BATCHES):
            driver = ProcessorProcess("examples.leaderboard.topology", broker.bootstrap, tmp_path)
            driver.start()
            began = time.time()
            try:
                ends = [
                    datetime.fromisoformat(each["timestamp"]) for each in driver.wait_for("batch committed", count, 300)
                ]
                (limited,) = driver.events("batches are limited")
            finally:
                driver.stop()
            first_s = ends[0].timestamp() - began
            later_s = [round((to - since).total_seconds(), 1) for since, to in pairwise(ends)]
            log.info("a backlog", start=nth, limit=limited, start_and_first_batch_s=round(first_s, 1), later_s=later_s)
            assert max(later_s) <= 1.5 * MAX_BATCH_MS / 1000
        assert limited["last_rate"] is not None, "the second start knows the rate of the first"


def test_a_rate_that_cannot_be_read_is_none(spark: SparkSession, tmp_path: Path) -> None:
    rate = KeptRate(spark, str(tmp_path))
    assert rate.read() is None
    for text in ("", "quick", "-1", "0", "inf", "nan"):
        (tmp_path / NOTE).write_text(text)
        assert rate.read() is None
    (tmp_path / NOTE).unlink()
    with writing_checksums(spark):
        CheckpointReader(spark, str(tmp_path)).write_note(NOTE, "1500.0")
    assert rate.read() == 1500
    (tmp_path / NOTE).write_text("2500.0")  # and its checksum isn't
    assert rate.read() is None
    CheckpointReader(spark, str(tmp_path)).write_note(NOTE, "2500.0")
    assert rate.read() == 2500


def test_a_note_that_cannot_be_written_is_only_logged(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / NOTE).mkdir()
    checkpoints = CheckpointReader(spark, str(tmp_path))
    checkpoints.write_note(NOTE, "1500.0")
    assert checkpoints.note(NOTE) is None
