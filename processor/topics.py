"""The topics a processor waits for, and those it creates."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from confluent_kafka.admin import AdminClient

from processor.application import Source, SourceKind, StoreDeclaration
from statehouse.errors import ConfigurationError
from statehouse.kafka.topics import CONTROL_TOPIC_CONFIG, TopicSpec, ensure_topics, partition_counts
from statehouse.topology import (
    assignment_topic,
    changelog_topic,
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
# By the time they were refused: retention by the event's own time would delete at once what came late.
_DEAD_LETTERS_CONFIG: Final = {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
_POLL_S: Final = 0.25
_REMIND_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ApplicationTopics:
    """The partition counts the application's topics have."""

    stores: Mapping[str, int]
    dead_letters: int


def wait_for_sources(admin: AdminClient, sources: Sequence[Source], timeout_s: float) -> dict[str, int]:
    """Return the partition count of each source, waiting for those that don't exist yet.

    Raises:
        ConfigurationError: one doesn't exist after that time.

    """
    topics = [source.topic for source in sources]
    deadline, remind_at = time.monotonic() + timeout_s, time.monotonic()
    while True:
        counts = partition_counts(admin, topics)
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
    admin: AdminClient,
    application_id: str,
    stores: Sequence[StoreDeclaration],
    sources: Sequence[Source],
    source_counts: Mapping[str, int],
    *,
    min_compaction_lag_ms: int,
    replication_factor: int,
) -> ApplicationTopics:
    """Create what is missing and apply changed settings; return the partition counts.

    Raises:
        ConfigurationError: a store wants another partition count than its changelog has.

    """
    changelogs = {store.name: changelog_topic(application_id, store.name) for store in stores}
    dead_letters = dead_letters_topic(application_id)
    existing = partition_counts(admin, [*changelogs.values(), dead_letters])
    largest = _largest(sources, source_counts)
    counts = {store.name: store.partitions or existing[changelogs[store.name]] or largest for store in stores}
    dead_letters_count = existing[dead_letters] or max(counts.values(), default=1)
    base = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(min_compaction_lag_ms), **_ANY_TIMESTAMP}
    specs = [
        TopicSpec(changelogs[store.name], counts[store.name], {**base, **store.config}, replication_factor)
        for store in stores
    ]
    specs.append(TopicSpec(dead_letters, dead_letters_count, _DEAD_LETTERS_CONFIG, replication_factor))
    ensure_topics(admin, specs)
    create_control_topics(admin, application_id, replication_factor)
    return ApplicationTopics(counts, dead_letters_count)


def create_control_topics(admin: AdminClient, application_id: str, replication_factor: int) -> None:
    """Create the members, assignment and commits topics, or apply changed settings to them."""
    names = [name(application_id) for name in (members_topic, assignment_topic, commits_topic)]
    ensure_topics(admin, [TopicSpec(name, 1, CONTROL_TOPIC_CONFIG, replication_factor) for name in names])


def _largest(sources: Sequence[Source], counts: Mapping[str, int]) -> int:
    """Return the largest source's partition count; global tables don't count, as they aren't partitioned state."""
    partitioned = [counts[source.topic] for source in sources if source.kind is not SourceKind.GLOBAL_TABLE]
    return max(partitioned or list(counts.values()), default=1)
