from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from structlog.testing import capture_logs

from processor.application import Application
from processor.settings import ProcessorSettings
from processor.topics.creation import create_missing_sources, create_topics, wait_for_sources
from statehouse.contract.topology import (
    assignment_topic,
    changelog_topic,
    commits_topic,
    dead_letters_topic,
    members_topic,
)
from statehouse.errors import ConfigurationError
from statehouse.kafka.clients import admin
from statehouse.kafka.topics import partition_counts, topic_settings
from statehouse.local.kafka import EmbeddedKafka
from tests.support.kafka import create_topic
from tests.support.polling import poll_until


@pytest.fixture
def client(kafka: EmbeddedKafka):
    return admin(kafka.bootstrap, "tests")


SETTINGS = ProcessorSettings(bootstrap="unused:1", checkpoint_dir="unused")
TIME = "timestamp"


def declared(application: str, *streams: str) -> Application:
    app = Application(application, lambda _source: frame())
    for topic in streams:
        app.stream(topic)
    return app


def frame(**types: str):
    return SimpleNamespace(dtypes=list(({"key": "string", "value": "string"} | types).items()), columns=list(types))


def assert_no_topic_is_there(client: AdminClient, application: str, *outputs: str):
    names = [name(application) for name in (dead_letters_topic, members_topic, assignment_topic, commits_topic)]
    assert set(partition_counts(client, [*names, *outputs]).values()) == {None}


def test_a_missing_source_is_named_with_the_remedy(
    kafka: EmbeddedKafka, client: AdminClient, unique_name: Callable[[str], str]
):
    there, absent = unique_name("there"), unique_name("absent")
    create_topic(kafka.bootstrap, there, partitions=2)
    with pytest.raises(ConfigurationError, match=f"source topic {absent} not found: create it"):
        wait_for_sources(client, [there, absent], 0.3)
    assert wait_for_sources(client, [there], 0.3) == {there: 2}


@pytest.mark.feature("processor-starts-creates")
def test_missing_sources_are_created_if_that_is_asked_for(
    kafka: EmbeddedKafka, client: AdminClient, unique_name: Callable[[str], str]
):
    there, events, rows, everything, own = map(unique_name, ("there", "events", "rows", "everything", "own"))
    create_topic(kafka.bootstrap, there, partitions=1)
    app = declared(unique_name("app"), there, events, own)
    app.table(rows)
    app.global_store("all", everything)
    app.query("own", frame()).topic(own)
    create_missing_sources(client, app, 2)
    counts = {there: 1, events: 2, rows: 2, everything: 2}
    assert wait_for_sources(client, [*counts], 5) == counts
    assert partition_counts(client, [own]) == {own: None}, "that is an output, created with the others"
    for topic, policy in {events: "delete", rows: "compact", everything: "compact"}.items():
        settings = topic_settings(client, topic)
        assert (settings["cleanup.policy"], settings["retention.ms"]) == (policy, "-1")


@pytest.mark.feature("compacted-changelog-store")
def test_all_topics_are_created_as_the_contract_says(client: AdminClient, unique_name: Callable[[str], str]):
    application = unique_name("app")
    app = declared(application, "scores")
    app.global_table("all")
    app.store("boards", frame(), config={"segment.bytes": "1048576"})
    topics = create_topics(client, app, {"scores": 3, "all": 9}, SETTINGS)
    changelog = changelog_topic(application, "boards")
    assert topics.outputs == {changelog: 3}
    control = [members_topic(application), assignment_topic(application), commits_topic(application)]
    counts = partition_counts(client, [changelog, dead_letters_topic(application), *control])
    assert list(counts.values()) == [3, 3, 1, 1, 1]
    settings = topic_settings(client, changelog)
    assert settings["cleanup.policy"] == "compact"
    assert settings["min.compaction.lag.ms"] == "600000"
    assert settings["segment.bytes"] == "1048576"
    assert settings["message.timestamp.type"] == "CreateTime"
    assert settings["message.timestamp.after.max.ms"] == str(2**63 - 1)
    assert all(topic_settings(client, topic)["cleanup.policy"] == "compact" for topic in control)
    assert topic_settings(client, dead_letters_topic(application))["cleanup.policy"] == "delete"


