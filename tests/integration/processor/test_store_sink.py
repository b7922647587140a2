"""The sink as Spark calls it, with batches that come twice."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from processor.commits import CommitsPublisher, StoreChangelog, Superseded
from processor.sink.batch import Draining, StoreSink
from processor.sink.protocol import SinkTarget
from statehouse.local.kafka import EmbeddedKafka
from statehouse.partitioning import partition_for
from statehouse.topology import commits_topic
from tests.integration.processor.support import commits, headers, messages
from tests.support.kafka import create_topic

STORE = "store"
SCHEMA = (
    "key string, value string, timestamp timestamp, topic string, partition int, offset long, reason string, "
    "detail string"
)


class Checkpoint:
    """What a sink asks of a checkpoint."""

    def query_id(self):
        return "a-query"

    def source_ends(self, batch_id: int):
        return {("scores", 0): 10 * (batch_id + 1)}


@pytest.fixture
def changelog(kafka: EmbeddedKafka, unique_name: Callable[[str], str]):
    application = unique_name("app")
    changelog = StoreChangelog(application, STORE, f"{application}-changelog", 3)
    create_topic(kafka.bootstrap, changelog.topic, partitions=3)
    create_topic(kafka.bootstrap, f"{application}-dead")
    create_topic(kafka.bootstrap, commits_topic(application))
    return changelog


@pytest.fixture
def batches():
    return []


@pytest.fixture
def sink(kafka: EmbeddedKafka, changelog: StoreChangelog, batches: list[Any]):
    publisher = CommitsPublisher(kafka.bootstrap, changelog)
    publisher.start()
    dead_letters = f"{changelog.application_id}-dead"
    target = SinkTarget(kafka.bootstrap, changelog.application_id, STORE, changelog.topic, 3, dead_letters, 1)
    return StoreSink(target, Checkpoint(), publisher, lambda *batch: batches.append(batch), tasks=2)


def test_a_batch_that_comes_twice_is_written_once_and_committed_twice(
    spark: SparkSession, kafka: EmbeddedKafka, changelog: StoreChangelog, sink: StoreSink, batches: list[Any]
):
    keys = [str(number) for number in range(20)]
    rows = [(key, f"value {key}", None, None, None, None, None, None) for key in keys]
    rows += [(key, None, None, None, None, None, None, None) for key in ("gone", "lost")]
    rows += [("k", "raw", None, "scores", 7, 41, "not_json", "why")]
    rows += [(None, "of nobody", None, None, None, None, None, None)]
    frame = spark.createDataFrame(rows, SCHEMA)

    sink(frame, 0)
    sink(frame, 0)
    sink(frame.limit(0), 1)

    found = messages(kafka.bootstrap, changelog.topic)
    assert Counter(message.key() for message in found) == Counter([*(key.encode() for key in keys), b"gone", b"lost"])
    assert all(message.partition() == partition_for(message.key(), 3) for message in found)
    assert {message.value() for message in found if message.key() in (b"gone", b"lost")} == {None}
    dead_letters = messages(kafka.bootstrap, f"{changelog.application_id}-dead")
    nobody, dead = sorted(dead_letters, key=lambda message: message.key() or b"")
    assert (dead.key(), dead.value()) == (b"k", b"raw")
    assert headers(dead)["source_offset"] == "41"
    assert (nobody.key(), nobody.value()) == (None, b"of nobody")
    assert headers(nobody) == {"reason": "null_key", "detail": "a store's row without a key"}

    assert [(batch_id, dict(counts)) for batch_id, counts, _ in batches] == [
        (0, {"changelog": 20, "tombstone": 2, "not_json": 1, "null_key": 1}),
        (0, {"skipped": 3}),
        (1, {}),
    ]
    found = list(commits(kafka.bootstrap, commits_topic(changelog.application_id)))
    assert [(commit.batch_id, commit.source_ends[0].offset, commit.idle) for commit in found] == [
        (0, 10, False),
        (0, 10, False),
        (1, 20, False),
    ]
    assert found[0].query_id == "a-query"
    # Each partition's end is past its records and the marker of the transaction.
    assert sum(end.offset for end in found[0].changelog_ends) >= 22 + 3


def test_a_drained_sink_leaves_batches_for_the_next_start(
    spark: SparkSession, kafka: EmbeddedKafka, changelog: StoreChangelog, sink: StoreSink
):
    assert sink.drain(1.0)
    with pytest.raises(Draining):
        sink(spark.createDataFrame([], SCHEMA), 0)
    assert sink.failure is None
    assert messages(kafka.bootstrap, changelog.topic) == []


def test_a_replaced_driver_cannot_publish_commits(kafka: EmbeddedKafka, changelog: StoreChangelog):
    old, new = (CommitsPublisher(kafka.bootstrap, changelog) for _ in range(2))
    old.start()
    old.publish("q", 0, {})
    assert old.repeat(0.0)
    new.start()
    new.publish("q", 1, {})
    with pytest.raises(Superseded, match="another processor"):
        old.publish("q", 0, {})
    with pytest.raises(Superseded):
        old.repeat(0.0)
    found = list(commits(kafka.bootstrap, commits_topic(changelog.application_id)))
    assert [(commit.batch_id, commit.idle) for commit in found] == [(0, False), (0, True), (1, False)]
