"""Compares changelogs, again and again, with what the application wants; commit records tell of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from processor.topics.audit import TopicSetting, compare
from statehouse.control.v1 import commits_pb2
from statehouse.kafka.renewed import RenewedAdmin
from statehouse.kafka.topics import TopicSpec, found_topics
from statehouse.runtime.brokers import Brokers
from statehouse.runtime.clocks import process_clock

log = structlog.get_logger(__name__)

_INTERVAL_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 12.0
"""A question to the brokers ends by then."""


class ChangelogComparisons:
    """A thread that compares; `of` may be asked on any.

    A comparison that fails leaves the one before it, whose time says how old it is.
    """

    def __init__(
        self, brokers: Brokers | str, client_id: str, specs: Sequence[TopicSpec], interval_s: float = _INTERVAL_S
    ) -> None:
        self._brokers, self._client_id = brokers, client_id
        self._specs, self._interval_s = tuple(specs), interval_s
        self._latest: dict[str, commits_pb2.TopicComparison] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="changelog-comparisons", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop it; waits for a comparison under way."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_TIMEOUT_S)

    def of(self, topic: str) -> commits_pb2.TopicComparison | None:
        """Return the last comparison of a topic; None before the first."""
        return self._latest.get(topic)

    def _run(self) -> None:
        if not self._specs:
            return
        admin = RenewedAdmin(self._brokers, self._client_id)
        while True:
            try:
                compared = admin.ask(self._compared)
            except KafkaException as failure:
                log.debug("changelogs can't be compared at the moment", error=failure.args[0].str())
            else:
                self._latest = _by_topic(compared, process_clock().now_ms())
            if self._stop.wait(self._interval_s):
                return

    def _compared(self, admin: AdminClient) -> list[TopicSetting]:
        return compare(self._specs, found_topics(admin, [spec.name for spec in self._specs]), frozenset())


def _by_topic(compared: Sequence[TopicSetting], at_ms: int) -> dict[str, commits_pb2.TopicComparison]:
    found: dict[str, commits_pb2.TopicComparison] = {}
    for each in compared:
        topic = found.setdefault(each.topic, commits_pb2.TopicComparison(compared_at_ms=at_ms))
        topic.settings.add(name=each.setting, wanted=each.wanted, found=each.found, remedy=each.remedy)
    return found
