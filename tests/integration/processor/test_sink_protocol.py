"""The sink's protocol against a real broker: replays, zombies, failures half way. Spark's JVM runs the task."""

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from processor.reports.commits import CommitsPublisher, StoreChangelog, Superseded
from processor.rows import DETAIL, KEY, OFFSET, PARTITION, REASON, TOPIC, VALUE
from processor.sink.batch import described
from processor.sink.protocol import OutputTopic, SinkTarget, newest_written
from processor.sink.task_rows import OUTPUT, TIMESTAMP_MS
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import commits_topic
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.processor.support import commits, headers, messages
from tests.support.kafka import create_topic
from tests.support.settings import SINK_LIMITS
from tests.support.task_rows import task_classes, write_rows


class Records:
    """What a writer is to send: a function that is called with the producer."""

    def __init__(self, send: Callable[[Any], None]):
        self.send = send

    class Java:
        implements = ("statehouse.sink.PartitionWriter$Records",)


class PartitionWriter:
    """The task's writer of a partition."""

    session: SparkSession

    def __init__(self, target: SinkTarget, partition: int):
        classes = task_classes(self.session)
        self._writer = classes.PartitionWriter(classes.Target.of(described(target)), partition)

    def initialise(self):
        self._writer.initialise()

    def write(self, batch_id: int, produce: Callable[[Any], None]) -> bool:
        return self._writer.write(batch_id, Records(produce))

    def claim(self, batch_id: int):
        self._writer.claim(batch_id)


@pytest.fixture(autouse=True)
def session(spark: SparkSession):
    PartitionWriter.session = spark
    return spark


def send(producer: Any, topic: str, value: bytes):
    records = PartitionWriter.session._jvm.org.apache.kafka.clients.producer.ProducerRecord
    return producer.send(records(topic, 0, 1, b"k", value))


@pytest.fixture
def target(kafka: EmbeddedKafka, unique_name: Callable[[str], str]):
    application = unique_name("app")
    names = {name: f"{application}-{name}" for name in ("changelog", "topic", "dead")}
    # Records here are of 1970: with a retention the broker may delete them at any moment.
    for name in ("changelog", "topic"):
        create_topic(kafka.bootstrap, names[name], partitions=3, config={"retention.ms": "-1"})
    create_topic(kafka.bootstrap, names["dead"], partitions=2, config={"retention.ms": "-1"})
    outputs = (OutputTopic("store", names["changelog"], 3), OutputTopic("topic", names["topic"], 3))
    return SinkTarget(kafka.bootstrap, application, "query", outputs, names["dead"], 2, uuid.uuid4().hex, **SINK_LIMITS)


def record(target: SinkTarget, text: str, output: int = 0):
    return lambda producer: send(producer, target.outputs[output].topic, text.encode())


def values(target: SinkTarget, output: int = 0):
    return [message.value().decode() for message in messages(str(target.brokers), target.outputs[output].topic)]


@pytest.mark.feature("exactly-once-batch")
def test_a_batch_is_written_once_whoever_writes_it_again(target: SinkTarget):
    writer = PartitionWriter(target, 0)
    assert writer.write(0, record(target, "first"))
    assert not writer.write(0, record(target, "kept producer"))
    assert not PartitionWriter(target, 0).write(0, record(target, "another process"))
    assert writer.write(1, record(target, "second"))
    assert values(target) == ["first", "second"]


def test_a_zombie_that_stalled_before_its_first_write_is_fenced_and_then_skips(target: SinkTarget):
    zombie, successor = PartitionWriter(target, 0), PartitionWriter(target, 0)
    zombie.initialise()
    assert successor.write(0, record(target, "successor"))
    assert successor.write(1, record(target, "next"))
    assert not zombie.write(0, record(target, "zombie"))
    assert values(target) == ["successor", "next"]


def test_a_zombie_in_the_middle_of_its_transaction_leaves_nothing(target: SinkTarget):
    zombie, successor = PartitionWriter(target, 0), PartitionWriter(target, 0)
    attempts = []

    def stall(producer: Any):
        record(target, "zombie")(producer)
        producer.flush()
        attempts.append(producer)
        if len(attempts) == 1:
            assert successor.write(0, record(target, "successor"))

    assert not zombie.write(0, stall)
    assert len(attempts) == 1
    assert values(target) == ["successor"]


def test_a_claim_keeps_older_batches_out_and_is_not_taken_for_one(target: SinkTarget):
    kept = PartitionWriter(target, 0)
    assert kept.write(0, record(target, "0"))
    PartitionWriter(target, 0).claim(3)
    for writer in (kept, PartitionWriter(target, 0)):
        with pytest.raises(Py4JJavaError, match=r"ForeignClaim.*batch 3"):
            writer.write(2, record(target, "older"))
    PartitionWriter(target, 0).claim(2)
    assert newest_written(target) == 2
    assert kept.write(3, record(target, "3"))
    assert not PartitionWriter(target, 0).write(2, record(target, "older"))
    PartitionWriter(target, 0).claim(4)
    assert not PartitionWriter(target, 0).write(3, record(target, "again"))
    assert values(target) == ["0", "3"]


