"""Patient monitoring as it is run: a real broker and Spark, a node, a router, and the HTTP API's answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark.sql import SparkSession

from examples.http_service import routes
from examples.patient_monitoring import model
from examples.patient_monitoring.http_api import READS, ROOT, answer
from examples.patient_monitoring.sample import BEGAN_MS, FEVER, PATIENT, PULSE_RECORDS, TOPICS, pulse, temperature
from examples.patient_monitoring.topology import ALERTS, HIGH_PULSES, PULSE_COUNTS, PULSES, TEMPERATURES
from statehouse.contract.topology import changelog_topic, dead_letters_topic
from statehouse.kafka.clients import admin
from statehouse.kafka.topics import partition_counts, topic_settings
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.samples import Sample, create_topics, send
from statehouse.settings import WebSettings
from statehouse.web.app import build_app
from statehouse.web.gateway import Gateway
from tests.integration.processor.running import Running, running_example
from tests.integration.processor.support import headers, messages

pytestmark = pytest.mark.timeout(400)

PARTITIONS = 2
YEAR_MS = 365 * 24 * 3_600_000

SICK, WELL = "sick", "well"
# Beats of patients whose minute is closed with the sample's; one of each misses its time, and has the stream's then.
BEATS = [
    *(pulse(SICK, BEGAN_MS + 400 * number) for number in range(110)),
    *(pulse(WELL, BEGAN_MS + 900 * number) for number in range(60)),
    pulse(SICK, None),
    pulse(WELL, None),
]
NO_BEATS = [
    pulse(PATIENT, BEGAN_MS + YEAR_MS, recorded_ms=BEGAN_MS),
    pulse(None, BEGAN_MS),
    Sample(PULSES, PATIENT, '{"timestamp":"soon"}', BEGAN_MS),
    Sample(PULSES, PATIENT, '{"timestamp":"1969-12-31T23:59:59Z"}', BEGAN_MS),
    Sample(PULSES, PATIENT, "beat", BEGAN_MS),
    Sample(PULSES, PATIENT, None, BEGAN_MS),
]
FEVERS = [
    FEVER,
    temperature(SICK, BEGAN_MS + 20_000, 37, "C"),
    temperature(SICK, None, 39, "C"),
    temperature(SICK, BEGAN_MS + 300_000, 41.5, "C"),
    temperature(WELL, BEGAN_MS + 20_000, 40.25, "C"),
    temperature(PATIENT, BEGAN_MS + 31_000, 100.4),
    temperature(PATIENT, BEGAN_MS + 31_000, 300, "K"),
    temperature(PATIENT, BEGAN_MS + YEAR_MS, 103, recorded_ms=BEGAN_MS),
]


@pytest.mark.long
def test_a_fast_minute_and_a_fever_are_an_alert(spark: SparkSession, kafka: EmbeddedKafka, tmp_path: Path):
    create_topics(kafka.bootstrap, TOPICS, PARTITIONS)
    send(kafka.bootstrap, [*BEATS, *NO_BEATS, *PULSE_RECORDS])
    with running_example("examples.patient_monitoring.topology", kafka.bootstrap, tmp_path) as app:
        counts = minutes_are_counted_without_any_temperature(app)
        more_beats_of_the_open_minute_show_at_once(app, counts)
        fevers_near_fast_minutes_are_alerts(app)
        what_is_no_event_is_a_dead_letter_with_its_reason(app)
        the_http_api_answers(app)


def minutes_are_counted_without_any_temperature(app: Running) -> dict[tuple[str, int], int]:
    counts = model.pulse_counts(beats(app))
    assert {key: counts[key] for key in ((PATIENT, BEGAN_MS), (PATIENT, BEGAN_MS + 60_000), (SICK, BEGAN_MS))} == {
        (PATIENT, BEGAN_MS): 120,
        (PATIENT, BEGAN_MS + 60_000): 7,
        (SICK, BEGAN_MS): 111 if (SICK, BEGAN_MS + 60_000) not in counts else 110,
    }
    app.becomes(lambda: windows(app), counts, "the counts, the open minute's among them")

    def closed() -> set[tuple[bytes, bytes]]:
        return {(each.key(), each.value().partition(b",")[0] + b"}") for each in messages(app.bootstrap, HIGH_PULSES)}

    sick = counts[SICK, BEGAN_MS]
    fast = {(b"1", b'{"heart_rate":120}'), (SICK.encode(), b'{"heart_rate":%d}' % sick)}
    app.becomes(closed, fast, "the closed minutes that were fast")
    return counts


def more_beats_of_the_open_minute_show_at_once(app: Running, before: dict[tuple[str, int], int]) -> None:
    send(app.bootstrap, [pulse(PATIENT, None)])
    counts = model.pulse_counts(beats(app))
    assert counts == before | {(PATIENT, BEGAN_MS + 60_000): 8}, "it has the stream's time, of an earlier batch"
    app.becomes(lambda: windows(app), counts, "the beat without a time")


def fevers_near_fast_minutes_are_alerts(app: Running) -> None:
    send(app.bootstrap, FEVERS)
    expected = model.alerts(beats(app), fevers(app))
    values = {alert.patient: alert.value for alert in expected}
    assert set(values) == {PATIENT, SICK}
    assert values[PATIENT] == (
        b'{"heart_rate":120,"body_temp":{"timestamp":"2024-01-31T09:02:30.000Z","temperature":101.2,"unit":"F"}}'
    )
    app.becomes(
        lambda: sorted(
            (each.key().decode(), each.timestamp()[1], each.value()) for each in messages(app.bootstrap, ALERTS)
        ),
        sorted(expected),
        "the alerts",
    )
    app.becomes(
        lambda: {key: app.client.get(ALERTS, key, raw=True).value for key in values}, values, "the alerts' store"
    )


def what_is_no_event_is_a_dead_letter_with_its_reason(app: Running) -> None:
    expected = {
        (topic, *place): reason
        for topic in (PULSES, TEMPERATURES)
        for place, reason in model.read(records(app, topic))[1].items()
    }
    reasons = ["future_time"] * 2 + ["negative_time", "not_json", "null_key", "null_value", "unknown_unit"]
    assert sorted(expected.values()) == [*reasons, "unparsable_time"]

    def letters() -> dict[tuple[str, int, int], str]:
        found = [headers(each) for each in messages(app.bootstrap, dead_letters_topic(app.application_id))]
        assert len(found) <= len(expected), "each once"
        return {
            (each["source_topic"], int(each["source_partition"]), int(each["source_offset"])): each["reason"]
            for each in found
        }

    app.becomes(letters, expected, "the dead letters")
    values = {each.value() for each in messages(app.bootstrap, dead_letters_topic(app.application_id))}
    assert values == {text and text.encode() for _, _, text, _ in [*NO_BEATS, *FEVERS[-2:]]}


def the_http_api_answers(app: Running) -> None:
    minute = 60_000
    counts = model.pulse_counts(beats(app))
    found = asyncio.run(
        asked(
            app.router, "/bpm/all", f"/bpm/range/{BEGAN_MS}/{BEGAN_MS}", f"/bpm/range/{PATIENT}/0/{BEGAN_MS + minute}"
        )
    )
    assert found == [
        {f"[{patient}@{start}/{start + minute}]": count for (patient, start), count in counts.items()},
        [
            {"key": patient, "start": "2024-01-31T09:02:00Z", "end": "2024-01-31T09:03:00Z", "count": count}
            for (patient, start), count in sorted(counts.items())
            if start == BEGAN_MS
        ],
        [{"timestamp": "2024-01-31T09:02:00Z", "count": 120}, {"timestamp": "2024-01-31T09:03:00Z", "count": 8}],
    ]
    topic = changelog_topic(app.application_id, PULSE_COUNTS)
    assert topic == "dev-consumer-pulse-counts-changelog"
    client = admin(app.bootstrap, "tests")
    settings = topic_settings(client, topic)
    assert (settings["min.insync.replicas"], settings["cleanup.policy"]) == ("1", "compact,delete")
    assert partition_counts(client, [HIGH_PULSES, ALERTS]) == {HIGH_PULSES: PARTITIONS, ALERTS: PARTITIONS}


async def asked(router: str, *paths: str) -> list[Any]:
    gateway = Gateway(WebSettings(router=router))
    app = build_app(gateway, routes(gateway, ROOT, READS, answer))
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport) as http:
        return [(await http.get(f"http://localhost{path}")).json() for path in paths]


def windows(app: Running) -> dict[tuple[Any, int], int]:
    return {
        (each.key, each.start_ms): int(str(each.value).removesuffix(".0"))
        for each in app.client.scan_windows(PULSE_COUNTS)
    }


def records(app: Running, topic: str) -> list[model.Record]:
    return [
        model.Record(each.partition(), each.offset(), each.timestamp()[1], each.key(), each.value())
        for each in messages(app.bootstrap, topic)
    ]


def beats(app: Running) -> list[model.Event]:
    return model.read(records(app, PULSES))[0]


def fevers(app: Running) -> list[model.Event]:
    return model.read(records(app, TEMPERATURES))[0]
