"""What controllers do about topics. It needs no Spark, so that a controller runs where Spark isn't installed."""

from __future__ import annotations

from collections.abc import Iterable

import structlog
from confluent_kafka.admin import AdminClient

from processor.ownership.declarations import StoreDeclaration
from statehouse.contract.topology import control_topic_names
from statehouse.kafka.topics import CONTROL_TOPIC_CONFIG, TopicSpec, topic_settings

log = structlog.get_logger(__name__)


def warn_of_uncompacted(admin: AdminClient, stores: Iterable[StoreDeclaration]) -> None:
    """Warn of others' topics as stores that aren't compacted: a node that restores lacks the records deleted there."""
    for store in stores:
        is_followed = store.is_global or store.foreign
        if is_followed and "compact" not in topic_settings(admin, store.changelog_topic)["cleanup.policy"]:
            log.warning(
                "topic of a store is not compacted; set its cleanup.policy to compact, or entries will be lost",
                store=store.name,
                topic=store.changelog_topic,
            )


def control_topics(application_id: str, replication_factor: int) -> list[TopicSpec]:
    """Return what the members, assignment and commits topics are to be."""
    names = control_topic_names(application_id)
    return [TopicSpec(name, 1, CONTROL_TOPIC_CONFIG, replication_factor) for name in names]
