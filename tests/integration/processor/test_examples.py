"""The examples as they are run: a real broker and Spark, nodes and a router; results as plain Python computes them."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from examples.compaction import sample as readings
from examples.compaction import topology as compaction
from examples.lru_counts.topology import MAX_ENTRIES
from examples.topic_configs import topology as topic_configs
from statehouse.contract.topology import changelog_topic
from statehouse.kafka.clients import admin
from statehouse.kafka.topics import topic_settings
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.samples import Sample, create_topics, send
from tests.integration.processor import example_data as data
from tests.integration.processor.running import SERVED_S, running_example
from tests.integration.processor.support import messages, store_of
from tests.support.kafka import alter_topic, read_all
from tests.support.polling import poll_until

pytestmark = pytest.mark.timeout(400)

PARTITIONS = 3

PATIENTS = data.patient_events(600)
PROGRAMS = data.program_events(200)
COMMANDS = data.commands(300)
PAYMENTS = data.orders_and_payments(160)
CARTS = data.cart_events(250)
WARDS = data.patients_and_wards(300)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedKafka]:
    """A broker of this file's own, as the examples' topics have fixed names; all their inputs are there."""
    with EmbeddedKafka(config={"log.cleaner.backoff.ms": "200"}) as broker:
        records: list[Sample] = [*PATIENTS, *PROGRAMS, *COMMANDS, *PAYMENTS, *CARTS, *WARDS]
        create_topics(broker.bootstrap, {record.topic: {} for record in records}, PARTITIONS)
        send(broker.bootstrap, records)
        yield broker


Run = Callable[..., Any]


@pytest.fixture
def running(broker: EmbeddedKafka, spark: SparkSession, tmp_path: Path) -> Run:
    return lambda module, **settings: running_example(module, broker.bootstrap, tmp_path, **settings)


def patients(bootstrap: str) -> list[Sample]:
    """Return what the topic of patients' events has by now, in order of time."""
    found = [
        Sample("patient-events", *(part and part.decode() for part in (each.key(), each.value())), each.timestamp()[1])
        for each in messages(bootstrap, "patient-events")
    ]
    return sorted(found, key=lambda sample: sample.timestamp_ms)


@pytest.mark.long
def test_a_check_out_is_a_tombstone_and_compaction_takes_the_patient_from_the_topic(
    running: Run, broker: EmbeddedKafka
):
    given = patients(broker.bootstrap)
    expected = data.stays(given)
    with running("examples.tombstones.topology", min_compaction_lag_ms=0) as app:
        app.becomes(lambda: app.store("stays"), expected, "the stays")
        assert app.reasons() == ["null_key"] * 12 + ["null_value"] * 12

        leaving, stay = next(iter(expected.items()))
        times = itertools.count(given[-1].timestamp_ms + 1)
        send(app.bootstrap, [Sample("patient-events", leaving, "checked-out", next(times))])
        app.becomes(lambda: app.client.get("stays", leaving).found, False, f"{leaving} to be gone after {stay}")
        topic = changelog_topic(app.application_id, "stays")
        (*_, last) = [each for each in messages(app.bootstrap, topic) if each.key() == leaving.encode()]
        assert last.value() is None
        cleaned_at_once = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.001", "delete.retention.ms": "0"}
        alter_topic(app.bootstrap, topic, cleaned_at_once)

        def is_gone() -> bool:
            # Only what is written after them rolls the segments that are to be cleaned.
            send(app.bootstrap, [Sample("patient-events", f"late-{at}", "seen", at) for at in (next(times),)])
            return leaving.encode() not in {key for key, _ in read_all(app.bootstrap, topic, range(PARTITIONS))}

        poll_until(is_gone, SERVED_S, "the tombstone to be compacted away")


