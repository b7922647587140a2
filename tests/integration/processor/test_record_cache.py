"""The record cache of a processor that runs: what it saves, by its metrics, and what is written if it is small."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.application.topology import Topology
from processor.operators.text_records import parse_text
from processor.run.processor import Processor
from processor.settings import ProcessorSettings
from statehouse.contract.topology import changelog_topic
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.processor.support import messages, store_of
from tests.support.kafka import create_topic, produce
from tests.support.polling import poll_until

pytestmark = pytest.mark.timeout(240)

UPDATES, KEYS, DEADLINE_S = 3_000, 12, 90.0
INTERVAL_S = 2
LONG = pytest.mark.long


@pytest.mark.feature("one-pool-stores")
@pytest.mark.parametrize("max_bytes", [400, pytest.param(10_000_000, marks=LONG), pytest.param(0, marks=LONG)])
def test_rows_are_written_saved_and_counted_by_store(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], spark: SparkSession, tmp_path: Path, max_bytes: int
) -> None:
    application, events = unique_name("app"), unique_name("events")
    create_topic(kafka.bootstrap, events)
    produce(kafka.bootstrap, events, ((b"%d" % (n % KEYS), b"%d" % n) for n in range(UPDATES)))
    last = {b"%d" % (n % KEYS): b"%d" % n for n in range(UPDATES - KEYS, UPDATES)}

    def build(app: Application) -> None:
        read = app.query("both", parse_text(app.stream(events)))
        read.store("all", partitions=3)
        read.store("some", where=F.col("key") < "5")
        app.store("other", parse_text(app.stream(events)), partitions=2)

    settings = ProcessorSettings(
        bootstrap=kafka.bootstrap, checkpoint_dir=str(tmp_path), record_cache_max_bytes=max_bytes, max_offsets=UPDATES
    )
    processor = Processor(Topology(application, build), settings)
    expected = {"all": last, "some": {key: value for key, value in last.items() if key < b"5"}, "other": last}
    queries = {"all": "both", "some": "both", "other": "other"}
    given = {"all": UPDATES, "other": UPDATES, "some": sum(b"%d" % (n % KEYS) < b"5" for n in range(UPDATES))}
    topics = {store: changelog_topic(application, store) for store in expected}

    def counted(store: str, metric: str, **labels: str) -> float | None:
        named = {"query": queries[store], "output": store} | labels
        return processor.metrics.registry.get_sample_value(f"statehouse_processor_{metric}_records_total", named)

    try:
        processor.start()
        for store, entries in expected.items():
            poll_until(
                lambda: store_of(messages(kafka.bootstrap, topics[store])) == entries,  # noqa: B023
                DEADLINE_S,
                f"the entries of {store}",
            )
            poll_until(lambda: counted(store, "record_cache_saved") is not None, DEADLINE_S, "its metrics")  # noqa: B023
        written = Counter({store: len(messages(kafka.bootstrap, topic)) for store, topic in topics.items()})
        for store, entries in expected.items():
            assert counted(store, "changelog", kind="changelog") == written[store]
            assert counted(store, "record_cache_saved") == given[store] - written[store]
            early = counted(store, "record_cache_early")
            assert early is not None
            if max_bytes == 0:
                assert (written[store], early) == (given[store], 0), "all of them"
            else:
                assert len(entries) <= written[store] <= given[store]
                assert early <= written[store]
                assert early or written[store] == len(entries), "a key's updates are one record"
        early = sum(counted(store, "record_cache_early") or 0 for store in expected)
        assert (early > 0) is (max_bytes == 400), "it is flushed early when it is full"
    finally:
        processor.stop()


@pytest.mark.feature("updates-key-within")
@pytest.mark.long
def test_batches_begin_a_commit_interval_apart(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], spark: SparkSession, tmp_path: Path
) -> None:
    application, events = unique_name("app"), unique_name("events")
    create_topic(kafka.bootstrap, events, 1)
    settings = ProcessorSettings(
        bootstrap=kafka.bootstrap, checkpoint_dir=str(tmp_path), commit_interval_ms=INTERVAL_S * 1000
    )
    processor = Processor(
        Topology(application, lambda app: app.store("latest", parse_text(app.stream(events)))), settings
    )
    topic = changelog_topic(application, "latest")

    def is_published(number: int) -> bool:
        return store_of(messages(kafka.bootstrap, topic)) == {b"k": b"%d" % number}

    try:
        processor.start()
        for number in range(4):
            # Written as soon as the batch before is done: without an interval the next one would take it immediately.
            produce(kafka.bootstrap, events, [(b"k", b"%d" % number)])
            poll_until(partial(is_published, number), DEADLINE_S, f"update {number}")
        produce(kafka.bootstrap, events, ((b"k", b"%d" % number) for number in range(4, 100)))
        poll_until(partial(is_published, 99), DEADLINE_S, "the last update")
        assert spark.conf.get("spark.sql.adaptive.enabled") == "true", "only the query's own session differs"
        assert len(messages(kafka.bootstrap, topic)) <= 4 + 2, "those of an interval are one, or two if it ends between"
        (query,) = spark.streams.active
        began = [datetime.fromisoformat(each["timestamp"]).timestamp() for each in query.recentProgress]
        # Spark begins its first batch immediately, and each later one at a multiple of the interval on the clock.
        intervals = [at // INTERVAL_S for at in began]
        assert len(intervals) >= 4
        assert len(set(intervals)) == len(intervals), f"no two batches begin in one interval: {began}"
    finally:
        processor.stop()
