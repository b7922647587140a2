"""The sink as Spark calls it, with batches that come twice."""

import os
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.reports.commits import CommitsPublisher, StoreChangelog, Superseded
from processor.sink import batch
from processor.sink.batch import Draining, StoreSink
from processor.sink.layouts import TOPIC_OUTPUT, FrameLayout
from processor.sink.protocol import OutputTopic, SinkTarget
from processor.sink.record_cache_pool import RecordCachePool
from processor.sink.records import OutputRows, sink_frame
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import commits_topic
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.processor.support import commits, headers, messages
from tests.support.kafka import create_topic, produce
from tests.support.settings import SINK_LIMITS

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


class Sink:
    """A sink, and what makes records of the rows that it is given."""

    def __init__(self, sink: StoreSink, outputs: list[OutputRows]):
        self.inner, self._outputs = sink, outputs

    def __call__(self, frame: DataFrame, batch_id: int):
        self.inner(sink_frame(frame, self._outputs), batch_id)
        self.inner.settle()


@pytest.fixture
def application(kafka: EmbeddedKafka, unique_name: Callable[[str], str]):
    """An application's id; its topics are there."""
    application = unique_name("app")
    create_topic(kafka.bootstrap, f"{application}-changelog", partitions=3)
    create_topic(kafka.bootstrap, f"{application}-dead")
    create_topic(kafka.bootstrap, commits_topic(application))
    return application


@pytest.fixture
def changelog(application: str):
    return StoreChangelog(STORE, f"{application}-changelog", 3)


@pytest.fixture
def batches():
    return []


@pytest.fixture
def new_sink(kafka: EmbeddedKafka, application: str, changelog: StoreChangelog, batches: list[Any]):
    def new_sink(outputs: list[OutputTopic], rows: list[OutputRows], tasks: int = 1, **options: bool) -> Sink:
        publisher = CommitsPublisher(kafka.bootstrap, application, "query", [changelog])
        publisher.start()
        target = SinkTarget(
            kafka.bootstrap, application, "query", tuple(outputs), f"{application}-dead", 1, **SINK_LIMITS
        )
        cache = RecordCachePool(10_000_000, 1)
        on_batch = lambda *batch: batches.append(batch)  # noqa: E731
        sink = StoreSink(target, Checkpoint(), publisher, on_batch, tasks=tasks, record_cache=cache, **options)
        return Sink(sink, rows)

    return new_sink


@pytest.fixture(params=[(1, False), (1, True), (2, False)], ids=["one-task", "one-stage", "two-tasks"])
def sink(new_sink: Callable[..., Sink], changelog: StoreChangelog, request: pytest.FixtureRequest):
    tasks, is_row_by_row = request.param
    return new_sink([OutputTopic(STORE, changelog.topic, 3)], [OutputRows(3)], tasks, is_row_by_row=is_row_by_row)