@pytest.mark.feature("topic-setting-store")
@pytest.mark.feature("aggressive-compaction-example")
def test_topics_have_the_settings_that_the_code_names_and_get_those_it_names_later(
    running: Run, monkeypatch: pytest.MonkeyPatch
):
    topic = changelog_topic(topic_configs.application_id, topic_configs.STORE)

    def settings(bootstrap: str) -> tuple[str, ...]:
        found = topic_settings(admin(bootstrap, "tests"), topic)
        return tuple(found[name] for name in ("segment.bytes", "min.cleanable.dirty.ratio", "max.message.bytes"))

    with running("examples.topic_configs.topology") as app:
        app.becomes(lambda: app.store("counts"), data.counts(patients(app.bootstrap)), "the counts")
        assert settings(app.bootstrap) == ("536870912", "0.3", "1048588")
        alter_topic(app.bootstrap, topic, {"max.message.bytes": "2000000"})
    monkeypatch.setitem(topic_configs.CONFIG, "min.cleanable.dirty.ratio", "0.4")
    with running("examples.topic_configs.topology") as app:
        app.becomes(lambda: app.store("counts"), data.counts(patients(app.bootstrap)), "the counts, as before")
        assert settings(app.bootstrap) == ("536870912", "0.4", "2000000"), "what the code doesn't name is left alone"


