"""Our examples and their twins in Kafka Streams, on one broker from the same topics: the same final stores.

The inputs are such that both rules agree: tables are quiet before the first score, no event is later than the grace
by either clock, an event in every partition closes the windows there, and no patient has two alerts in one batch. All
is compared with plain Python too.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from pyspark.sql import SparkSession

from examples.leaderboard import sample
from examples.leaderboard import topology as leaderboard
from examples.leaderboard.model import Score, leaderboards
from examples.patient_monitoring import model
from examples.patient_monitoring import topology as monitoring
from examples.patient_monitoring.sample import iso
from processor.application.topology import Topology
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import changelog_topic
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.samples import create_topics
from tests.integration.processor.running import processing
from tests.integration.processor.support import messages, store_of
from tests.interop.kafka_streams.program import KafkaStreamsPrograms
from tests.interop.topologies import twin
from tests.support.kafka import PlacedRecord, create_topic, produce_placed
from tests.support.polling import poll_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

PARTITIONS: Final = 3
OURS_S: Final = 400.0
MINUTE: Final = 60_000
LATE_MS: Final = 4_000  # at most: less than the grace
TASK_IDLE_MS: Final = 20_000


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as broker:
        yield broker


def two_hours_ago() -> int:
    return (int(time.time() * 1000) // MINUTE - 120) * MINUTE


# Leaderboard.


def named(number: int, name: str) -> bytes:
    return json.dumps({"id": number, "name": name}).encode()


def table(source: random.Random, what: str, ids: Sequence[int], count: int, first_ms: int) -> list[PlacedRecord]:
    """Return rows for some ids, renames, and here and there a tombstone for good."""
    rows: list[PlacedRecord] = []
    for step in range(3):
        for number in ids:
            key = str(number).encode()
            is_deleted = step == 2 and number % 17 == 0
            if step == 0 or is_deleted or source.random() < 0.3:
                value = None if is_deleted else named(number, f"{what} {number} “{step}”")
                rows.append((partition_for(key, count), key, value, first_ms + len(rows)))
    return rows


def names_of(rows: Sequence[PlacedRecord]) -> dict[int, str]:
    names: dict[int, str] = {}
    for _, key, value, _ in rows:
        if value is None:
            names.pop(int(key or b""), None)
        else:
            names[int(key or b"")] = json.loads(value)["name"]
    return names


def scores_of(source: random.Random, count: int, first_ms: int) -> list[Score]:
    """Return scores with many ties, in any order of time; some of players and products that nobody knows."""
    offsets = [0] * PARTITIONS
    scores = []
    for _ in range(count):
        partition = source.randrange(PARTITIONS)
        time_ms = first_ms + source.randrange(count // 10)
        value = source.choice((source.randrange(400), source.randrange(4000) / 10, 400.0, 399.5))
        scores.append(
            Score(time_ms, partition, offsets[partition], source.randrange(105), source.randrange(510), value)
        )
        offsets[partition] += 1
    return scores


@pytest.mark.feature("stream-table-join")
def test_the_leaderboard_is_the_same(
    broker: EmbeddedKafka, programs: KafkaStreamsPrograms, spark: SparkSession, tmp_path: Path
) -> None:
    source, first_ms = random.Random(71), two_hours_ago()
    players = table(source, "player", range(500), PARTITIONS, first_ms)
    products = table(source, "product", range(100), 1, first_ms)
    scores = scores_of(source, 50_000, first_ms + MINUTE)
    create_topics(broker.bootstrap, sample.TOPICS, PARTITIONS)
    produce_placed(broker.bootstrap, leaderboard.PLAYERS, players)
    produce_placed(broker.bootstrap, leaderboard.PRODUCTS, products)
    events = [
        json.dumps({"score": score.score, "product_id": score.product_id, "player_id": score.player_id}).encode()
        for score in scores
    ]
    placed = [(score.partition, None, event, score.timestamp_ms) for score, event in zip(scores, events, strict=True)]
    produce_placed(broker.bootstrap, leaderboard.SCORES, placed)

    expected = leaderboards(scores, names_of(players), names_of(products))
    assert len(expected) == 94, "six are deleted"
    assert any(len({entry["score"] for entry in json.loads(board)}) == 1 for board in expected.values()), "ties"
    topic = changelog_topic(leaderboard.application_id, leaderboard.STORE)
    with processing(Topology.load(leaderboard.__name__), broker.bootstrap, tmp_path):
        poll_until(lambda: store_of(messages(broker.bootstrap, topic)) == expected, OURS_S, "our leaderboards")
    app = f"{leaderboard.application_id}-twin"
    arguments = ("run", twin.LEADERBOARD, broker.bootstrap, app, PARTITIONS, tmp_path / "kafka-streams", 0)
    programs.run("Twin", *arguments, log=tmp_path / "twin.log")

    theirs = twin.changelog(broker.bootstrap, changelog_topic(app, leaderboard.STORE))
    assert theirs == twin.changelog(broker.bootstrap, topic)


# Patient monitoring.


class Event(NamedTuple):
    """An event on its way: when it arrives, in the time of the events."""

    arrives_ms: int
    topic: str
    patient: str
    value: bytes


def pulses_of(source: random.Random, patients: int, minutes: int, first_ms: int) -> Iterator[Event]:
    """Every fifth minute of a patient is fast. One event in fifty says no time."""
    for patient in range(patients):
        for minute in range(minutes):
            is_fast = (patient + minute) % 5 == 0
            for _ in range(source.randint(105, 130) if is_fast else source.randint(40, 90)):
                yield pulse(source, str(patient), first_ms + minute * MINUTE + source.randrange(MINUTE))


def pulse(source: random.Random, patient: str, time_ms: int) -> Event:
    value = {} if source.random() < 0.02 else {"timestamp": said(time_ms)}
    return Event(time_ms + source.randrange(LATE_MS), monitoring.PULSES, patient, json.dumps(value).encode())


def temperatures_of(source: random.Random, patients: int, minutes: int, first_ms: int) -> Iterator[Event]:
    """One a minute: most fast minutes have a fever, and some that are far from them."""
    for patient in range(patients):
        for minute in range(minutes):
            time_ms = first_ms + minute * MINUTE + source.randint(10_000, 50_000)
            nth = (patient + minute) % 5
            is_fever = (nth == 0 and source.random() < 0.8) or nth == 3
            fahrenheit = round(source.uniform(100.5, 104) if is_fever else source.uniform(97, 100.3), 1)
            measured: dict[str, Any] = {"temperature": fahrenheit, "unit": "F"}
            if source.random() < 0.3:
                measured = {"temperature": round((fahrenheit - 32) * 5 / 9, 2) + 0.01 * is_fever, "unit": "C"}
            if source.random() > 0.02:
                measured = {"timestamp": said(time_ms), **measured}
            arrives_ms = time_ms + source.randrange(LATE_MS)
            yield Event(arrives_ms, monitoring.TEMPERATURES, str(patient), json.dumps(measured).encode())


def said(time_ms: int) -> str:
    return iso(datetime.fromtimestamp(time_ms / 1000, UTC))


def closing(first_ms: int) -> list[Event]:
    """A beat in each partition, late enough to close every minute before it."""
    missing, number, events = set(range(PARTITIONS)), 0, []
    while missing:
        patient = f"closing-{number}"
        if partition_for(patient.encode(), PARTITIONS) in missing:
            missing.discard(partition_for(patient.encode(), PARTITIONS))
            events.append(
                Event(first_ms, monitoring.PULSES, patient, json.dumps({"timestamp": said(first_ms)}).encode())
            )
        number += 1
    return events


class Feed:
    """Writes events to the broker, and keeps them for the model as they stand there."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._records: dict[str, list[model.Record]] = {monitoring.PULSES: [], monitoring.TEMPERATURES: []}

    def write(self, topic: str, events: Sequence[Event]) -> None:
        placed: list[PlacedRecord] = []
        for event in events:
            key = event.patient.encode()
            partition = partition_for(key, PARTITIONS)
            placed.append((partition, key, event.value, event.arrives_ms))
            records = self._records[topic]
            records.append(model.Record(partition, len(records), event.arrives_ms, key, event.value))
        produce_placed(self._bootstrap, topic, placed)

    def events(self, topic: str) -> list[model.Event]:
        events, refused = model.read(self._records[topic])
        assert not refused
        return events