def test_a_kept_producer_that_was_fenced_initialises_again(target: SinkTarget):
    one, other = PartitionWriter(target, 0), PartitionWriter(target, 0)
    for batch_id, writer in enumerate((one, other, one, other)):
        assert writer.write(batch_id, record(target, str(batch_id)))
    assert values(target) == ["0", "1", "2", "3"]


def test_a_producer_that_learns_while_it_produces_that_it_was_fenced_initialises_again(target: SinkTarget):
    one, other = PartitionWriter(target, 0), PartitionWriter(target, 0)
    assert one.write(0, record(target, "0"))
    attempts = []

    def produce(producer: Any):
        attempts.append(producer)
        if len(attempts) == 1:
            assert other.write(1, record(target, "1"))
            with pytest.raises(Py4JJavaError):
                record(target, "2")(producer).get()
        else:
            record(target, "2")(producer)

    assert one.write(2, produce)
    assert len(attempts) == 2
    assert values(target) == ["0", "1", "2"]


def test_a_failure_half_way_is_aborted_and_the_batch_can_be_written_again(target: SinkTarget):
    writer = PartitionWriter(target, 0)

    def fail(producer: Any):
        record(target, "half")(producer)
        raise LookupError

    with pytest.raises(Py4JJavaError, match="LookupError"):
        writer.write(0, fail)
    assert writer.write(0, record(target, "whole"))
    assert values(target) == ["whole"]


@pytest.mark.feature("batch-writes-partition")
def test_what_is_written_to_several_outputs_shows_in_all_of_them_or_in_none(target: SinkTarget):
    writer = PartitionWriter(target, 0)

    def to_both(text: str, producer: Any):
        for output in (0, 1):
            record(target, text, output=output)(producer)

    def fail(producer: Any):
        to_both("half", producer)
        producer.flush()  # both logs have their record
        raise LookupError

    with pytest.raises(Py4JJavaError, match="LookupError"):
        writer.write(0, fail)
    assert (values(target, 0), values(target, 1)) == ([], [])
    assert writer.write(0, partial(to_both, "whole"))
    assert (values(target, 0), values(target, 1)) == (["whole"], ["whole"])


def test_a_query_with_a_fresh_checkpoint_writes_its_batches_again(target: SinkTarget):
    assert PartitionWriter(target, 0).write(5, record(target, "old query"))
    fresh = replace(target, query_id=uuid.uuid4().hex)
    assert PartitionWriter(fresh, 0).write(0, record(fresh, "new query"))
    assert values(target) == ["old query", "new query"]


def test_what_the_broker_refuses_for_good_is_not_tried_again(target: SinkTarget):
    writer = PartitionWriter(target, 0)
    attempts = []

    def too_large(producer: Any):
        attempts.append(producer)
        send(producer, target.outputs[0].topic, b"x" * 2_000_000)

    with pytest.raises(Py4JJavaError, match="RecordTooLarge"):
        writer.write(0, too_large)
    assert len(attempts) == 1
    assert writer.write(0, record(target, "small"))
    assert values(target) == ["small"]


def test_an_unreachable_broker_ends_in_a_bounded_time():
    target = SinkTarget(
        "127.0.0.1:1", "a", "s", (OutputTopic("s", "c", 1),), "d", 1, "q", **(SINK_LIMITS | {"write_timeout_s": 0.3})
    )
    writer = PartitionWriter(target, 0)
    with pytest.raises(Py4JJavaError, match=r"WriteTimeout.*partition 0 of query s could not be written"):
        writer.write(0, lambda _producer: None)


@pytest.mark.feature("compacted-changelog-store")
@pytest.mark.feature("batch-writes-partition")
def test_a_task_writes_records_tombstones_and_dead_letters(session: SparkSession, target: SinkTarget):
    keys = [b"1", b"2", b"6"]
    rows = [
        {OUTPUT: 0, KEY: key, VALUE: value, TIMESTAMP_MS: 1234}
        for key, value in zip(keys, (b"a", None, b"c"), strict=True)
    ]
    refused = {KEY: None, VALUE: b"\xffraw", TIMESTAMP_MS: 77, TOPIC: "scores", PARTITION: 5, OFFSET: 9}
    rows.append({OUTPUT: 0, REASON: "not_json", DETAIL: "why", **refused})
    assert +write_rows(session, target, 0, rows).counts == {
        ("store", "changelog"): 2,
        ("store", "tombstone"): 1,
        ("store", "bytes"): 5,
        ("", "not_json"): 1,
    }

    found = messages(str(target.brokers), target.outputs[0].topic)
    assert {message.key(): (message.value(), message.partition(), message.timestamp()[1]) for message in found} == {
        key: (value, partition_for(key, 3), 1234) for key, value in zip(keys, (b"a", None, b"c"), strict=True)
    }
    (dead,) = messages(str(target.brokers), target.dead_letters_topic)
    assert (dead.key(), dead.value()) == (None, b"\xffraw")
    assert headers(dead) == {
        "query": "query",
        "reason": "not_json",
        "detail": "why",
        "source_topic": "scores",
        "source_partition": "5",
        "source_offset": "9",
    }

    assert +write_rows(session, target, 0, rows).counts == {("", "skipped"): 3}
    assert len(messages(str(target.brokers), target.outputs[0].topic)) == 3


