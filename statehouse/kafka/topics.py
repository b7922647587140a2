"""Topics: the processor alone creates them, all other processes wait for them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
    TopicDescription,
)

from statehouse.errors import ConfigurationError
from statehouse.kafka.access import needing
from statehouse.kafka.topic_changes import FoundState

log = structlog.get_logger(__name__)

_SETTLE_POLL_S = 0.05
# Brokers that have just started are fenced for a moment: the controller doesn't count on them yet.
_BROKERS_WAIT_S = 10.0
_BROKERS_POLL_S = 0.5

_MIN_IN_SYNC = "min.insync.replicas"

# Small segments so that compaction can reach all but the newest minutes of a control topic.
CONTROL_TOPIC_CONFIG: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "segment.ms": "60000",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "86400000",
    # By default brokers refuse what is dated more than an hour after their clock: a node whose clock is ahead would be
    # taken for dead.
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
}


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as we want it. `replication_factor` -1 is the broker's default."""

    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int = -1


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic as the brokers have it; `replicas` is the smallest number of a partition's, `settings` has defaults."""

    partitions: int
    replicas: int
    settings: Mapping[str, str]


def found_topics(admin: AdminClient, topics: Collection[str], timeout_s: float = 10.0) -> dict[str, FoundTopic | None]:
    """Return what topics are, None for one that doesn't exist.

    Raises:
        KafkaException: the brokers can't be reached within `timeout_s`, or refuse.

    """
    return {
        name: None
        if topic is None
        else FoundTopic(
            len(topic.partitions),
            min(len(partition.replicas) for partition in topic.partitions),
            topic_settings(admin, name, timeout_s),
        )
        for name, topic in _described(admin, topics, timeout_s).items()
    }


def partition_counts(admin: AdminClient, topics: Sequence[str], timeout_s: float = 10.0) -> dict[str, int | None]:
    """Return each topic's partition count, None for one that doesn't exist.

    Raises:
        KafkaException: the brokers can't be reached within `timeout_s`, or refuse.

    """
    found = _described(admin, topics, timeout_s)
    return {name: None if topic is None else len(topic.partitions) for name, topic in found.items()}


def topic_states(
    admin: AdminClient, topics: Collection[str], *, policies_of: Collection[str] = (), timeout_s: float = 10.0
) -> dict[str, FoundState]:
    """Return the topics that exist, in one request; the cleanup policies of some take another one for all of these.

    Raises:
        KafkaException: the brokers can't be reached within `timeout_s`, or refuse.

    """
    found = _described(admin, topics, timeout_s) if topics else {}
    there = {
        name: FoundState(str(topic.topic_id), len(topic.partitions))
        for name, topic in found.items()
        if topic is not None
    }
    asked = [name for name in policies_of if name in there]
    found_settings = _settings(admin, ResourceType.TOPIC, asked, timeout_s) if asked else {}
    policies = {name: settings["cleanup.policy"].split(",") for name, settings in found_settings.items()}
    return there | {
        name: replace(there[name], policy=frozenset(filter(None, map(str.strip, policy))))
        for name, policy in policies.items()
    }


def _settings(
    admin: AdminClient, kind: ResourceType, names: Collection[str], timeout_s: float
) -> dict[str, dict[str, str]]:
    """Return the settings of topics or brokers, defaults included, in one request."""
    resources = [ConfigResource(kind, name) for name in names]
    found: dict[str, dict[str, str]] = {}
    for resource, future in admin.describe_configs(resources, request_timeout=timeout_s).items():
        with needing("DESCRIBE_CONFIGS", "the cluster" if kind is ResourceType.BROKER else f"topic {resource.name}"):
            found[resource.name] = {name: entry.value for name, entry in future.result().items()}
    return found


def _described(admin: AdminClient, topics: Collection[str], timeout_s: float) -> dict[str, TopicDescription | None]:
    """Describe topics in one request; None for one that doesn't exist."""
    try:
        return _describe(admin, topics, timeout_s)
    except KafkaException as error:
        if error.args[0].code() != KafkaError._TIMED_OUT:  # noqa: SLF001 - the client's public constant
            raise
    # A broker that was cut off from the controller names no controller. The client then waits for one to appear, and
    # only another metadata request makes it ask for the controller.
    admin.list_topics(timeout=timeout_s)
    return _describe(admin, topics, timeout_s)


def _describe(admin: AdminClient, topics: Collection[str], timeout_s: float) -> dict[str, TopicDescription | None]:
    found: dict[str, TopicDescription | None] = {}
    for name, future in admin.describe_topics(TopicCollection(list(topics)), request_timeout=timeout_s).items():
        try:
            with needing("DESCRIBE", f"topic {name}"):
                found[name] = future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            found[name] = None
    return found


def topic_id(admin: AdminClient, topic: str, timeout_s: float = 10.0) -> str:
    """Return the id the broker gave a topic at its creation; a topic recreated under the same name has another.

    Raises:
        KafkaException: the topic doesn't exist, or the brokers can't be reached.

    """
    future = admin.describe_topics(TopicCollection([topic]), request_timeout=timeout_s)[topic]
    with needing("DESCRIBE", f"topic {topic}"):
        return str(future.result().topic_id)


def topic_settings(admin: AdminClient, topic: str, timeout_s: float = 10.0) -> dict[str, str]:
    """Return a topic's settings, defaults included.

    Raises:
        KafkaException: the topic doesn't exist, or the brokers can't be reached.

    """
    return _settings(admin, ResourceType.TOPIC, [topic], timeout_s)[topic]


