"""The topics a processor waits for, and those it creates."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from confluent_kafka.admin import AdminClient

from processor.application import Application, Source, SourceKind
from processor.outputs import Output
from processor.ownership.settings import StoreDeclaration
from processor.settings import ProcessorSettings
from statehouse.errors import ConfigurationError
from statehouse.kafka.topics import CONTROL_TOPIC_CONFIG, TopicSpec, ensure_topics, partition_counts, topic_settings
from statehouse.topology import (
    SESSION,
    VERSIONED,
    WINDOW,
    assignment_topic,
    commits_topic,
    dead_letters_topic,
    members_topic,
)

log = structlog.get_logger(__name__)

# An event's time may lie anywhere: the broker's default refuses what is an hour ahead of its clock.
_ANY_TIMESTAMP: Final = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
}
# Retention by the event's own time would delete at once what is replayed from years ago, and never what claims to come
# from the future.
_APPEND_TIME: Final = {"message.timestamp.type": "LogAppendTime"}
_DEAD_LETTERS_CONFIG: Final = {"cleanup.policy": "delete", **_APPEND_TIME}
# A segment is as old as its latest timestamp: that of the last transaction's marker in it, by the broker's clock. Old
# event times beside it would look like time to roll it, and leave a segment with event times alone (docs/adr/0004).
_ROLLED_BY_SIZE_ALONE: Final = {"segment.ms": str(2**63 - 1)}
# Kafka Streams adds the same day to the history retention of a versioned store's changelog.
_VERSIONS_KEPT_LONGER_MS: Final = 24 * 60 * 60 * 1000
_POLL_S: Final = 0.25
_REMIND_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ApplicationTopics:
    """The partition counts of the application's topics, by the topics of its outputs and global stores."""

    outputs: Mapping[str, int]
    dead_letters: int


def wait_for_sources(admin: AdminClient, topics: Collection[str], timeout_s: float) -> dict[str, int]:
    """Return the partition count of each source topic, waiting for those that don't exist yet.

    Raises:
        ConfigurationError: one doesn't exist after that time.

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
                "the topology; sources are never created here, since their partition count is the producers' choice"
            )
        if now >= remind_at:
            remind_at = now + _REMIND_S
            log.warning("waiting for source topics", topics=absent, seconds_left=round(deadline - now))
        time.sleep(_POLL_S)


def create_topics(
    admin: AdminClient, app: Application, source_counts: Mapping[str, int], settings: ProcessorSettings
) -> ApplicationTopics:
    """Create what is missing and apply changed settings; return the partition counts.

    Raises:
        ConfigurationError: a store wants another partition count than its changelog has.

    """
    dead_letters = dead_letters_topic(app.application_id)
    existing = partition_counts(admin, [*(output.topic for output in app.outputs), dead_letters])
    largest = _largest(app.sources, source_counts)
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
    specs.append(TopicSpec(dead_letters, dead_letters_count, _DEAD_LETTERS_CONFIG, settings.replication_factor))
    ensure_topics(admin, specs)
    create_control_topics(admin, app.application_id, settings.replication_factor)
    warn_of_uncompacted(admin, app.global_stores)
    counts |= {store.changelog_topic: source_counts[store.changelog_topic] for store in app.global_stores}
    return ApplicationTopics(counts, dead_letters_count)


def foreign_sources(app: Application) -> list[str]:
    """Return the topics that an application reads and doesn't write itself."""
    read = {source.topic for source in app.sources} | {store.changelog_topic for store in app.global_stores}
    return sorted(read - {output.topic for output in app.outputs})


def output_topic_config(output: Output, settings: ProcessorSettings, *, exists: bool) -> dict[str, str]:
    """Return the settings of the topic that an output is published to, its own over ours.

    A topic that is no store's and was there before is somebody's: only what the code names is applied to it.
    """
    if output.declaration is None:
        return ({} if exists else _ANY_TIMESTAMP) | dict(output.config)
    return _store_topic_config(output.declaration, settings) | dict(output.config)


def _store_topic_config(declaration: StoreDeclaration, settings: ProcessorSettings) -> dict[str, str]:
    """Return the settings of the topic that a store is published to.

    Where the broker deletes by time, it counts from when a record was written, never from its event time
    (docs/adr/0004). Where it only compacts, records carry the event time.
    """
    lag_ms = settings.min_compaction_lag_ms
    if declaration.ephemeral:
        retention = str(settings.updates_retention_ms)
        # A segment goes as a whole, once its last record is old enough; by default it is filled for a week.
        ours = {"cleanup.policy": "delete", "retention.ms": retention, "segment.ms": retention, **_APPEND_TIME}
    elif declaration.kind in {WINDOW, SESSION}:
        retention_ms = declaration.retention_ms + settings.changelog_additional_retention_ms
        ours = {"cleanup.policy": "compact,delete", "retention.ms": str(retention_ms), **_APPEND_TIME}
    else:
        ours = {"cleanup.policy": "compact", **_ANY_TIMESTAMP}
        if declaration.kind == VERSIONED:
            lag_ms = max(lag_ms, declaration.retention_ms + _VERSIONS_KEPT_LONGER_MS)
            ours |= _ROLLED_BY_SIZE_ALONE
    if not declaration.ephemeral:
        ours["min.compaction.lag.ms"] = str(lag_ms)
    return ours


def warn_of_uncompacted(admin: AdminClient, stores: Iterable[StoreDeclaration]) -> None:
    """Say which global stores' topics aren't compacted: what such a topic deletes, a node that restores won't have."""
    for store in stores:
        if store.is_global and "compact" not in topic_settings(admin, store.changelog_topic)["cleanup.policy"]:
            log.warning(
                "topic of a global store is not compacted; set its cleanup.policy to compact, or entries will be lost",
                store=store.name,
                topic=store.changelog_topic,
            )


def create_control_topics(admin: AdminClient, application_id: str, replication_factor: int) -> None:
    """Create the members, assignment and commits topics, or apply changed settings to them."""
    names = [name(application_id) for name in (members_topic, assignment_topic, commits_topic)]
    ensure_topics(admin, [TopicSpec(name, 1, CONTROL_TOPIC_CONFIG, replication_factor) for name in names])


def _largest(sources: Sequence[Source], counts: Mapping[str, int]) -> int:
    """Return the largest source's partition count, of those that have one already.

    Global tables don't count, as they aren't partitioned state.
    """
    known = [source for source in sources if source.topic in counts]
    partitioned = [counts[source.topic] for source in known if source.kind is not SourceKind.GLOBAL_TABLE]
    return max(partitioned or list(counts.values()), default=1)
