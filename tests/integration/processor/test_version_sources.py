"""A version that is built from the changelog of the version before: the sources have forgotten the older rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.application.topology import Topology
from processor.run.reset import topics_read_by
from statehouse.cli.exits import ExitCode
from statehouse.contract.topology import changelog_topic
from statehouse.contract.version_names import FIRST
from statehouse.kafka.version_record import change_versions
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.processor.running import processing
from tests.integration.processor.support import messages, store_of
from tests.support.kafka import create_topic, produce, topics_of
from tests.support.polling import poll_until
from tests.support.statehouse import statehouse

STORE = "prices"
WITHIN_S = 120.0


@pytest.mark.usefixtures("spark")
def test_a_version_is_built_from_the_changelog_of_the_one_before(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    name, source = unique_name("shop"), unique_name("rows")
    create_topic(kafka.bootstrap, source)
    before = changelog_topic(name, STORE)

    def build(app: Application) -> None:
        app.store(STORE, app.table(source).select("key", "value"), partitions=2)

    def build_anew(app: Application) -> None:
        doubled = (F.col("value").cast("string").cast("long") * 2).cast("string")
        # Both run in one session of Spark here, where names of queries are taken.
        query = app.query("doubled", app.table(before).select("key", doubled.alias("value")))
        query.store(STORE, partitions=8)

    first = Topology(name, build)
    second = Topology(name, build_anew).of_version("v2")

    def becomes(application_id: str, expected: dict[bytes, bytes]) -> None:
        topic = changelog_topic(application_id, STORE)
        poll_until(
            lambda: topic in topics_of(kafka.bootstrap) and store_of(messages(kafka.bootstrap, topic)) == expected,
            WITHIN_S,
            f"{expected} in {topic}",
        )

    produce(kafka.bootstrap, source, [(b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"a", b"4"), (b"c", None)])
    with processing(first, kafka.bootstrap, tmp_path):
        becomes(name, {b"a": b"4", b"b": b"2"})
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for deleted in admin.delete_records([TopicPartition(source, 0, 5)]).values():
            deleted.result(30.0)
        change_versions(kafka.bootstrap, name, lambda known: known.deployed("v2"), 20.0)
        with processing(second, kafka.bootstrap, tmp_path):
            becomes(second.application_id, {b"a": b"8", b"b": b"4"})
            produce(kafka.bootstrap, source, [(b"d", b"5"), (b"b", None)])
            becomes(second.application_id, {b"a": b"8", b"d": b"10"})
    assert topics_read_by(kafka.bootstrap, name, second.application_id, 30.0) == [before]
    assert topics_read_by(kafka.bootstrap, second.application_id, name, 30.0) == []
    change_versions(kafka.bootstrap, name, lambda known: known.promoted("v2", 0), 20.0)
    where = ("--application-id", name, "--bootstrap", kafka.bootstrap)
    refused = statehouse(tmp_path, "retire", FIRST, "--yes", "--force", *where)
    assert refused.code == ExitCode.ERROR
    assert f"version v2 reads {before}" in " ".join(refused.err.split())
    assert before in topics_of(kafka.bootstrap)
