"""Waits for an application's source topics, and creates its other topics."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from confluent_kafka.admin import AclOperation, AdminClient

from processor.application import Application, Source, SourceKind
from processor.ownership.topics.control_topics import control_topics, warn_of_uncompacted
from processor.settings import ProcessorSettings
from processor.topics.settings import ANY_TIMESTAMP, DEAD_LETTERS_CONFIG, check_compaction_lags, output_topic_config
from statehouse.contract.topology import control_topic_names, dead_letters_topic
from statehouse.contract.version_names import FIRST
from statehouse.errors import ConfigurationError
from statehouse.kafka import clients
from statehouse.kafka.access import check_group, check_rights
from statehouse.kafka.topics import (
    TopicSpec,
    check_replicas,
    ensure_topics,
    partition_counts,
    topic_settings,
)

log = structlog.get_logger(__name__)

_POLL_S: Final = 0.25
_REMIND_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ApplicationTopics:
    """The application's topics.

    Attributes:
        outputs: partition counts of outputs and of global stores' topics.
        dead_letters: partition count of the topic of dead letters.
        changelogs: what the topics of its stores are to be.

    """

    outputs: Mapping[str, int]
    dead_letters: int
    changelogs: Sequence[TopicSpec] = ()


def wait_for_sources(admin: AdminClient, topics: Collection[str], timeout_s: float) -> dict[str, int]:
    """Return the partition count of each source topic; wait for topics that don't exist yet.

    Raises:
        ConfigurationError: a topic still doesn't exist after `timeout_s` seconds.

    """
    deadline, remind_at = time.monotonic() + timeout_s, time.monotonic()
    while True:
        counts = partition_counts(admin, list(topics))
        absent = sorted(topic for topic, count in counts.items() if count is None)
        if not absent:
            return {topic: count for topic, count in counts.items() if count is not None}
        now = time.monotonic()
        if now >= deadline:
            raise ConfigurationError(
                f"source topic{'s' if len(absent) > 1 else ''} {', '.join(absent)} not found: create "
                f"{'them' if len(absent) > 1 else 'it'} (kafka-topics --create --topic {absent[0]} ...), or correct "
                "the topology; sources aren't created here unless create_sources says with how many partitions, since "
                "that is the producers' choice"
            )
        if now >= remind_at:
            remind_at = now + _REMIND_S
            log.warning("waiting for source topics", topics=absent, seconds_left=round(deadline - now))
        time.sleep(_POLL_S)


def prepared_topics(app: Application, settings: ProcessorSettings) -> ApplicationTopics:
    """Wait for the sources, create the other topics, and check that all may be used as the application does.

    Raises:
        ConfigurationError: a source doesn't exist, the brokers refuse a right, or a topic can't be as declared.

    """
    admin = clients.admin(settings.brokers, f"{app.application_id}-processor")
    refuse_shared_outputs(app, settings.application_version)
    sources = foreign_sources(app)
    if settings.create_sources:
        create_missing_sources(admin, app, settings.create_sources)
    counts = wait_for_sources(admin, sources, settings.source_wait_ms / 1000)
    check_rights(admin, sources, (AclOperation.READ,))
    topics = create_topics(admin, app, counts, settings)
    check_rights(admin, written_topics(app), (AclOperation.WRITE,))
    check_group(admin, f"{app.application_id}-sink")  # as the groups of the queries' markers begin
    return topics


def refuse_shared_outputs(app: Application, version: str) -> None:
    """Refuse output topics that several versions of an application would write.

    Raises:
        ConfigurationError: this is a later version than the first, and one of its topics isn't named after it.

    """
    if version == FIRST:
        return
    shared = [each.topic for each in app.outputs if each.declaration is None and app.application_id not in each.topic]
    if shared:
        raise ConfigurationError(
            f"version {version} would write {', '.join(shared)} beside the version before it: have the names begin "
            "with app.application_id, so that each version has its own"
        )


def create_missing_sources(admin: AdminClient, app: Application, partitions: int) -> None:
    """Create the source topics that don't exist: compacted if they hold rows by key; all keep records of any age."""
    sources = foreign_sources(app)
    existing = partition_counts(admin, sources)
    events = {source.topic for source in app.sources if source.kind is SourceKind.STREAM}
    kept = {"retention.ms": "-1", **ANY_TIMESTAMP}
    specs = [
        TopicSpec(topic, partitions, kept | {"cleanup.policy": "delete" if topic in events else "compact"})
        for topic in sources
        if existing[topic] is None
    ]
    for spec in specs:
        log.info("creating a source topic", topic=spec.name, partitions=partitions)
    ensure_topics(admin, specs)


