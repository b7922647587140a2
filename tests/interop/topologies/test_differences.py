"""Late and out-of-order events and table updates: ours by Spark's rule, Kafka Streams by its own, and why they differ.

What our examples store equals plain Python's account of Spark's rule (`rules.py`), and what their twins store equals
its account of Kafka Streams'. Each key that differs is put down to events that the two rules treat differently, and
each of these to a class of docs/differences.md.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from examples.leaderboard import topology as leaderboard
from examples.patient_monitoring import topology as monitoring
from examples.patient_monitoring.sample import iso
from processor.testing import Record, TopologyTest
from tests.interop.kafka_streams.program import KafkaStreamsPrograms
from tests.interop.topologies import twin
from tests.interop.topologies.rules import (
    WINDOW_MS,
    Alert,
    Arrival,
    Beat,
    BoardsByBatch,
    BoardsByRecord,
    ByRecord,
    CountsByBatch,
    Fever,
    HighPulse,
    JoinByBatch,
    Row,
    Score,
    rows_that_differ,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

BEGAN_MS: Final = 1_700_000_040_000 // WINDOW_MS * WINDOW_MS
PARTITIONS: Final = 3
BATCHES: Final = 7
BATCH_MS: Final = 40_000
BEHIND_MS: Final = 70_000  # how far partition 1 is behind the others
SILENT_FROM: Final = 6  # the batch from which partition 2 has nothing to say

SCORES: Final = leaderboard.SCORES

# The classes of docs/differences.md.
BATCH, QUERY, CLOSING, LATE_JOIN = "moves-with-batches", "one-for-the-query", "closed-by-any-partition", "late-join"


# Patient monitoring.


def arrivals_of(source: random.Random) -> list[list[Beat | Fever]]:
    """Return what arrives, by batch and in order: nine patients, three in each partition."""
    arriving: list[tuple[int, int, bool, str, int]] = []
    for patient in range(9):
        partition = patient % PARTITIONS
        behind_ms = BEHIND_MS if partition == 1 else 0
        end_ms = BATCH_MS * (SILENT_FROM if partition == 2 else BATCHES)
        at_ms = 0
        while at_ms < end_ms:
            late_ms = source.randint(10_000, 20_000) if source.random() < 0.05 else source.randrange(3_000)
            arriving.append((at_ms + late_ms, partition, False, str(patient), at_ms - behind_ms))
            at_ms += source.randint(430, 590)
        for at_ms in range(source.randrange(20_000), end_ms, 25_000):
            late_ms = 150_000 if source.random() < 0.25 else 0
            arriving.append((at_ms + late_ms, partition, True, str(patient), at_ms - behind_ms))
    batches: list[list[Beat | Fever]] = [[] for _ in range(BATCHES)]
    for number, (at_ms, partition, is_fever, patient, time_ms) in enumerate(sorted(arriving)):
        kind = Fever if is_fever else Beat
        batch = batches[min(at_ms // BATCH_MS, BATCHES - 1)]
        batch.append(kind(number, partition, patient, BEGAN_MS + time_ms))
    return batches


def piped(event: Beat | Fever) -> twin.Piped:
    value: dict[str, object] = {"timestamp": said(event.time_ms)}
    topic = monitoring.PULSES
    if isinstance(event, Fever):
        value |= {"temperature": temperature(event), "unit": "F"}
        topic = monitoring.TEMPERATURES
    return twin.Piped(topic, event.partition, event.patient, json.dumps(value), event.time_ms)


def said(time_ms: int) -> str:
    return iso(datetime.fromtimestamp(time_ms / 1000, UTC))


def temperature(fever: Fever) -> float:
    return round(100.55 + fever.number % 30 / 10, 2)


def value_of(alert: Alert) -> dict[str, object]:
    pulse, fever = alert
    measured = {"timestamp": said(fever.time_ms), "temperature": temperature(fever), "unit": "F"}
    return {"heart_rate": pulse.rate, "body_temp": measured}


def shown(alerts: Iterable[Alert]) -> list[str]:
    return sorted(
        f"{pulse.patient} {max(pulse.time_ms, fever.time_ms)} {json.dumps(value_of((pulse, fever)), sort_keys=True)}"
        for pulse, fever in alerts
    )


def shown_records(records: Iterable[Record]) -> list[str]:
    found = []
    for record in records:
        assert isinstance(record.key, bytes)
        assert isinstance(record.value, bytes)
        value = json.dumps(json.loads(record.value), sort_keys=True)
        found.append(f"{record.key.decode()} {record.timestamp_ms} {value}")
    return sorted(found)


class Ours:
    """Patient monitoring's three queries by Spark's rule."""

    def __init__(self) -> None:
        self.counts, self.high = CountsByBatch(append=False), CountsByBatch(append=True)
        self.join = JoinByBatch()
        self.alerts: list[Alert] = []
        self.closed: list[HighPulse] = []

    def batch(self, events: Sequence[Beat | Fever]) -> list[Alert]:
        beats = [event for event in events if isinstance(event, Beat)]
        self.counts.batch(beats)
        closed = self.high.batch(beats)
        self.closed += closed
        found = self.join.batch(closed, [event for event in events if isinstance(event, Fever)])
        self.alerts += found
        return found


def test_patient_monitoring_follows_sparks_watermark(
    spark: SparkSession, programs: KafkaStreamsPrograms, tmp_path: Path
) -> None:
    batches = arrivals_of(random.Random(81))
    topology = TopologyTest(monitoring.application_id, monitoring.build, spark, tmp_path / "ours", PARTITIONS)
    ours, theirs = Ours(), ByRecord()
    last: dict[str, list[dict[str, object]]] = {}
    for events in batches:
        for event in events:
            theirs.process(event)
        pipe(topology, [piped(event) for event in events])
        topology.run()
        latest: dict[str, list[dict[str, object]]] = defaultdict(list)  # a patient's alerts of this batch
        for alert in ours.batch(events):
            latest[alert[0].patient].append(value_of(alert))
        last |= latest
        assert topology.store(monitoring.PULSE_COUNTS) == ours.counts.counts
        assert shown_records(topology.records(monitoring.ALERTS)) == shown(ours.alerts)
        stored = topology.store(monitoring.ALERTS)
        assert stored.keys() == last.keys()
        assert all(value in last[patient] for patient, value in stored.items()), "of a batch's alerts, one"

    twins = twin.driven(
        programs, twin.PATIENT_MONITORING, [piped(each) for events in batches for each in events], tmp_path
    )
    assert twins[monitoring.PULSE_COUNTS] == theirs.counts
    their_alerts = {pulse.patient: value_of((pulse, fever)) for pulse, fever in theirs.alerts}
    assert twins[monitoring.ALERTS] == their_alerts

    assert any(len(values) > 1 for values in last.values()), "some have several in a batch"
    found = classes_of_counts(batches, ours, theirs) + classes_of_alerts(batches, ours, theirs)
    assert found.keys() == {BATCH, QUERY, CLOSING, LATE_JOIN}, "the inputs show each of them"


def classes_of_counts(batches: Sequence[Sequence[Beat | Fever]], ours: Ours, theirs: ByRecord) -> Counter[str]:
    """Put each minute that differs down to the beats that one of the two rules alone drops."""
    reasons = differing_beats(batches, ours.counts.dropped, theirs.dropped)
    differing = twin.differing(dict(ours.counts.counts), dict(theirs.counts))
    assert all(reasons[minute] for minute in differing)
    return sum((reasons[minute] for minute in differing), Counter[str]())


def classes_of_alerts(batches: Sequence[Sequence[Beat | Fever]], ours: Ours, theirs: ByRecord) -> Counter[str]:
    """Put each alert of one rule alone down to its minute's beats, to who closes it, or to a row late for the join."""
    reasons = differing_beats(batches, ours.high.dropped, theirs.dropped)
    closed = {(pulse.patient, pulse.start_ms): pulse for pulse in ours.closed}
    their_closed = {(pulse.patient, pulse.start_ms): pulse for pulse in theirs.high}
    classes: Counter[str] = Counter()
    for pulse, fever in set(ours.alerts) ^ set(theirs.alerts):
        minute = (pulse.patient, pulse.start_ms)
        if {pulse, fever} & ours.join.dropped:
            classes[LATE_JOIN] += 1
            continue
        assert closed.get(minute) != their_closed.get(minute), f"no reason for {pulse} {fever}"
        if reasons[minute]:
            classes.update(reasons[minute])
            continue
        assert minute not in their_closed
        assert theirs.counts[minute] == pulse.rate
        classes[CLOSING] += 1
    return classes


