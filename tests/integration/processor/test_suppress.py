"""What suppress holds back, on a real broker: it outlives the processor, and is published when its time has come."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.application.topology import Topology
from processor.operators.suppression import Buffer, TimeLimit
from processor.run.processor import Processor
from processor.settings import ProcessorSettings
from statehouse.contract.topology import changelog_topic
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.processor.support import messages
from tests.support.kafka import create_topic, produce_placed
from tests.support.polling import poll_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

DEADLINE_S = 90.0
BEGAN_MS = 1_767_225_600_000


@pytest.mark.feature("suppress-until-window")
def test_what_is_held_back_outlives_the_processor_and_passes_once_its_time_has_come(
    spark: SparkSession, kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    application, scores = unique_name("app"), unique_name("scores")
    create_topic(kafka.bootstrap, scores)
    settings = ProcessorSettings(bootstrap=kafka.bootstrap, checkpoint_dir=str(tmp_path / "checkpoint"))

    def build(app: Application) -> None:
        frame = app.stream(scores).withColumn("value", F.col("value").cast("string"))
        held_back = TimeLimit(timedelta(seconds=10), Buffer())
        app.query("latest", frame, suppress=held_back).store("latest", value_serde="string")

    def after(*scored: tuple[str, str, int]) -> tuple[list[tuple[str, str]], float]:
        """Let a processor take scores (player, score, seconds); return what is published, and how much is held back."""
        records = [(0, player.encode(), score.encode(), BEGAN_MS + at_s * 1_000) for player, score, at_s in scored]
        produce_placed(kafka.bootstrap, scores, records)
        processor = Processor(Topology(application, build), settings)
        deadline = time.monotonic() + DEADLINE_S

        def metric(name: str, **labels: str) -> float:
            name = f"statehouse_processor_{name}"
            return processor.metrics.registry.get_sample_value(name, {"query": "latest", **labels}) or 0.0

        def has_taken_them() -> bool:
            assert time.monotonic() < deadline, "the scores were not processed"
            return metric("input_rows_total") == len(scored)

        try:
            processor.start()
            processor.wait(has_taken_them)
            poll_until(lambda: metric("trigger_seconds_count") > 0, DEADLINE_S, "the batch's progress")
            held = metric("suppress_buffer_records", partition="0")
        finally:
            processor.stop()
        published = messages(kafka.bootstrap, changelog_topic(application, "latest"))
        return [(message.key().decode(), message.value().decode()) for message in published], held

    assert after(("ann", "1", 0), ("ann", "2", 3), ("bob", "7", 5)) == ([], 2)
    assert after(("cid", "1", 11)) == ([("ann", "2")], 2)
    assert after(("cid", "2", 30)) == ([("ann", "2"), ("bob", "7"), ("cid", "2")], 0)
