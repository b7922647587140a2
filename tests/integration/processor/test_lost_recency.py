"""A bounded store whose checkpoint is gone isn't started on the entries that nothing would displace any more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql import SparkSession

from processor.application import Application
from processor.checkpoint import CheckpointReader
from processor.runner import Processor, Topology
from processor.settings import ProcessorSettings
from processor.topics import ApplicationTopics
from statehouse.errors import ConfigurationError
from statehouse.local.kafka import EmbeddedKafka
from tests.support.kafka import create_topic, produce

FRAME = SimpleNamespace(dtypes=[("key", "string"), ("value", "string")], columns=["key", "value"])
STORE, PARTITIONS = "recent", 2


class Reached(Exception):
    """The query would be started."""


class NoFrame:
    @property
    def writeStream(self) -> None:  # noqa: N802 - Spark's name
        raise Reached


def start(spark: SparkSession, kafka: EmbeddedKafka, directory: Path, app_id: str, max_entries: int | None) -> None:
    """Start the query of a store with a changelog that was there before."""
    app = Application(app_id, lambda _source: None)
    app.store(STORE, FRAME, max_entries=max_entries)
    settings = ProcessorSettings(bootstrap=kafka.bootstrap, checkpoint_dir=str(directory))
    topics = ApplicationTopics({STORE: PARTITIONS}, 1, frozenset())
    Processor(Topology(app_id, lambda _app: None), settings)._start_query(spark, app.queries[0], NoFrame(), topics)


@pytest.mark.long
def test_a_bounded_store_needs_its_checkpoint_once_it_has_records(
    spark: SparkSession, kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
):
    app_id = unique_name("app")
    changelog = f"{app_id}-{STORE}-changelog"
    create_topic(kafka.bootstrap, changelog, PARTITIONS, {"cleanup.policy": "compact"})
    create_topic(kafka.bootstrap, f"{app_id}-statehouse-commits", 1, {})
    with pytest.raises(Reached):
        start(spark, kafka, tmp_path, app_id, 5)  # its changelog is empty

    produce(kafka.bootstrap, changelog, [(b"a", b"1")])
    with pytest.raises(
        ConfigurationError, match=r"has records, but there is no checkpoint in .*Restore the checkpoint"
    ):
        start(spark, kafka, tmp_path, app_id, 5)
    with pytest.raises(Reached):
        start(spark, kafka, tmp_path, app_id, None)  # has nothing to displace

    # A batch may be in the changelog before Spark has committed any: it is run again.
    metadata = tmp_path / app_id / STORE / "metadata"
    metadata.parent.mkdir(parents=True)
    metadata.write_text('{"id": "of-the-query"}')
    assert CheckpointReader(spark, str(metadata.parent)).latest_committed() is None
    with pytest.raises(Reached):
        start(spark, kafka, tmp_path, app_id, 5)
