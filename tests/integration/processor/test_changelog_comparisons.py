"""What the processor says of its changelogs: the settings that the brokers have by now, next to those it wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from processor.reports.commits import CommitsPublisher, StoreChangelog
from processor.topics.comparisons import ChangelogComparisons
from statehouse.contract.processor_reports import decode_commit
from statehouse.contract.topology import commits_topic
from statehouse.control.v1 import commits_pb2
from statehouse.kafka.clients import admin
from statehouse.kafka.topics import TopicSpec, ensure_topics
from statehouse.local.kafka import EmbeddedKafka
from tests.support.kafka import alter_topic, create_topic, read_all
from tests.support.polling import poll_until

LAG: Final = "min.compaction.lag.ms"


def found_lag(compared: commits_pb2.TopicComparison | None) -> str | None:
    settings = () if compared is None else compared.settings
    return next((each.found for each in settings if each.name == LAG), None)


@pytest.mark.feature("settings-changelogs-wanted")
def test_a_setting_that_somebody_changes_is_in_the_commit_records(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str]
) -> None:
    application, topic = unique_name("app"), unique_name("changelog")
    spec = TopicSpec(topic, 1, {"cleanup.policy": "compact", LAG: "600000"}, 1)
    ensure_topics(admin(kafka.bootstrap, "tests"), [spec])
    create_topic(kafka.bootstrap, commits_topic(application))
    comparisons = ChangelogComparisons(kafka.bootstrap, "tests", [spec], interval_s=0.1)
    assert comparisons.of(topic) is None
    commits = CommitsPublisher(
        kafka.bootstrap, application, "query", [StoreChangelog("boards", topic, 1)], compared=comparisons.of
    )
    commits.start()
    comparisons.start()
    try:
        first = poll_until(lambda: comparisons.of(topic), 20, "the first comparison")
        assert {each.name: (each.wanted, each.found) for each in first.settings} == {
            "partitions": ("1", "1"),
            "replicas": ("1", "1"),
            "cleanup.policy": ("compact", "compact"),
            LAG: ("600000", "600000"),
        }
        commits.publish("query", 0, {})
        alter_topic(kafka.bootstrap, topic, {LAG: "5"})
        poll_until(lambda: found_lag(comparisons.of(topic)) == "5", 20, "the change")
        assert commits.repeat(0.0)
    finally:
        comparisons.stop()
    records = [decode_commit(key, value or b"") for key, value in read_all(kafka.bootstrap, commits_topic(application))]
    assert [found_lag(record.changelog) for record in records] == ["600000", "5"]