def create_topics(
    admin: AdminClient, app: Application, source_counts: Mapping[str, int], settings: ProcessorSettings
) -> ApplicationTopics:
    """Create missing topics and apply changed settings; return the partition counts.

    Raises:
        ConfigurationError: the declared partition count of a store differs from its changelog's, or settings of a
            topic contradict each other.

    """
    specs = wanted_topics(admin, app, source_counts, settings)
    check_replicas(admin, specs)
    ensure_topics(admin, specs)
    warn_of_uncompacted(admin, app.followed_stores)
    counts = {spec.name: spec.partitions for spec in specs}
    outputs = {output.topic: counts[output.topic] for output in app.outputs}
    outputs |= {store.changelog_topic: source_counts[store.changelog_topic] for store in app.followed_stores}
    of_stores = {output.topic for output in app.outputs if output.declaration is not None}
    changelogs = tuple(spec for spec in specs if spec.name in of_stores)
    return ApplicationTopics(outputs, counts[dead_letters_topic(app.application_id)], changelogs)


def wanted_topics(
    admin: AdminClient, app: Application, source_counts: Mapping[str, int], settings: ProcessorSettings
) -> list[TopicSpec]:
    """Return what the application's topics are to be: its outputs, dead letters and control topics.

    If an output's code names no partition count, its topic's count is taken; without a topic, the settings' count, or
    the largest source's.

    Raises:
        ConfigurationError: settings of a topic contradict each other.

    """
    dead_letters = dead_letters_topic(app.application_id)
    existing = partition_counts(admin, [*(output.topic for output in app.outputs), dead_letters])
    largest = settings.store_partitions or _largest(app.sources, source_counts)
    counts = {output.topic: output.partitions or existing[output.topic] or largest for output in app.outputs}
    dead_letters_count = existing[dead_letters] or max(counts.values(), default=1)
    specs = [
        TopicSpec(
            output.topic,
            counts[output.topic],
            output_topic_config(output, settings, exists=existing[output.topic] is not None),
            settings.replication_factor,
        )
        for output in app.outputs
    ]
    for output, spec in zip(app.outputs, specs, strict=True):
        there = topic_settings(admin, spec.name) if existing[spec.name] is not None else {}
        check_compaction_lags(output, {**there, **spec.config})
    specs.append(TopicSpec(dead_letters, dead_letters_count, DEAD_LETTERS_CONFIG, settings.replication_factor))
    return specs + control_topics(app.application_id, settings.replication_factor)


def foreign_sources(app: Application) -> list[str]:
    """Return the topics that an application reads but doesn't write."""
    read = {source.topic for source in app.sources} | {store.changelog_topic for store in app.followed_stores}
    return sorted(read - {output.topic for output in app.outputs})


def written_topics(app: Application) -> list[str]:
    """Return the topics that an application's processor writes: its outputs, dead letters and control topics."""
    outputs = (output.topic for output in app.outputs)
    return sorted({*outputs, dead_letters_topic(app.application_id), *control_topic_names(app.application_id)})


def _largest(sources: Sequence[Source], counts: Mapping[str, int]) -> int:
    """Return the largest known partition count of the sources.

    Global tables don't count, because their state isn't partitioned.
    """
    known = [source for source in sources if source.topic in counts]
    partitioned = [counts[source.topic] for source in known if source.kind is not SourceKind.GLOBAL_TABLE]
    return max(partitioned or list(counts.values()), default=1)