@pytest.mark.feature("records-t-used")
@pytest.mark.feature("batch-runs-again")
def test_a_batch_that_comes_twice_is_written_once_and_committed_twice(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    application: str,
    changelog: StoreChangelog,
    sink: Sink,
    batches: list[Any],
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
    dead_letters = messages(kafka.bootstrap, f"{application}-dead")
    nobody, dead = sorted(dead_letters, key=lambda message: message.key() or b"")
    assert (dead.key(), dead.value()) == (b"k", b"raw")
    assert headers(dead)["source_offset"] == "41"
    assert (nobody.key(), nobody.value()) == (None, b"of nobody")
    assert headers(nobody) == {"query": "query", "reason": "null_key", "detail": "a store's row without a key"}

    size = sum(len(key) + len(f"value {key}") for key in keys) + len("gone") + len("lost")
    written = {(STORE, "changelog"): 20, (STORE, "tombstone"): 2, (STORE, "bytes"): size}
    assert [(batch_id, dict(counts)) for batch_id, counts, _ in batches] == [
        (0, written | {("", "not_json"): 1, ("", "null_key"): 1}),
        (0, {("", "skipped"): 3}),
        (1, {}),
    ]
    found = list(commits(kafka.bootstrap, commits_topic(application)))
    assert [(commit.batch_id, commit.source_ends[0].offset, commit.idle) for commit in found] == [
        (0, 10, False),
        (0, 10, False),
        (1, 20, False),
    ]
    assert found[0].query_id == "a-query"
    # Each partition's end is past its records and the marker of the transaction.
    assert sum(end.offset for end in found[0].changelog_ends) >= 22 + 3
    assert found[0].changelog_ends == found[1].changelog_ends == found[2].changelog_ends
    assert all(commit.is_moment for commit in found)


def test_a_drained_sink_leaves_batches_for_the_next_start(
    spark: SparkSession, kafka: EmbeddedKafka, changelog: StoreChangelog, sink: Sink
):
    assert sink.inner.drain(1.0)
    with pytest.raises(Draining):
        sink(spark.createDataFrame([], SCHEMA), 0)
    assert sink.inner.failure is None
    assert messages(kafka.bootstrap, changelog.topic) == []


@pytest.mark.feature("batch-writes-partition")
@pytest.mark.parametrize("tasks", [1, 2])
def test_rows_go_to_each_output_that_wants_them_and_show_at_once(
    tasks: int,
    spark: SparkSession,
    kafka: EmbeddedKafka,
    application: str,
    changelog: StoreChangelog,
    new_sink: Callable[..., Sink],
    batches: list[Any],
):
    wide = f"{application}-judged"
    create_topic(kafka.bootstrap, wide, partitions=5)
    outputs = [OutputTopic(STORE, changelog.topic, 3, record_cache=True), OutputTopic("judged", wide, 5)]
    judged = OutputRows(
        5,
        FrameLayout(TOPIC_OUTPUT),
        where=F.col("value").isNotNull(),
        columns={"value": F.concat(F.lit("judged "), F.col("value")), "timestamp": F.lit(None)},
    )
    sink = new_sink(outputs, [OutputRows(3, where=F.col("key").isNotNull()), judged], tasks)
    rows = [("a", "1", None, "scores", 4, 7, None, None), ("a", "2", None, "scores", 4, 8, None, None)]
    rows += [("b", None, None, None, None, None, None, None), (None, "nobody's", None, "scores", 3, 9, None, None)]
    rows += [("c", "raw", None, "scores", 4, 10, "not_json", "why")]
    sink(spark.createDataFrame(rows, SCHEMA), 0)

    stored = messages(kafka.bootstrap, changelog.topic)
    assert {each.key(): each.value() for each in stored} == {b"a": b"2", b"b": None}
    assert len(stored) == 2, "the last of a key's updates alone"
    found = messages(kafka.bootstrap, wide)
    assert Counter((each.key(), each.value()) for each in found) == Counter(
        [(b"a", b"judged 1"), (b"a", b"judged 2"), (None, b"judged nobody's")]
    )
    placed = {each.key(): each.partition() for each in found}
    assert placed == {b"a": partition_for(b"a", 5), None: 3}
    (dead,) = messages(kafka.bootstrap, f"{application}-dead")
    assert (dead.key(), dead.value(), headers(dead)["reason"]) == (b"c", b"raw", "not_json")
    ((_, counts, _),) = batches
    assert counts == Counter(
        {
            (STORE, "changelog"): 1,
            (STORE, "tombstone"): 1,
            (STORE, "bytes"): 3,
            (STORE, "saved"): 1,
            (STORE, "early"): 0,
            ("judged", "changelog"): 3,
            ("judged", "bytes"): 33,
            ("", "not_json"): 1,
        }
    )


def test_a_replaced_driver_cannot_publish_commits(kafka: EmbeddedKafka, application: str, changelog: StoreChangelog):
    old, new = (CommitsPublisher(kafka.bootstrap, application, "query", [changelog]) for _ in range(2))
    old.start()
    old.publish("q", 0, {})
    assert old.repeat(0.0)
    new.start()
    new.publish("q", 1, {})
    with pytest.raises(Superseded, match="another processor"):
        old.publish("q", 0, {})
    with pytest.raises(Superseded):
        old.repeat(0.0)
    found = list(commits(kafka.bootstrap, commits_topic(application)))
    assert [(commit.batch_id, commit.idle) for commit in found] == [(0, False), (0, True), (1, False)]


@pytest.mark.feature("processor-age-ms")
def test_commit_records_say_what_the_sources_have_beyond_them(
    kafka: EmbeddedKafka, application: str, changelog: StoreChangelog, unique_name: Callable[[str], str]
):
    source = unique_name("source")
    create_topic(kafka.bootstrap, source, partitions=2)
    produce(kafka.bootstrap, source, [(b"k", b"v")] * 5)
    publisher = CommitsPublisher(kafka.bootstrap, application, "query", [changelog])
    publisher.start()
    publisher.publish("q", 0, {(source, 0): 3, (source, 1): 0})
    produce(kafka.bootstrap, source, [(b"k", b"v")] * 4, partition=1)
    assert publisher.repeat(0.0)
    publisher.publish("q", 1, {(source, 0): 5, (source, 1): 4})
    publisher.publish("q", 2, {(source, 0): 5, (f"{source}-that-is-gone", 0): 4})
    publisher.publish("q", 3, {})
    produce(kafka.bootstrap, source, [(b"k", b"v")])
    publisher.publish("q", 4, {(source, 0): 5})
    publisher.finish()
    found = [
        each.input_backlog if each.HasField("input_backlog") else None
        for each in commits(kafka.bootstrap, commits_topic(application))
    ]
    assert found == [2, 6, 0, None, None, 1, 1]


def test_commit_records_are_written_on_after_one_was_not_answered_in_time(
    kafka: EmbeddedKafka, application: str, changelog: StoreChangelog, monkeypatch: pytest.MonkeyPatch
):
    publisher = CommitsPublisher(kafka.bootstrap, application, "query", [changelog])
    publisher.start()
    publisher.publish("q", 0, {})
    with monkeypatch.context() as impatient:
        # Each of its five tries would last ten seconds.
        impatient.setattr(publisher._producer, "_timeout_s", 0.2)
        os.kill(kafka.pid, signal.SIGSTOP)
        try:
            with pytest.raises(KafkaException):
                publisher.repeat(0.0)
        finally:
            os.kill(kafka.pid, signal.SIGCONT)
    publisher.publish("q", 1, {})
    found = list(commits(kafka.bootstrap, commits_topic(application)))
    assert (found[0].batch_id, found[-1].batch_id) == (0, 1)


def test_one_task_reads_and_writes_a_small_batch_after_a_short_one(
    spark: SparkSession, new_sink: Callable[..., Sink], changelog: StoreChangelog, monkeypatch: pytest.MonkeyPatch
):
    sink = new_sink([OutputTopic(STORE, changelog.topic, 3)], [OutputRows(3)], is_row_by_row=True)
    frame = spark.createDataFrame([("k", "v", None, None, None, None, None, None)], SCHEMA)
    read_too = []

    class Spied:
        def write(self, *given: Any) -> str:
            read_too.append(given[5])
            return "[]"

    monkeypatch.setattr(batch, "task_object", lambda *_: Spied())
    for batch_id in range(2):
        sink(frame, batch_id)
    assert read_too == [False, True]
    sink.inner._took_s = 1.1
    for batch_id in (2, 3):
        sink(frame, batch_id)
    assert read_too == [False, True, False, True]