@pytest.mark.feature("windowed-stream-stream")
def test_patient_monitoring_is_the_same(
    broker: EmbeddedKafka, programs: KafkaStreamsPrograms, spark: SparkSession, tmp_path: Path
) -> None:
    source, first_ms, minutes = random.Random(72), two_hours_ago(), 7
    pulses = sorted(pulses_of(source, 110, minutes, first_ms))
    temperatures = sorted(temperatures_of(source, 110, minutes, first_ms))
    assert len(pulses) >= 50_000
    for topic in (monitoring.PULSES, monitoring.TEMPERATURES):
        create_topic(broker.bootstrap, topic, PARTITIONS)
    feed = Feed(broker.bootstrap)

    def alerts_are_there() -> bool:
        expected = model.alerts(feed.events(monitoring.PULSES), feed.events(monitoring.TEMPERATURES))
        found = [
            (each.key().decode(), each.timestamp()[1], each.value())
            for each in messages(broker.bootstrap, monitoring.ALERTS)
        ]
        return sorted(found) == sorted(expected)

    def arriving(events: Sequence[Event], minute: int) -> list[Event]:
        return [each for each in events if each.arrives_ms // MINUTE == first_ms // MINUTE + minute]

    # Minute by minute, as real events come: of a backlog the temperatures would be read before the first minute is
    # closed, and be far ahead of it.
    with processing(Topology.load(monitoring.__name__), broker.bootstrap, tmp_path):
        for minute in range(minutes + 1):
            feed.write(monitoring.PULSES, arriving(pulses, minute))
            poll_until(alerts_are_there, OURS_S, f"the alerts of minute {minute}")
            feed.write(monitoring.TEMPERATURES, arriving(temperatures, minute))
            poll_until(alerts_are_there, OURS_S, f"the alerts with the temperatures of minute {minute}")
        feed.write(monitoring.PULSES, closing(first_ms + (minutes + 2) * MINUTE))
        poll_until(alerts_are_there, OURS_S, "the alerts of the last minute")
        expected = model.pulse_counts(feed.events(monitoring.PULSES))
        counts_topic = changelog_topic(monitoring.application_id, monitoring.PULSE_COUNTS)
        counted = lambda: twin.window_changelog(broker.bootstrap, counts_topic) == expected  # noqa: E731
        poll_until(counted, OURS_S, "our counts")
    app = f"{monitoring.application_id}-twin"
    state = tmp_path / "kafka-streams"
    arguments = ("run", twin.PATIENT_MONITORING, broker.bootstrap, app, PARTITIONS, state, TASK_IDLE_MS)
    programs.run("Twin", *arguments, log=tmp_path / "twin.log")

    as_long = lambda data: int.from_bytes(data, "big", signed=True)  # noqa: E731
    theirs = twin.window_changelog(broker.bootstrap, changelog_topic(app, monitoring.PULSE_COUNTS), as_long)
    assert theirs == twin.window_changelog(broker.bootstrap, counts_topic)
    ours = twin.changelog(broker.bootstrap, changelog_topic(monitoring.application_id, monitoring.ALERTS))
    assert twin.changelog(broker.bootstrap, changelog_topic(app, monitoring.ALERTS)) == ours
    assert len(ours) > 80
