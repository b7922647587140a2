"""A thread that looks again at the topics that an application relies on, and warns when one has changed.

Nothing is decided here: nodes refuse lookups of a store whose topic has changed, and the controller goes on. But who
reads the controller's log must learn of it, also of topics that no node reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import structlog
from confluent_kafka import KafkaException

from statehouse.kafka.renewed import RenewedAdmin
from statehouse.kafka.topic_changes import FoundState, TopicState
from statehouse.kafka.topics import topic_states
from statehouse.runtime.brokers import Brokers

log = structlog.get_logger(__name__)

_EVERY_S: Final = 5.0
_POLICIES_EVERY: Final = 6
"""Every so many looks, settings are asked for, too."""


class TopicWatcher:
    """Looks at topics. `relied_on()`: their names and the partitions that they must have, None for any number."""

    def __init__(
        self, brokers: Brokers | str, client_id: str, relied_on: Callable[[], Mapping[str, int | None]]
    ) -> None:
        self._brokers, self._client_id, self._relied_on = brokers, f"{client_id}-topics", relied_on
        self._known: dict[str, tuple[str, TopicState]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="topics", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. It is not waited for: it may wait for brokers, and changes nothing."""
        self._stop.set()

    def _run(self) -> None:
        admin, looks = RenewedAdmin(self._brokers, self._client_id), 0
        while not self._stop.wait(_EVERY_S if looks else 0.0):
            relied_on = self._relied_on()
            # Not of the sources: how others clean them up is theirs, and a right to their settings isn't needed.
            own = [topic for topic, partitions in relied_on.items() if partitions is not None]
            is_new = any(topic not in self._known or self._known[topic][1].policy is None for topic in own)
            policies_of = own if is_new or looks % _POLICIES_EVERY == 0 else ()
            looks += 1
            try:
                ask = partial(topic_states, topics=relied_on, policies_of=policies_of, timeout_s=_EVERY_S)
                found = admin.ask(ask)
            except KafkaException as error:
                log.debug("topics can't be looked at at the moment", error=str(error))
                continue
            self.take(relied_on, found, _EVERY_S * looks)

    def take(self, relied_on: Mapping[str, int | None], found: Mapping[str, FoundState], now: float) -> None:
        """Compare topics with what they were, and tell what has changed. `now`: seconds of a clock that only grows."""
        known, self._known = self._known, {}
        for topic, partitions in relied_on.items():
            there = found.get(topic)
            topic_id, before = known.get(topic, ("", TopicState(partitions)))
            if there is not None and topic_id not in {"", there.topic_id}:
                log.warning("topic was deleted and created anew: what was in it is gone", topic=topic)
                before = TopicState(partitions)
            state = replace(before, partitions=partitions).seen(there, now)
            if state.change and state.change != before.change:
                log.warning("a topic has changed while it is relied on", topic=topic, change=state.change)
            elif before.change and not state.change:
                log.info("a topic is whole again", topic=topic)
            self._known[topic] = (topic_id if there is None else there.topic_id, state)