@pytest.mark.feature("compacted-changelog-store")
@pytest.mark.feature("topics-kept-long")
def test_the_topic_of_each_kind_is_kept_as_long_as_the_kind_needs(
    client: AdminClient, unique_name: Callable[[str], str]
):
    application, hour = unique_name("app"), timedelta(hours=1)
    app = declared(application, "scores")
    app.window_store("windows", frame(window_start=TIME), timedelta(minutes=1), retention=hour)
    app.session_store("sessions", frame(session_start=TIME, session_end=TIME), config={"retention.ms": "5"})
    app.versioned_store("versions", frame(timestamp=TIME), hour)
    app.store("latest", frame(), logging=False)
    create_topics(client, app, {"scores": 1}, SETTINGS)
    windows, sessions, versions, latest = (
        topic_settings(client, store.declaration.changelog_topic) for store in app.stores
    )
    assert windows["cleanup.policy"] == sessions["cleanup.policy"] == "compact,delete"
    assert windows["retention.ms"] == str(3_600_000 + 86_400_000)
    assert windows["message.timestamp.type"] == sessions["message.timestamp.type"] == "LogAppendTime"
    assert windows["min.compaction.lag.ms"] == "600000"
    assert sessions["retention.ms"] == "5", "the store's own setting is the stronger"
    assert versions["cleanup.policy"] == "compact"
    assert versions["message.timestamp.type"] == "CreateTime", "a version's time is its record's"
    assert versions["min.compaction.lag.ms"] == str(3_600_000 + 86_400_000)
    assert versions["segment.ms"] == str(2**63 - 1)
    assert latest["cleanup.policy"] == "delete"
    assert latest["retention.ms"] == latest["segment.ms"] == "600000"


@pytest.mark.feature("compaction-lags-contradict")
@pytest.mark.parametrize(
    ("kind", "config", "remedy"),
    [
        (
            "store",
            {},
            "name min.compaction.lag.ms in the store's config too",
        ),
        ("store", {"min.compaction.lag.ms": "60001"}, "lower the second"),
        ("versioned", {}, "lower the store's history retention, which the second is a day longer than"),
        ("topic", {"min.compaction.lag.ms": "60001"}, "lower the second"),
    ],
)
def test_compaction_lags_that_contradict_each_other_are_refused_before_any_topic_is_made(
    client: AdminClient, unique_name: Callable[[str], str], kind: str, config: dict[str, str], remedy: str
):
    application = unique_name("app")
    app = declared(application, "scores")
    config = config | {"max.compaction.lag.ms": "60000"}
    if kind == "store":
        app.store("boards", frame(), config=config)
    elif kind == "versioned":
        app.versioned_store("boards", frame(timestamp=TIME), timedelta(hours=1), config=config)
    else:
        app.query("boards", frame()).topic(unique_name("topic"), config=config)
    (output,) = app.outputs
    with pytest.raises(ConfigurationError) as refused:
        create_topics(client, app, {"scores": 1}, SETTINGS)
    shortest = {"versioned": 3_600_000 + 86_400_000}.get(kind, int(config.get("min.compaction.lag.ms", 600_000)))
    said = f"topic {output.topic}: max.compaction.lag.ms=60000 is below min.compaction.lag.ms={shortest}: "
    assert str(refused.value).startswith(said)
    assert str(refused.value).endswith(f"Raise the first, or {remedy}")
    assert_no_topic_is_there(client, application, output.topic)


def test_compaction_lags_are_compared_with_what_an_existing_topic_has(
    kafka: EmbeddedKafka, client: AdminClient, unique_name: Callable[[str], str]
):
    application = unique_name("app")
    topic = changelog_topic(application, "boards")
    create_topic(kafka.bootstrap, topic, 1, {"max.compaction.lag.ms": "5000"})
    app = declared(application, "scores")
    app.store("boards", frame())
    with pytest.raises(ConfigurationError, match=r"max.compaction.lag.ms=5000 is below min.compaction.lag.ms=600000"):
        create_topics(client, app, {"scores": 1}, SETTINGS)
    app = declared(application, "scores")
    app.store("boards", frame(), config={"min.compaction.lag.ms": "5000"})
    create_topics(client, app, {"scores": 1}, SETTINGS)

    def changed():
        return topic_settings(client, topic)["min.compaction.lag.ms"] == "5000"

    poll_until(changed, 20, "the changed setting")  # the broker shows a change after it has agreed to it
    wrong = declared(application, "scores")
    wrong.store("boards", frame(), config={"max.compaction.lag.ms": "1h"})
    with pytest.raises(ConfigurationError, match=r"max.compaction.lag.ms='1h' must be a number of milliseconds"):
        create_topics(client, wrong, {"scores": 1}, SETTINGS)


