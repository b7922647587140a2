"""The twins in Kafka Streams of our examples (`Twin.java`), and what is in stores, decoded alike for both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from statehouse.keys.composite import WindowKey
from tests.integration.processor.support import messages, store_of
from tests.interop.kafka_streams.program import KafkaStreamsPrograms

LEADERBOARD, PATIENT_MONITORING = "LEADERBOARD", "PATIENT_MONITORING"
FOREIGN_KEY_JOIN = "FOREIGN_KEY_JOIN"

Store = dict[Any, Any]
"""Entries with decoded values, by text key, or by text key and start in epoch milliseconds."""


class Piped(NamedTuple):
    """A record that is piped through a topology, in order of arrival."""

    topic: str
    partition: int
    key: str | None
    value: str | None
    timestamp_ms: int


def driven(
    programs: KafkaStreamsPrograms, topology: str, records: Iterable[Piped], directory: Path
) -> dict[str, Store]:
    """Return the twin's stores after it has processed records one by one, with a task for each partition."""
    given, found = directory / "records.jsonl", directory / "stores.jsonl"
    fields = ("topic", "partition", "key", "value", "timestamp")
    given.write_text("".join(json.dumps(dict(zip(fields, each, strict=True))) + "\n" for each in records))
    programs.run("Twin", "drive", topology, directory / "state", given, found, log=directory / "drive.log")
    stores: dict[str, Store] = {}
    for line in found.read_text().splitlines():
        entry = json.loads(line)
        key = entry["key"] if entry["start"] is None else (entry["key"], entry["start"])
        stores.setdefault(entry["store"], {})[key] = entry["value"]
    return stores


def changelog(bootstrap: str, topic: str, value: Callable[[bytes], Any] = json.loads) -> Store:
    """Return what a key-value store's changelog adds up to."""
    return {key.decode(): value(data) for key, data in store_of(messages(bootstrap, topic)).items()}


def window_changelog(bootstrap: str, topic: str, value: Callable[[bytes], Any] = json.loads) -> Store:
    """Return what a window store's changelog adds up to."""
    found = store_of(messages(bootstrap, topic)).items()
    windows = [(WindowKey.from_bytes(key), data) for key, data in found]
    return {(window.key.decode(), window.start_ms): value(data) for window, data in windows}


def differing(ours: Store, theirs: Store) -> Sequence[Any]:
    """Return the keys whose values differ, or that only one of the two stores has."""
    return sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))
