"""Waits for an application's source topics, and creates its other topics."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from confluent_kafka.admin import AdminClient

from processor.application import Application, Source, SourceKind
from processor.control_topics import control_topics, warn_of_uncompacted
from processor.outputs import Output
from processor.ownership.settings import StoreDeclaration
from processor.settings import ProcessorSettings
from statehouse.errors import ConfigurationError
from statehouse.kafka.topics import (
    TopicSpec,
    check_replicas,
    ensure_topics,
    partition_counts,
    topic_settings,
)
from statehouse.topology import (
    SESSION,
    VERSIONED,
    WINDOW,
    dead_letters_topic,
)

log = structlog.get_logger(__name__)

# An event may have any time; by default the broker refuses times more than an hour ahead of its clock.
_ANY_TIMESTAMP: Final = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
}
# Retention by event time would delete replayed events from years ago at once, and events with a time in the future
# never.
_APPEND_TIME: Final = {"message.timestamp.type": "LogAppendTime"}
_DEAD_LETTERS_CONFIG: Final = {"cleanup.policy": "delete", **_APPEND_TIME}
# The age of a segment counts from its latest timestamp: the last transaction marker in it, by the broker's clock. With
# old event times the broker would roll a segment early, and leave one with event times only (docs/adr/0004).
_ROLLED_BY_SIZE_ALONE: Final = {"segment.ms": str(2**63 - 1)}
# Kafka Streams adds the same day to the history retention of a versioned store's changelog.
_VERSIONS_KEPT_LONGER_MS: Final = 24 * 60 * 60 * 1000
_MIN_LAG: Final = "min.compaction.lag.ms"
_MAX_LAG: Final = "max.compaction.lag.ms"
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


def create_missing_sources(admin: AdminClient, app: Application, partitions: int) -> None:
    """Create the source topics that don't exist: compacted if they hold rows by key; all keep records of any age."""
    sources = foreign_sources(app)
    existing = partition_counts(admin, sources)
    events = {source.topic for source in app.sources if source.kind is SourceKind.STREAM}
    kept = {"retention.ms": "-1", **_ANY_TIMESTAMP}
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
    warn_of_uncompacted(admin, app.global_stores)
    counts = {spec.name: spec.partitions for spec in specs}
    outputs = {output.topic: counts[output.topic] for output in app.outputs}
    outputs |= {store.changelog_topic: source_counts[store.changelog_topic] for store in app.global_stores}
    of_stores = {output.topic for output in app.outputs if output.declaration is not None}
    changelogs = tuple(spec for spec in specs if spec.name in of_stores)
    return ApplicationTopics(outputs, counts[dead_letters_topic(app.application_id)], changelogs)


def wanted_topics(
    admin: AdminClient, app: Application, source_counts: Mapping[str, int], settings: ProcessorSettings
) -> list[TopicSpec]:
    """Return what the application's topics are to be: its outputs, dead letters and control topics.

    An output whose code names no partition count has that of its topic if it exists, else that of the largest source.

    Raises:
        ConfigurationError: settings of a topic contradict each other.

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
    for output, spec in zip(app.outputs, specs, strict=True):
        there = topic_settings(admin, spec.name) if existing[spec.name] is not None else {}
        check_compaction_lags(output, {**there, **spec.config})
    specs.append(TopicSpec(dead_letters, dead_letters_count, _DEAD_LETTERS_CONFIG, settings.replication_factor))
    return specs + control_topics(app.application_id, settings.replication_factor)


def foreign_sources(app: Application) -> list[str]:
    """Return the topics that an application reads but doesn't write."""
    read = {source.topic for source in app.sources} | {store.changelog_topic for store in app.global_stores}
    return sorted(read - {output.topic for output in app.outputs})


def written_topics(app: Application) -> list[str]:
    """Return the topics that an application's processor writes: its outputs, dead letters and control topics."""
    control = (spec.name for spec in control_topics(app.application_id, 1))
    return sorted({*(output.topic for output in app.outputs), dead_letters_topic(app.application_id), *control})


def output_topic_config(output: Output, settings: ProcessorSettings, *, exists: bool) -> dict[str, str]:
    """Return the settings for an output's topic: our defaults, overridden by the output's `config`.

    An existing topic without a store belongs to somebody else: it gets only the settings that the code names.
    """
    if output.declaration is None:
        return ({} if exists else _ANY_TIMESTAMP) | dict(output.config)
    return _store_topic_config(output.declaration, settings) | dict(output.config)


def check_compaction_lags(output: Output, settings: Mapping[str, str]) -> None:
    """Raise ConfigurationError if records of a topic would have to be compacted before they may be.

    Kafka refuses that too, but doesn't say where the other of the two settings comes from.
    """
    longest, shortest = (_milliseconds(output, name, settings.get(name)) for name in (_MAX_LAG, _MIN_LAG))
    if longest is None or shortest is None or longest >= shortest:
        return
    store = output.declaration
    if _MIN_LAG in output.config:
        lower = "lower the second"
    elif store is not None and store.kind == VERSIONED and not store.ephemeral:
        lower = "lower the store's history retention, which the second is a day longer than"
    elif store is not None and not store.ephemeral:
        lower = f"name {_MIN_LAG} in the store's config too, or lower the setting min_compaction_lag_ms"
    else:
        lower = f"name {_MIN_LAG} in its config too"
    raise ConfigurationError(
        f"topic {output.topic}: {_MAX_LAG}={longest} is below {_MIN_LAG}={shortest}: records would have to be "
        f"compacted before they may be. Raise the first, or {lower}"
    )


def _milliseconds(output: Output, name: str, value: str | None) -> int | None:
    if value is None:
        return None
    try:
        return int(value)
    except ValueError:
        raise ConfigurationError(f"topic {output.topic}: {name}={value!r} must be a number of milliseconds") from None


def _store_topic_config(declaration: StoreDeclaration, settings: ProcessorSettings) -> dict[str, str]:
    """Return the settings for a store's topic.

    If the broker deletes by time, records have the time of writing, never the event time (docs/adr/0004). If it only
    compacts, records have the event time.
    """
    lag_ms = settings.min_compaction_lag_ms
    if declaration.ephemeral:
        retention = str(settings.updates_retention_ms)
        # The broker deletes whole segments, when the last record is old enough; by default it fills one for a week.
        ours = {"cleanup.policy": "delete", "retention.ms": retention, "segment.ms": retention, **_APPEND_TIME}
    elif declaration.built_on in {WINDOW, SESSION}:
        retention_ms = declaration.retention_ms + settings.changelog_additional_retention_ms
        ours = {"cleanup.policy": "compact,delete", "retention.ms": str(retention_ms), **_APPEND_TIME}
    else:
        ours = {"cleanup.policy": "compact", **_ANY_TIMESTAMP}
        if declaration.kind == VERSIONED:
            lag_ms = max(lag_ms, declaration.retention_ms + _VERSIONS_KEPT_LONGER_MS)
            ours |= _ROLLED_BY_SIZE_ALONE
    if not declaration.ephemeral:
        ours[_MIN_LAG] = str(lag_ms)
    return ours


def _largest(sources: Sequence[Source], counts: Mapping[str, int]) -> int:
    """Return the largest known partition count of the sources.

    Global tables don't count, because their state isn't partitioned.
    """
    known = [source for source in sources if source.topic in counts]
    partitioned = [counts[source.topic] for source in known if source.kind is not SourceKind.GLOBAL_TABLE]
    return max(partitioned or list(counts.values()), default=1)
