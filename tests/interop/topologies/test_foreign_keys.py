"""A foreign-key join of tables and its twin in Kafka Streams, after the same 50,000 changes of both tables.

Ours is asked on the way too: after each portion the stores equal plain Python's join, and no record of a key shows an
older row of either table than the record before it.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from pyspark.sql import SparkSession

from processor.application.topology import Topology
from processor.rows import DELETED, KEY
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import changelog_topic
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.processor.running import processing
from tests.integration.processor.support import messages
from tests.interop.kafka_streams.program import KafkaStreamsPrograms
from tests.interop.topologies import foreign_keys, twin
from tests.interop.topologies.test_same_stores import OURS_S, PARTITIONS, two_hours_ago
from tests.property.processor.test_foreign_key_join_properties import Join, Left, Right
from tests.support.kafka import create_topic, produce_placed
from tests.support.polling import poll_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

CHANGES: Final = 50_000
PORTIONS: Final = 8
COUNT: Final = {foreign_keys.PATIENTS: 2_000, foreign_keys.WARDS: 150}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as broker:
        yield broker


class Change(NamedTuple):
    topic: str
    key: str
    row: dict[str, str] | None
    time_ms: int


def changes_of(source: random.Random, first_ms: int) -> list[Change]:
    """Return changes in order of time; each row says the number of its change."""
    changes = []
    for number in range(CHANGES):
        topic = foreign_keys.PATIENTS if source.random() < 0.8 else foreign_keys.WARDS
        key = f"{topic}-{source.randrange(COUNT[topic])}"
        row: dict[str, str] | None
        if topic == foreign_keys.WARDS:
            row = {"ward_name": str(number)}
        else:
            row = {"name": str(number)}
            if source.random() < 0.93:  # now and then a ward that never is
                row["ward"] = f"wards-{source.randrange(COUNT[foreign_keys.WARDS] + 10)}"
        changes.append(Change(topic, key, None if source.random() < 0.12 else row, first_ms + number))
    return changes


def joins(changes: Iterable[Change]) -> dict[str, dict[str, Any]]:
    """Return both stores as they are to be after these changes."""
    tables: dict[str, dict[str, dict[str, str]]] = defaultdict(dict)
    for topic, key, row, _ in changes:
        tables[topic].pop(key, None)
        if row is not None:
            tables[topic][key] = row
    stores: dict[str, dict[str, Any]] = {foreign_keys.INNER: {}, foreign_keys.LEFT: {}}
    for key, patient in tables[foreign_keys.PATIENTS].items():
        ward = tables[foreign_keys.WARDS].get(patient.get("ward", ""))
        if ward is None:
            stores[foreign_keys.LEFT][key] = {"name": patient["name"]}
            continue
        for store in stores.values():
            store[key] = {"name": patient["name"], "ward": ward["ward_name"]}
    return stores


def test_the_operators_agree_with_kafka_streams_that_gets_one_change_after_the_other(
    programs: KafkaStreamsPrograms, tmp_path: Path
) -> None:
    """Without a broker and Spark: only the operators, on batches of all sizes, and Kafka Streams' test driver."""
    source = random.Random(74)
    changes = changes_of(source, two_hours_ago())
    values = [None if change.row is None else json.dumps(change.row) for change in changes]
    piped = [
        twin.Piped(change.topic, 0, change.key, value, change.time_ms)
        for change, value in zip(changes, values, strict=True)
    ]
    theirs = twin.driven(programs, twin.FOREIGN_KEY_JOIN, piped, tmp_path)
    assert {how: twin.differing(store, theirs[how]) for how, store in joins(changes).items()} == {
        foreign_keys.INNER: [],
        foreign_keys.LEFT: [],
    }
    numbered = list(enumerate(map(operators_change, changes)))
    for how in theirs:
        join, ours, begin = Join(keeps_unmatched=how == foreign_keys.LEFT), dict[str, Any](), 0
        while begin < len(numbered):
            end = begin + source.choice((1, 10, 100, 1_000, 5_000))
            for row in join.run(numbered[begin:end]):
                ours.pop(row[KEY].decode(), None)
                if not row[DELETED]:
                    patient, ward = row["left"], row["right"]
                    ours[row[KEY].decode()] = {"name": patient} | ({} if ward is None else {"ward": ward})
            begin = end
        assert twin.differing(ours, theirs[how]) == []


def operators_change(change: Change) -> Left | Right:
    row = change.row
    if change.topic == foreign_keys.WARDS:
        return Right(change.key, row and row["ward_name"], change.time_ms)
    return Left(change.key, row and row["name"], row and row.get("ward"), change.time_ms)


def write(bootstrap: str, changes: Sequence[Change]) -> None:
    for topic in COUNT:
        placed = [
            (
                partition_for(change.key.encode(), PARTITIONS),
                change.key.encode(),
                None if change.row is None else json.dumps(change.row).encode(),
                change.time_ms,
            )
            for change in changes
            if change.topic == topic
        ]
        produce_placed(bootstrap, topic, placed)


@pytest.mark.feature("foreign-key-join")
def test_a_foreign_key_join_is_the_same(
    broker: EmbeddedKafka, programs: KafkaStreamsPrograms, spark: SparkSession, tmp_path: Path
) -> None:
    changes = changes_of(random.Random(73), two_hours_ago())
    for topic in COUNT:
        create_topic(broker.bootstrap, topic, PARTITIONS)
    topics = {how: changelog_topic(foreign_keys.application_id, how) for how in (foreign_keys.INNER, foreign_keys.LEFT)}

    def ours() -> dict[str, Any]:
        return {how: twin.changelog(broker.bootstrap, topic) for how, topic in topics.items()}

    with processing(Topology.load(foreign_keys.__name__), broker.bootstrap, tmp_path):
        for portion in range(PORTIONS):
            begin, end = CHANGES * portion // PORTIONS, CHANGES * (portion + 1) // PORTIONS
            write(broker.bootstrap, changes[begin:end])
            expected = joins(changes[:end])
            poll_until(lambda: ours() == expected, OURS_S, f"our stores after portion {portion}")  # noqa: B023
    expected = joins(changes)
    assert 500 < len(expected[foreign_keys.INNER]) < len(expected[foreign_keys.LEFT])

    wards = {
        change.row["ward_name"]: change.key
        for change in changes
        if change.topic == foreign_keys.WARDS and change.row is not None
    }
    for topic in topics.values():
        published = defaultdict(list)
        for message in messages(broker.bootstrap, topic):
            if message.value() is not None:
                published[message.key()].append(json.loads(message.value()))
        for before, after in (pair for rows in published.values() for pair in pairwise(rows)):
            assert int(before["name"]) <= int(after["name"]), "no older row of the left table"
            if "ward" in before and "ward" in after and wards[before["ward"]] == wards[after["ward"]]:
                assert int(before["ward"]) <= int(after["ward"]), "nor of the right one"

    app = f"{foreign_keys.application_id}-twin"
    arguments = ("run", twin.FOREIGN_KEY_JOIN, broker.bootstrap, app, PARTITIONS, tmp_path / "kafka-streams", 0)
    programs.run("Twin", *arguments, log=tmp_path / "twin.log")
    theirs = {how: twin.changelog(broker.bootstrap, changelog_topic(app, how)) for how in topics}
    assert {how: twin.differing(expected[how], theirs[how]) for how in topics} == {how: [] for how in topics}