def pipe(topology: TopologyTest, records: Sequence[twin.Piped]) -> None:
    by_topic: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_topic[record.topic].append(Record(record.key, record.value, record.timestamp_ms, record.partition))
    for topic, piped_records in by_topic.items():
        topology.pipe(topic, *piped_records)


def differing_beats(
    batches: Sequence[Sequence[Beat | Fever]], ours: set[int], theirs: set[int]
) -> dict[tuple[str, int], Counter[str]]:
    """Return by minute the beats that one of the two rules alone drops, by the class of why."""
    found: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for event in (event for events in batches for event in events):
        if isinstance(event, Beat) and event.number in ours ^ theirs:
            minute = (event.patient, event.time_ms // WINDOW_MS * WINDOW_MS)
            # By its own partition's clock it is in time: another partition's is ahead.
            found[minute][BATCH if event.number in theirs else QUERY] += 1
    return found


# Leaderboard.


def table_and_scores(source: random.Random, count: int) -> list[Arrival]:
    """Return scores and updates of both tables in order of arrival, which is not quite the order of their times."""
    offsets: Counter[str] = Counter()
    arrivals: list[Arrival] = []
    for number in range(count):
        time_ms = BEGAN_MS + number * 100 + source.randrange(-3_000, 3_000)
        topic = source.choices([SCORES, leaderboard.PLAYERS, leaderboard.PRODUCTS], [8, 2, 1])[0]
        record: Row | Score
        if topic == SCORES:
            record = Score(offsets[topic], time_ms, source.randrange(12), source.randrange(20), source.randrange(60))
        else:
            name = None if source.random() < 0.1 else f"{topic} {number}"
            record = Row(offsets[topic], time_ms, source.randrange(12 if topic == leaderboard.PRODUCTS else 20), name)
        offsets[topic] += 1
        arrivals.append((topic, record))
    return arrivals


def piped_row(topic: str, record: Row | Score) -> twin.Piped:
    if isinstance(record, Score):
        score = {"score": record.score, "product_id": record.product, "player_id": record.player}
        return twin.Piped(topic, 0, None, json.dumps(score), record.time_ms)
    value = None if record.name is None else json.dumps({"id": record.number, "name": record.name})
    return twin.Piped(topic, 0, str(record.number), value, record.time_ms)


def test_the_leaderboard_applies_updates_batch_by_batch(
    spark: SparkSession, programs: KafkaStreamsPrograms, tmp_path: Path
) -> None:
    arrivals = table_and_scores(random.Random(82), 1_500)
    topology = TopologyTest(leaderboard.application_id, leaderboard.build, spark, tmp_path / "ours")
    ours, theirs = BoardsByBatch(), BoardsByRecord()
    for first in range(0, len(arrivals), 300):
        batch = arrivals[first : first + 300]
        for topic, record in batch:
            theirs.process(topic, record)
        pipe(topology, [piped_row(*each) for each in batch])
        topology.run()
        ours.batch(batch)
        assert topology.store(leaderboard.STORE) == ours.store()
        assert len(topology.dead_letters) == sum(None in names for names in ours.names.values())

    twins = twin.driven(programs, twin.LEADERBOARD, [piped_row(*each) for each in arrivals], tmp_path)
    assert twins[leaderboard.STORE] == theirs.store()
    products = {record.offset: record.product for _, record in arrivals if isinstance(record, Score)}
    classes: dict[str, Counter[str]] = defaultdict(Counter)
    for offset, tables in rows_that_differ(ours, theirs).items():
        classes[str(products[offset])].update(tables)
    differing = twin.differing(ours.store(), twins[leaderboard.STORE])

    assert all(classes[product] for product in differing)
    shown = sum((classes[product] for product in differing), Counter[str]())
    assert shown.keys() == {leaderboard.PLAYERS, leaderboard.PRODUCTS}, "the inputs show both"