def check_replicas(admin: AdminClient, specs: Sequence[TopicSpec], timeout_s: float = 10.0) -> None:
    """Refuse topics that demand more replicas for a write than they have: the brokers would refuse every write.

    Raises:
        ConfigurationError: `min.insync.replicas` of a topic is above its replication factor.
        KafkaException: the brokers can't be reached, or refuse.

    """
    found = found_topics(admin, [spec.name for spec in specs], timeout_s)
    brokers = _broker_settings(admin, timeout_s) if None in found.values() else {}
    for spec in specs:
        topic = found[spec.name]
        if topic is None:
            replicas = spec.replication_factor
            replicas = int(brokers["default.replication.factor"]) if replicas < 0 else replicas
            settings: Mapping[str, str] = brokers
        else:
            replicas, settings = topic.replicas, topic.settings
        needed = spec.config.get(_MIN_IN_SYNC, settings[_MIN_IN_SYNC])
        if not needed.isdecimal():
            raise ConfigurationError(f"topic {spec.name}: {_MIN_IN_SYNC}={needed!r} must be a number of replicas")
        if int(needed) <= replicas:
            continue
        whose = "" if _MIN_IN_SYNC in spec.config else " (the brokers' default)"
        raise ConfigurationError(
            f"topic {spec.name}: {_MIN_IN_SYNC}={needed}{whose} is above its replication factor, {replicas}: brokers "
            "would refuse every write. Lower the first, or "
            + ("set replication_factor" if topic is None else "give the topic more replicas")
        )


def _broker_settings(admin: AdminClient, timeout_s: float) -> dict[str, str]:
    """Return the settings of some broker; those that new topics take are the same at each."""
    broker = str(next(iter(admin.list_topics(timeout=timeout_s).brokers)))
    return _settings(admin, ResourceType.BROKER, [broker], timeout_s)[broker]


def ensure_topics(admin: AdminClient, specs: Sequence[TopicSpec], timeout_s: float = 30.0) -> list[str]:
    """Create what is missing and apply changed settings to what exists; return the names created.

    Settings that a spec doesn't name are left as they are on the broker.

    Raises:
        ConfigurationError: an existing topic has another partition count, which is fixed for a store's life; or there
            are fewer brokers than a topic needs replicas.
        KafkaException: the brokers can't be reached, or refuse.

    """
    names = [spec.name for spec in specs]
    existing = partition_counts(admin, names, timeout_s)
    missing = [spec for spec in specs if existing[spec.name] is None]
    _check_counts(specs, existing)
    if missing:
        _create(admin, missing, timeout_s)
        # A broker may not know yet what the controller has decided, and another process may have created a topic first.
        deadline = time.monotonic() + timeout_s
        while None in (known := partition_counts(admin, names, timeout_s)).values() and time.monotonic() < deadline:
            time.sleep(_SETTLE_POLL_S)
        _check_counts(specs, known)
    _apply_settings(admin, [spec for spec in specs if existing[spec.name] is not None], timeout_s)
    return [spec.name for spec in missing]


def _check_counts(specs: Sequence[TopicSpec], counts: Mapping[str, int | None]) -> None:
    for spec in specs:
        count = counts[spec.name]
        if count is not None and count != spec.partitions:
            raise ConfigurationError(
                f"topic {spec.name} has {count} partitions, the application wants {spec.partitions}: a partition "
                f"count is fixed for a store's life; set partitions={count}, or reset the application"
            )


def _create(admin: AdminClient, specs: Sequence[TopicSpec], timeout_s: float) -> None:
    """Create topics, and wait for enough brokers. A topic that exists by now is left as it is: the caller checks it."""
    give_up_at = time.monotonic() + _BROKERS_WAIT_S
    while homeless := _try_to_create(admin, specs, timeout_s):
        if time.monotonic() >= give_up_at:
            refusal = "; ".join(f"{name}: {reason}" for name, reason in homeless.items())
            raise ConfigurationError(
                f"too few brokers for the replicas of new topics ({refusal}): start brokers, or set replication_factor"
            )
        log.warning("waiting for brokers to keep the replicas of new topics", topics=sorted(homeless))
        specs = [spec for spec in specs if spec.name in homeless]
        time.sleep(_BROKERS_POLL_S)


def _try_to_create(admin: AdminClient, specs: Sequence[TopicSpec], timeout_s: float) -> dict[str, str]:
    """Create topics; return the brokers' message for each topic that has too few brokers for its replicas."""
    topics = [
        NewTopic(
            spec.name,
            num_partitions=spec.partitions,
            replication_factor=spec.replication_factor,
            config=dict(spec.config),
        )
        for spec in specs
    ]
    homeless: dict[str, str] = {}
    for name, future in admin.create_topics(topics, request_timeout=timeout_s).items():
        try:
            with needing("CREATE", f"topic {name}"):
                future.result()
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            if error.code() == KafkaError.INVALID_REPLICATION_FACTOR:
                homeless[name] = error.str()
            elif error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        else:
            log.info("topic created", topic=name)
    return homeless


def _apply_settings(admin: AdminClient, specs: Sequence[TopicSpec], timeout_s: float) -> None:
    """Change existing topics' settings to those in their specs."""
    wanted = {spec.name: spec.config for spec in specs if spec.config}
    if not wanted:
        return
    changes = []
    for topic, settings in wanted.items():
        current = topic_settings(admin, topic, timeout_s)
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
            if current.get(name) != value
        ]
        if entries:
            changes.append(ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries))
            log.info("topic settings changed", topic=topic, settings={e.name: e.value for e in entries})
    if changes:
        for changed, future in admin.incremental_alter_configs(changes, request_timeout=timeout_s).items():
            with needing("ALTER_CONFIGS", f"topic {changed.name}"):
                future.result()
