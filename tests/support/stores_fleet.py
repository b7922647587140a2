"""A fleet with a store of each kind, each with some entries."""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType
from typing import Final

from confluent_kafka import Producer

from statehouse.contract.topology import SESSION, VERSIONED, WINDOW, StoreSpec, changelog_topic
from statehouse.keys.composite import SessionKey, WindowKey
from tests.support.fleet import STORE, Fleet
from tests.support.kafka import create_topic

MINUTE_MS: Final = 60_000
BEGIN_MS: Final = 1_699_999_980_000
KINDS: Final = MappingProxyType({"clicks": WINDOW, "visits": SESSION, "prices": VERSIONED})
NAMES: Final = ("ann", "bob", "cat", "dan")

_Record = tuple[str, bytes, bytes, int]
"""Key, key in the changelog, value, timestamp in epoch milliseconds."""
_RECORDS: Final[dict[str, list[_Record]]] = {
    STORE: [
        (name, name.encode(), json.dumps({"count": count}).encode(), BEGIN_MS)
        for name, count in zip(NAMES, (12, 3, 5, 1), strict=True)
    ],
    "clicks": [
        (name, WindowKey(name.encode(), BEGIN_MS + number * MINUTE_MS).to_bytes(), b"%d" % number, BEGIN_MS)
        for name in ("ann", "bob")
        for number in range(2)
    ],
    "visits": [("ann", SessionKey(b"ann", BEGIN_MS, BEGIN_MS + 5_000).to_bytes(), b"3 pages", BEGIN_MS)],
    "prices": [("ann", b"ann", price, 1_700_000_000_000 + 1_000 * n) for n, price in enumerate((b"10", b"12", b"9"))],
}


class StoresFleet(Fleet):
    """Stores `counts` (text to JSON), `clicks` (windows of a minute), `visits` (sessions) and `prices` (versioned)."""

    def __init__(self, bootstrap: str, application_id: str, directory: Path) -> None:
        beside = [
            StoreSpec(
                name,
                changelog_topic(application_id, name),
                2,
                0,
                kind=kind,
                value_serde="string",
                retention_ms=60 * MINUTE_MS,
                window_size_ms=MINUTE_MS if kind == WINDOW else 0,
            )
            for name, kind in KINDS.items()
        ]
        for spec in beside:
            create_topic(bootstrap, spec.changelog_topic, spec.partition_count, {"cleanup.policy": "compact"})
        super().__init__(bootstrap, application_id, directory, value_serde="json", beside=beside)
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        for name, records in _RECORDS.items():
            topic = self.stores[name].changelog_topic
            for key, record_key, value, timestamp_ms in records:
                partition = self.partition_of(key)
                producer.produce(topic, key=record_key, value=value, partition=partition, timestamp=timestamp_ms)
        assert producer.flush(30.0) == 0