@pytest.mark.feature("aggressive-compaction-example")
@pytest.mark.long
def test_a_wiped_node_reads_a_compacted_changelog_in_a_third_of_the_records(running: Run, broker: EmbeddedKafka):
    create_topics(broker.bootstrap, {compaction.READINGS: {}}, PARTITIONS)
    send(broker.bootstrap, readings.RECORDS)
    expected = {sample.key: sample.value for sample in readings.RECORDS}
    count = len(readings.RECORDS)
    with running("examples.compaction.topology") as app:
        for store in (compaction.DEFAULT, compaction.COMPACTED):
            app.becomes(lambda store=store: app.store(store), expected, store)
        compacted = changelog_topic(app.application_id, compaction.COMPACTED)
        # An appended record rolls a segment that is old enough; the cleaner leaves the newest one alone.
        poll_until(lambda: len(messages(app.bootstrap, compacted)) <= count // 3, SERVED_S, "the cleaner's work")

        app.node.stop()
        shutil.rmtree(app.state_dir)
        app.node.start()

        def restored() -> Counter[str]:
            found: Counter[str] = Counter()
            for task in app.node.node().tasks:
                for store in task.stores:
                    found[store.store] += store.restored_records
            return found

        for store in (compaction.DEFAULT, compaction.COMPACTED):
            app.becomes(lambda store=store: app.store(store), expected, f"{store} on the node that was wiped")
        records = restored()
        assert records[compaction.DEFAULT] == count, "nothing of it is compacted yet"
        assert len(expected) <= records[compaction.COMPACTED] <= count // 3


def test_a_bounded_count_begins_anew_after_it_was_displaced(running: Run):
    with running("examples.lru_counts.topology") as app:
        given = patients(app.bootstrap)
        expected = data.lru_counts(given, PARTITIONS, MAX_ENTRIES)
        app.becomes(lambda: app.store("counts"), expected, "the counts")
        assert len(expected) == PARTITIONS * MAX_ENTRIES
        everything = data.counts(given)
        assert any(count < everything[key] for key, count in expected.items()), "some were displaced and came back"
        changelog = messages(app.bootstrap, changelog_topic(app.application_id, "counts"))
        assert {key.decode() for key in store_of(changelog)} == expected.keys()


@pytest.mark.feature("updates-key-within")
def test_every_tally_is_published_and_the_last_one_kept(running: Run):
    expected = data.tallies(PROGRAMS)
    with running("examples.tally.topology") as app:
        app.becomes(lambda: app.store("tallies"), {key: each[-1] for key, each in expected.items()}, "the tallies")
        published: dict[str, list[Any]] = {key: [] for key in expected}
        for message in messages(app.bootstrap, "program-tallies"):
            published[message.key().decode()].append(json.loads(message.value()))
        assert published == expected
        assert app.reasons() == ["invalid_time"] * 5


@pytest.mark.feature("arbitrary-state-timers")
def test_commands_are_judged_in_order(running: Run):
    objects, valid, invalid = data.judged(COMMANDS)
    with running("examples.commands.topology") as app:
        app.becomes(lambda: app.store("objects"), {key: {"content": each} for key, each in objects.items()}, "objects")
        passed = [message.value().decode() for message in messages(app.bootstrap, "valid-operations")]
        assert sorted(passed) == sorted(valid)
        verdicts = [json.loads(message.value()) for message in messages(app.bootstrap, "invalid-operations")]
        assert {each["command"]: each["reason"] for each in verdicts} == invalid
        assert len(verdicts) == len(invalid) > 0
        assert app.reasons() == []


@pytest.mark.parametrize("module", ["topology", pytest.param("in_memory", marks=pytest.mark.long)])
def test_both_sides_of_a_join_can_be_read(running: Run, module: str):
    expected = data.pairs(PAYMENTS)
    newest_ms = PAYMENTS[-1].timestamp_ms
    kept = {
        (sample.key, sample.timestamp_ms, json.loads(sample.value or "")["amount"])
        for sample in PAYMENTS
        if sample.topic == "orders" and sample.timestamp_ms > newest_ms - 6 * data.DAY_MS
    }
    with running(f"examples.window_join.{module}") as app:

        def recent_orders() -> set[tuple[Any, ...]]:
            found = app.client.scan_windows("orders", from_ms=newest_ms - 6 * data.DAY_MS + 1)
            return {(window.key, window.start_ms, window.value["amount"]) for window in found}

        app.becomes(recent_orders, kept, "the orders within the retention")

        def paid() -> set[tuple[str, float, str]]:
            found = [(each.key().decode(), json.loads(each.value())) for each in messages(app.bootstrap, "paid-orders")]
            return {(key, pair["amount"], pair["method"]) for key, pair in found}

        app.becomes(paid, expected, "the pairs")
        if module == "in_memory":
            assert not [path for path in app.state_dir.rglob("*") if path.suffix in {".sst", ".log"}]


def test_patients_are_shown_with_the_wards_that_they_name(running: Run):
    expected = data.patients_with_wards(WARDS)
    matched = [key for key, row in expected.items() if "ward" in row]
    assert 0 < len(matched) < len(expected)
    with running("examples.wards.topology") as app:
        app.becomes(lambda: app.store("patients-with-wards"), expected, "the patients")
        # What a patient and their ward become in one step is answered as one.
        at_ms, moved = WARDS[-1].timestamp_ms, matched[0]
        more = [
            Sample("wards", "ward-1", json.dumps({"name": "new", "floor": 9}), at_ms + 1),
            Sample("patients", moved, json.dumps({"name": "moved", "ward": "ward-1"}), at_ms + 2),
            Sample("patients", matched[1], None, at_ms + 3),
        ]
        send(app.bootstrap, more)
        expected = data.patients_with_wards([*WARDS, *more])
        assert expected[moved] == {"name": "moved", "ward": "new", "floor": 9}
        app.becomes(lambda: app.store("patients-with-wards"), expected, "the patients after both sides' changes")
        assert app.reasons() == []


@pytest.mark.feature("session-windows-read")
@pytest.mark.feature("arbitrary-state-timers")
def test_sessions_end_with_a_log_off_or_inactivity(running: Run):
    expected = data.carts(CARTS)
    with running("examples.carts.topology") as app:
        users = sorted({user for user, _, _ in expected})

        def sessions() -> dict[tuple[str, int, int], Any]:
            return {
                (user, each.start_ms, each.end_ms): each.value
                for user in users
                for each in app.client.fetch_sessions("carts", user)
            }

        app.becomes(sessions, expected, "the sessions")
        abandoned = [
            (each.key().decode(), each.timestamp()[1], json.loads(each.value())["items"])
            for each in messages(app.bootstrap, "abandoned-carts")
        ]
        assert sorted(abandoned) == sorted(
            (user, end_ms, each["items"])
            for (user, _, end_ms), each in expected.items()
            if each["status"] == "abandoned"
        )
        assert {each["status"] for each in expected.values()} == {"open", "bought", "abandoned", "empty"}
