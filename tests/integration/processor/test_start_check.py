"""A query starts from the checkpoint that belongs to its changelog only: asked of a real broker and Spark's files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from processor.reports.commits import CommitsPublisher, StoreChangelog
from processor.rows import KEY, VALUE
from processor.run.start_check import CheckpointMisfit, refuse_misfit
from processor.sink.protocol import OutputTopic, SinkTarget
from processor.sink.task_rows import OUTPUT
from processor.spark.checkpoint import CheckpointReader
from statehouse.contract.topology import changelog_topic, commits_topic
from statehouse.local.kafka import EmbeddedKafka
from tests.support.kafka import create_topic
from tests.support.settings import SINK_LIMITS
from tests.support.task_rows import write_rows

STORE, QUERY, QUERY_ID, PARTITIONS = "store", "query", "of-the-query", 2


class Run:
    """A query's batches, as its driver, its tasks and Spark leave them, without any of these."""

    def __init__(self, spark: SparkSession, bootstrap: str, application_id: str, directory: Path) -> None:
        self.session = spark
        self.changelog = StoreChangelog(STORE, changelog_topic(application_id, STORE), PARTITIONS)
        create_topic(bootstrap, self.changelog.topic, PARTITIONS, {"cleanup.policy": "compact"})
        create_topic(bootstrap, commits_topic(application_id))
        outputs = (OutputTopic(STORE, self.changelog.topic, PARTITIONS),)
        self.target = SinkTarget(
            bootstrap, application_id, QUERY, outputs, "unused", 1, query_id=QUERY_ID, **SINK_LIMITS
        )
        self._commits = CommitsPublisher(bootstrap, application_id, QUERY, [self.changelog])
        self._commits.start()
        self.checkpoint = directory / "checkpoint"
        self._reader = CheckpointReader(spark, str(self.checkpoint))

    def plan(self, batch_id: int, query_id: str = QUERY_ID) -> None:
        for log in ("offsets", "commits"):
            (self.checkpoint / log).mkdir(parents=True, exist_ok=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": query_id}))
        ends = json.dumps({"events": {"0": 10 * (batch_id + 1)}})
        (self.checkpoint / "offsets" / str(batch_id)).write_text(f"v1\n{{}}\n{ends}")

    def write(self, batch_id: int) -> None:
        report = write_rows(self.session, self.target, batch_id, [{OUTPUT: 0, KEY: b"k", VALUE: b"v"}])
        assert report.counts[self.target.outputs[0].name, "changelog"] == 1

    def record(self, batch_id: int) -> None:
        self._commits.publish(QUERY_ID, batch_id, self._reader.source_ends(batch_id))

    def commit(self, batch_id: int, query_id: str = QUERY_ID) -> None:
        self.plan(batch_id, query_id)
        (self.checkpoint / "commits" / str(batch_id)).write_text("v1\n{}")

    def check(self, *, accept_lost: bool = False, is_bounded: bool = False, further_stores: int = 0) -> None:
        added = [StoreChangelog(f"added-{nth}", self.changelog.topic, PARTITIONS) for nth in range(further_stores)]
        target = replace(self.target, query_id="")
        changelogs = [self.changelog, *added]
        refuse_misfit(target, changelogs, self._reader, accept_lost=accept_lost, is_bounded=is_bounded)


@pytest.fixture
def run(spark: SparkSession, kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path):
    return Run(spark, kafka.bootstrap, unique_name("app"), tmp_path)


def test_a_checkpoint_fits_after_each_step_of_a_batch(run: Run):
    run.check()
    for step in (run.plan, run.write, run.record, run.commit):
        step(0)
        run.check()
    run.check(further_stores=1)
    # Later batches are recorded while Spark commits them and goes on.
    steps = [(run.plan, 1), (run.write, 1), (run.commit, 1), (run.plan, 2), (run.write, 2), (run.record, 1)]
    for step, batch_id in [*steps, (run.commit, 2), (run.plan, 3), (run.record, 2)]:
        step(batch_id)
        run.check()


@pytest.mark.feature("checkpoint-doesn-t")
def test_what_does_not_fit_is_refused_with_the_remedy(run: Run):
    for step in (run.plan, run.write, run.record, run.commit):
        step(0)
    run.plan(1)
    newest = run.checkpoint.with_name("newest")
    shutil.copytree(run.checkpoint, newest)
    shutil.rmtree(run.checkpoint)
    run.commit(0)
    older = run.checkpoint.with_name("older")
    run.checkpoint.rename(older)

    with pytest.raises(CheckpointMisfit, match=r"no checkpoint of the query that wrote them .*restore the checkpoint"):
        run.check()
    with pytest.raises(CheckpointMisfit, match="not with max_entries"):
        run.check(accept_lost=True, is_bounded=True)
    run.check(accept_lost=True)

    run.commit(0, query_id="of-another-query")
    with pytest.raises(CheckpointMisfit, match=r"another query's .*name the directory"):
        run.check(accept_lost=True)
    shutil.rmtree(run.checkpoint)

    newest.rename(run.checkpoint)
    run.check()
    run.write(1)
    run.check()
    shutil.rmtree(run.checkpoint)
    older.rename(run.checkpoint)
    with pytest.raises(CheckpointMisfit, match=r"older than the changelog .*restore the newest checkpoint"):
        run.check(accept_lost=True)

    shutil.rmtree(run.checkpoint)
    run.commit(9)
    with pytest.raises(CheckpointMisfit, match=r"changelog is older than the checkpoint.*name the brokers"):
        run.check(accept_lost=True)
