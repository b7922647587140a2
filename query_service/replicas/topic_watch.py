"""The topics that a node's stores are read from, looked at again and again: whether they still are what stores need.

It has no thread: `EndOffsetWatcher` asks about topics and the ends of their logs, and hands over what it hears.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from query_service.replicas.replica import StoreReplica
from statehouse.kafka.topic_changes import FoundState, TopicState
from statehouse.kafka.topics import topic_states

log = structlog.get_logger(__name__)

POLICY_EVERY_S: Final = 30.0
"""How often topics' settings are asked for, in one request; their ids and partitions come with each look."""


class TopicWatch:
    """Notes what becomes of topics, in the replicas that are read from them. Belongs to one thread.

    `on_change()` is called when replicas begin or cease to refuse lookups.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._states: dict[tuple[str, str], TopicState] = {}
        self._policies_at: float | None = None

    def ask(self, admin: AdminClient, topics: Collection[str], now: float) -> dict[str, FoundState]:
        """Ask the brokers about topics; those that they don't know are left out.

        Raises:
            KafkaException: the brokers can't be reached, or refuse.

        """
        is_due = self._policies_at is None or now - self._policies_at >= POLICY_EVERY_S
        is_new = any(state.policy is None for state in self._states.values())
        if is_due or is_new:
            self._policies_at = now
            try:
                return topic_states(admin, topics, policies_of=topics, timeout_s=5.0)
            except KafkaException as error:  # the rest is worth more
                log.debug("topics' settings can't be read at the moment", error=str(error))
        return topic_states(admin, topics, timeout_s=5.0)

    def take(self, replicas: Collection[StoreReplica], found: Mapping[str, FoundState], now: float) -> None:
        """Note in each replica how its topic differs from what its store needs."""
        states: dict[tuple[str, str], TopicState] = {}
        has_changed = False
        for replica in replicas:
            topic = replica.spec.changelog_topic
            key, there = (topic, replica.topic_id), found.get(topic)
            if there is not None and there.topic_id != replica.topic_id:
                continue  # it is lost, and is read anew
            if key not in states:
                before = self._states.get(key) or TopicState(replica.spec.partition_count)
                # A global store may have been published anew, with the partitions that its topic has now.
                before = replace(before, partitions=replica.spec.partition_count)
                states[key] = before.seen(there, now)
                if states[key].change != before.change:
                    _tell(replica, states[key].change)
            if replica.topic_change != states[key].change:
                replica.topic_change, has_changed = states[key].change, True
        self._states = states
        if has_changed:
            self._on_change()


def _tell(replica: StoreReplica, change: str) -> None:
    topic, store = replica.spec.changelog_topic, replica.spec.name
    if change:
        log.warning(
            "a store's topic has changed: lookups of it are refused until the topic is whole again",
            store=store,
            topic=topic,
            change=change,
        )
    else:
        log.info("a store's topic is whole again", store=store, topic=topic)
