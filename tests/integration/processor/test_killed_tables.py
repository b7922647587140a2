"""The driver is killed again and again at work: `parse_cdc`, aggregates of tables and `newest_by` equal a model.

Nothing is lost, doubled or taken back. The records of a key are in order, so it doesn't matter where a batch ends.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog

from examples.features import topology as features
from examples.inventory import topology as inventory
from statehouse.contract.topology import changelog_topic, dead_letters_topic
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.processor.killed_tables import application_id
from tests.integration.processor.kills import DRIVER, GAP, PROGRESS_S, Chaos, plan
from tests.integration.processor.models import Refused, RefusedRecord, as_bytes
from tests.integration.processor.models import features as features_model
from tests.integration.processor.models import inventory as inventory_model
from tests.integration.processor.support import ProcessorProcess, headers, messages, store_of
from tests.support.kafka import create_topic, produce_placed
from tests.support.polling import poll_until

log = structlog.get_logger(__name__)

pytestmark = [pytest.mark.timeout(3600), pytest.mark.long]

SEED = 20261128
PARTITIONS = 2
WITHIN_S = 3.0
AFTER_KILL = 0.2
"""The share of each slice of the records that is written after its kill, so that there is something to commit."""
# The records are old: without this the broker deletes them within minutes.
KEPT = {"retention.ms": "-1"}


@pytest.mark.feature("tables-survive-kills")
@pytest.mark.parametrize(
    ("kills", "events"),
    [
        pytest.param(Counter({DRIVER: 1, GAP: 1}), 3_000, id=f"two kills, seed {SEED}"),
        pytest.param(Counter({DRIVER: 12, GAP: 8}), 20_000, id=f"twenty kills, seed {SEED}"),
    ],
)
def test_no_kill_loses_or_doubles_or_takes_back(tmp_path: Path, kills: Counter[str], events: int):
    changes = inventory_model.made(events, SEED, in_order=True)
    happened = [record for topic, record in features_model.made(events, SEED) if topic == features.EVENTS]
    items, sums, refused = inventory_model.expected([changes])
    _, online, refused_events = features_model.expected([[(features.EVENTS, record) for record in happened]])
    with EmbeddedKafka() as broker:
        sources = Sources(broker.bootstrap, {inventory.CHANGES: changes, features.EVENTS: happened})
        driver = ProcessorProcess("tests.integration.processor.killed_tables", broker.bootstrap, tmp_path)
        chaos = Chaos(driver, broker.bootstrap, application_id, inventory.STOCK, PARTITIONS)
        try:
            slices = kills.total() + 1
            sources.write(1 / slices)
            chaos.start()
            for nth, kill in enumerate(plan(kills), start=2):
                sources.write((nth - AFTER_KILL) / slices)
                chaos.strike(kill, WITHIN_S, send_more=partial(sources.write, nth / slices))
                log.info("killed", what=kill, nth=nth - 1, batch=chaos.written())

            def becomes(store: str, expected: dict[str, Any]) -> None:
                def is_complete() -> bool:
                    chaos.see_to_the_driver()
                    return _store(broker.bootstrap, store) == expected

                poll_until(is_complete, PROGRESS_S, f"{store} to be complete")

            becomes(inventory.ITEMS, items)
            becomes(inventory.STOCK, sums)
            becomes(features.ONLINE, online)
            letters = messages(broker.bootstrap, dead_letters_topic(application_id))
        finally:
            if driver.is_running:
                driver.stop()
        log.info("survived", hit=chaos.gaps_hit, replayed=chaos.batches_replayed, ended=chaos.ended_by_itself)
        assert _refused(letters) == as_bytes(refused + refused_events)
        published = messages(broker.bootstrap, changelog_topic(application_id, inventory.ITEMS))
        assert {each.key().decode() for each in published} <= histories(changes).keys()
        rest = {number: iter(rows) for number, rows in histories(changes).items()}
        for each in published:
            row = None if each.value() is None else json.loads(each.value())
            assert row in rest[each.key().decode()], f"item {each.key()}: {row} came after a newer row"
    assert set(chaos.gaps_hit) <= set(chaos.batches_replayed), "a batch in the gap was written again"


class Sources:
    """The sources, written as far as the kills have come."""

    def __init__(self, bootstrap: str, records: Mapping[str, Sequence[Any]]) -> None:
        self._bootstrap = bootstrap
        self._records = {
            topic: [(each.partition, _bytes(each.key), _bytes(each.value), each.timestamp_ms) for each in of_topic]
            for topic, of_topic in records.items()
        }
        self._written = dict.fromkeys(records, 0)
        for topic in records:
            create_topic(bootstrap, topic, PARTITIONS, KEPT)

    def write(self, share: float) -> None:
        """Write what is missing of this share of the records."""
        for topic, records in self._records.items():
            end = round(len(records) * share)
            produce_placed(self._bootstrap, topic, records[self._written[topic] : end])
            self._written[topic] = end


def histories(changes: list[Any]) -> dict[str, list[dict[str, Any] | None]]:
    """Return each item's rows, in order."""
    found: dict[str, list[dict[str, Any] | None]] = defaultdict(list)
    for record in changes:
        try:
            number, row = inventory_model.judged(record)
        except RefusedRecord:
            continue
        found[number].append(row)
    return found


def _store(bootstrap: str, store: str) -> dict[str, Any]:
    content = store_of(messages(bootstrap, changelog_topic(application_id, store)))
    return {key.decode(): json.loads(value) for key, value in content.items()}


def _refused(letters: list[Any]) -> Refused:
    places = Counter(
        tuple(headers(each)[f"source_{part}"] for part in ("topic", "partition", "offset")) for each in letters
    )
    assert max(places.values()) == 1, "no refused record is there twice"
    return Counter((headers(each)["reason"], each.key(), each.value()) for each in letters)


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
