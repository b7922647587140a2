"""Queries that die are started again, and the process ends when that has no use."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.restarts import RestartPolicy
from processor.runner import Processor, Topology
from processor.settings import ProcessorSettings
from processor.supervision import QueryDied
from statehouse.local.kafka import EmbeddedKafka
from statehouse.topology import changelog_topic
from tests.integration.processor.support import messages
from tests.support.kafka import create_topic, produce
from tests.support.polling import poll_until

pytestmark = pytest.mark.timeout(240)

DEADLINE_S = 90.0


def test_a_query_that_dies_goes_on_where_it_was_and_ends_the_process_when_it_dies_again_and_again(
    spark: SparkSession, kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
):
    application, events = unique_name("app"), unique_name("events")
    create_topic(kafka.bootstrap, events)
    stone = tmp_path / "stone"
    where = str(stone)

    def stumble(value: str) -> str:
        path = Path(where)
        if path.exists():
            if path.read_text() == "loose":
                path.unlink()
            raise ValueError("stumbled over a stone")
        return value

    def build(app: Application) -> None:
        value = F.udf(stumble, "string", useArrow=False)(F.col("value").cast("string"))
        app.store("walks", app.stream(events).select("key", value.alias("value")))

    settings = ProcessorSettings(
        bootstrap=kafka.bootstrap,
        checkpoint_dir=str(tmp_path / "checkpoint"),
        restarts=RestartPolicy(max_restarts=1, backoff_s=0.1),
    )
    processor = Processor(Topology(application, build), settings)

    def published() -> list[bytes]:
        return [message.value() for message in messages(kafka.bootstrap, changelog_topic(application, "walks"))]

    def walk(steps: range) -> None:
        produce(kafka.bootstrap, events, [(b"walker %d" % step, f"step {step}".encode()) for step in steps])
        deadline = time.monotonic() + DEADLINE_S

        def is_done() -> bool:
            assert time.monotonic() < deadline, "the steps were not published"
            return len(published()) >= steps.stop

        processor.wait(is_done)

    def metric(name: str, **labels: str) -> float | None:
        return processor.metrics.registry.get_sample_value(f"statehouse_processor_{name}", {"query": "walks", **labels})

    try:
        processor.start()
        walk(range(3))
        assert metric("query_restarts_total") is None
        stone.write_text("loose")
        walk(range(3, 6))
        assert metric("query_restarts_total") == 1
        # Progress comes after the batch, on a thread of Spark's; that of the batch that failed never comes.
        poll_until(lambda: metric("input_rows_total") == 6, DEADLINE_S, "the progress of both batches")
        assert metric("input_offsets_total", topic=events) == 6
        assert metric("commit_lag_offsets", topic=events) == 0
        assert metric("trigger_seconds_count") == 2
        stone.write_text("fast")
        with pytest.raises(QueryDied, match=r"query walks ended \(restarts before: 1\): ValueError: stumbled"):
            walk(range(6, 7))
    finally:
        processor.stop()
    assert sorted(published()) == [f"step {step}".encode() for step in range(6)]