@pytest.mark.feature("compaction-lags-contradict")
@pytest.mark.feature("topic-application-makes")
def test_more_replicas_for_a_write_than_there_are_is_refused_before_any_topic_is_made(
    kafka: EmbeddedKafka, client: AdminClient, unique_name: Callable[[str], str]
):
    for replication_factor in (1, -1):
        settings = SETTINGS.model_copy(update={"replication_factor": replication_factor})
        app = declared(unique_name("app"), "scores")
        app.store("boards", frame(), config={"min.insync.replicas": "2"})
        (output,) = app.outputs
        with pytest.raises(ConfigurationError) as refused:
            create_topics(client, app, {"scores": 1}, settings)
        assert str(refused.value) == (
            f"topic {output.topic}: min.insync.replicas=2 is above its replication factor, 1: brokers would refuse "
            "every write. Lower the first, or set replication_factor"
        )
        assert_no_topic_is_there(client, app.application_id, output.topic)

    create_topic(kafka.bootstrap, output.topic, 1)
    with pytest.raises(ConfigurationError, match=r"factor, 1: .* give the topic more replicas"):
        create_topics(client, app, {"scores": 1}, SETTINGS)
    create_topic(kafka.bootstrap, members_topic(app.application_id), 1, {"min.insync.replicas": "3"})
    app = declared(app.application_id, "scores")
    app.store("boards", frame(), config={"min.insync.replicas": "1"})
    with pytest.raises(ConfigurationError, match=r"-members: min.insync.replicas=3 .*is above"):
        create_topics(client, app, {"scores": 1}, SETTINGS)
    wrong = declared(unique_name("app"), "scores")
    wrong.store("boards", frame(), config={"min.insync.replicas": "all"})
    with pytest.raises(ConfigurationError, match=r"min.insync.replicas='all' must be a number of replicas"):
        create_topics(client, wrong, {"scores": 1}, SETTINGS)


@pytest.mark.feature("topic-application-makes")
def test_every_topic_is_asked_for_with_as_many_replicas_as_set(client: AdminClient, unique_name: Callable[[str], str]):
    application, asked = unique_name("app"), dict[str, int]()

    class ThreeBrokers:
        """Stands for a cluster that can keep three copies: notes how many are asked for, and has one."""

        def create_topics(self, topics: list[NewTopic], **options: Any) -> dict[str, Future[None]]:
            asked.update({topic.topic: topic.replication_factor for topic in topics})
            return client.create_topics([NewTopic(topic.topic, topic.num_partitions, 1) for topic in topics], **options)

        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

    app = declared(application, "scores")
    app.store("boards", frame())
    app.query("both", frame()).topic(unique_name("topic"))
    create_topics(
        cast("Any", ThreeBrokers()), app, {"scores": 1}, SETTINGS.model_copy(update={"replication_factor": 3})
    )
    named = {dead_letters_topic, members_topic, assignment_topic, commits_topic}
    expected = {output.topic for output in app.outputs} | {name(application) for name in named}
    assert asked == dict.fromkeys(expected, 3)


def test_a_global_stores_topic_is_left_as_it_is_and_named_if_it_is_not_compacted(
    kafka: EmbeddedKafka, client: AdminClient, unique_name: Callable[[str], str]
):
    compacted, deleted = unique_name("compacted"), unique_name("deleted")
    create_topic(kafka.bootstrap, compacted, 3, {"cleanup.policy": "compact"})
    create_topic(kafka.bootstrap, deleted, 2)
    app = declared(unique_name("app"))
    app.global_store("products", compacted)
    app.global_store("prices", deleted)
    with capture_logs() as logs:
        topics = create_topics(client, app, {compacted: 3, deleted: 2}, SETTINGS)
    assert topics.outputs == {compacted: 3, deleted: 2}
    (warning,) = [entry for entry in logs if entry["log_level"] == "warning"]
    assert (warning["store"], warning["topic"]) == ("prices", deleted)
    assert topic_settings(client, deleted)["cleanup.policy"] == "delete"


@pytest.mark.feature("topic-setting-store")
@pytest.mark.feature("store-partition-count")
def test_a_store_keeps_its_partitions_when_a_source_grows_and_takes_changed_settings(
    client: AdminClient, unique_name: Callable[[str], str]
):
    application = unique_name("app")

    def create(scores: int, **options: Any):
        app = declared(application, "scores")
        app.window_store("boards", frame(window_start=TIME), timedelta(minutes=1), **options)
        return create_topics(client, app, {"scores": scores}, SETTINGS)

    create(3)
    changelog = changelog_topic(application, "boards")
    assert create(8, retention=timedelta(hours=1), config={"segment.ms": "70000"}).outputs == {changelog: 3}

    def changed():
        now = topic_settings(client, changelog)
        return (now["segment.ms"], now["retention.ms"]) == ("70000", str(3_600_000 + 86_400_000))

    poll_until(changed, 20, "the changed settings")
    with pytest.raises(ConfigurationError, match="has 3 partitions, the application wants 4"):
        create(3, partitions=4)