def test_a_task_tells_which_partitions_are_claimed_and_writes_the_others(session: SparkSession, target: SinkTarget):
    PartitionWriter(target, 1).claim(7)
    rows = [{OUTPUT: 0, VALUE: b"v", KEY: b"%d" % number} for number in range(12)]
    counts = +write_rows(session, target, 6, rows).counts
    written = [number for number in range(12) if partition_for(b"%d" % number, 3) != 1]
    assert counts["", "claimed"] == 1
    assert counts["store", "changelog"] == len(written)
    assert {message.partition() for message in messages(str(target.brokers), target.outputs[0].topic)} == {0, 2}


def test_a_task_without_rows_does_nothing(session: SparkSession, target: SinkTarget):
    assert write_rows(session, target, 0, []).counts == {}


def test_the_record_cache_is_one_for_all_stores_and_partitions_of_a_task(session: SparkSession, target: SinkTarget):
    """What it saves is counted by store; when it is full, rows are written early."""
    cached = replace(target.outputs[0], record_cache=True)
    target = replace(target, outputs=(cached, replace(cached, name="other")))
    rows = [{OUTPUT: number % 2, KEY: b"%d" % (number % 6), VALUE: b"%03d" % number} for number in range(600)]
    of_each = {"changelog": 3, "bytes": 12, "saved": 297}
    assert +write_rows(session, target, 0, rows).counts == {
        (name, kind): n for name in ("store", "other") for kind, n in of_each.items()
    }
    expected = [b"%03d" % number for number in range(594, 600)]
    assert sorted(message.value() for message in messages(str(target.brokers), cached.topic)) == expected
    tight = +write_rows(session, target, 1, rows, cache_bytes=3 * 44).counts  # half of it holds one of six rows
    for name in ("store", "other"):
        assert tight[name, "early"] > 0
        assert tight[name, "changelog"] == 300 - tight[name, "saved"] > 3
    last = {message.key(): message.value() for message in messages(str(target.brokers), cached.topic)}
    assert sorted(last.values()) == expected


@pytest.mark.parametrize("takes_s", [0.0, 0.2, pytest.param(2.5, marks=pytest.mark.long)])
def test_two_attempts_of_a_task_at_once_write_its_batch_once(target: SinkTarget, takes_s: float):
    """As with speculative execution: the second attempt begins while the first is writing, and fences it."""
    both_write = threading.Barrier(2)

    def attempt() -> bool:
        tries = []

        def produce(producer: Any) -> None:
            tries.append(producer)
            record(target, "value")(producer)
            if len(tries) == 1:
                both_write.wait(30)
            producer.flush()
            threading.Event().wait(takes_s)

        return PartitionWriter(target, 0).write(0, produce)

    with ThreadPoolExecutor(2) as pool:
        attempts = [pool.submit(attempt) for _ in range(2)]
        assert sorted(each.result() for each in attempts) == [False, True]
    assert values(target) == ["value"]


@pytest.mark.feature("exactly-once-batch")
def test_an_old_driver_that_goes_on_beside_its_successor_changes_nothing(target: SinkTarget):
    create_topic(str(target.brokers), commits_topic(target.application_id))
    changelogs = [StoreChangelog("store", target.outputs[0].topic, target.partition_count)]
    old, new = (CommitsPublisher(str(target.brokers), target.application_id, "query", changelogs) for _ in range(2))
    old.start()
    assert PartitionWriter(target, 0).write(0, record(target, "0"))
    old.publish(target.query_id, 0, {("scores", 0): 10})
    old_task = PartitionWriter(target, 0)

    def stall(producer: Any) -> None:
        """Let a new driver start, run the batch again, and the next one, while the old driver's task writes."""
        record(target, "the old driver's 1")(producer)
        producer.flush()
        new.start()
        for batch_id in (1, 2):
            assert PartitionWriter(target, 0).write(batch_id, record(target, str(batch_id)))
            new.publish(target.query_id, batch_id, {("scores", 0): 10 * (batch_id + 1)})

    assert not old_task.write(1, stall)
    with pytest.raises(Superseded, match="Run one processor an application"):
        old.publish(target.query_id, 1, {("scores", 0): 20})
    assert not old_task.write(2, record(target, "the old driver's 2"))
    assert values(target) == ["0", "1", "2"]
    assert [commit.batch_id for commit in commits(str(target.brokers), commits_topic(target.application_id))] == [
        0,
        1,
        2,
    ]
