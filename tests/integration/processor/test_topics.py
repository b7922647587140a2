from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from processor.application import Source, SourceKind, StoreDeclaration
from processor.topics import create_topics, wait_for_sources
from statehouse.errors import ConfigurationError
from statehouse.kafka.clients import admin
from statehouse.kafka.topics import partition_counts
from statehouse.local.kafka import EmbeddedKafka
from statehouse.topology import assignment_topic, changelog_topic, commits_topic, dead_letters_topic, members_topic
from tests.support.kafka import create_topic
from tests.support.polling import poll_until


@pytest.fixture
def client(kafka: EmbeddedKafka):
    return admin(kafka.bootstrap, "tests")


def declared(name: str = "boards", **settings: Any):
    return StoreDeclaration(name, frame=None, **settings)


def create(
    client: AdminClient,
    application: str,
    store: StoreDeclaration,
    *,
    sources: Sequence[Source] = (),
    counts: dict[str, int] | None = None,
):
    return create_topics(
        client,
        application,
        [store],
        sources,
        counts or {},
        min_compaction_lag_ms=600_000,
        replication_factor=-1,
    )


def settings_of(client: AdminClient, topic: str):
    (future,) = client.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return {name: entry.value for name, entry in future.result().items()}


def test_a_missing_source_is_named_with_the_remedy(
    kafka: EmbeddedKafka, client: AdminClient, unique_name: Callable[[str], str]
):
    there, absent = unique_name("there"), unique_name("absent")
    create_topic(kafka.bootstrap, there, partitions=2)
    sources = [Source(topic, SourceKind.STREAM) for topic in (there, absent)]
    with pytest.raises(ConfigurationError, match=f"source topic {absent} not found: create it"):
        wait_for_sources(client, sources, 0.3)
    assert wait_for_sources(client, sources[:1], 0.3) == {there: 2}


def test_all_topics_are_created_as_the_contract_says(client: AdminClient, unique_name: Callable[[str], str]):
    application = unique_name("app")
    sources = [Source("scores", SourceKind.STREAM), Source("all", SourceKind.GLOBAL_TABLE)]
    store = declared(config={"segment.bytes": "1048576"})
    topics = create(client, application, store, sources=sources, counts={"scores": 3, "all": 9})
    assert topics.stores == {"boards": 3}
    changelog = changelog_topic(application, "boards")
    control = [members_topic(application), assignment_topic(application), commits_topic(application)]
    counts = partition_counts(client, [changelog, dead_letters_topic(application), *control])
    assert list(counts.values()) == [3, 3, 1, 1, 1]
    settings = settings_of(client, changelog)
    assert settings["cleanup.policy"] == "compact"
    assert settings["min.compaction.lag.ms"] == "600000"
    assert settings["segment.bytes"] == "1048576"
    assert settings["message.timestamp.after.max.ms"] == str(2**63 - 1)
    assert all(settings_of(client, topic)["cleanup.policy"] == "compact" for topic in control)
    assert settings_of(client, dead_letters_topic(application))["cleanup.policy"] == "delete"


def test_a_store_keeps_its_partitions_when_a_source_grows_and_takes_changed_settings(
    client: AdminClient, unique_name: Callable[[str], str]
):
    application = unique_name("app")
    sources = [Source("scores", SourceKind.STREAM)]
    create(client, application, declared(), sources=sources, counts={"scores": 3})
    changed = declared(config={"min.compaction.lag.ms": "5"})
    assert create(client, application, changed, sources=sources, counts={"scores": 8}).stores == {"boards": 3}
    changelog = changelog_topic(application, "boards")
    poll_until(lambda: settings_of(client, changelog)["min.compaction.lag.ms"] == "5", 10.0, "the changed setting")
    with pytest.raises(ConfigurationError, match="has 3 partitions, the application wants 4"):
        create(client, application, declared(partitions=4), sources=sources, counts={"scores": 3})
