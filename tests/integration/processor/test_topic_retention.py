"""What a real broker deletes of changelogs with our settings, and what it leaves: windows, sessions and versions.

A test of what stays has controls: topics as one would set them up at first thought, with the same records, which show
that the broker does delete, and that its round is over. The test of what goes needs none: it waits for the deletion.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from processor.application import Application
from processor.settings import ProcessorSettings
from processor.topics.creation import create_topics
from statehouse.kafka.clients import admin
from statehouse.keys.composite import WindowKey
from statehouse.local.broker_config import LOG_DIR
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.processor.support import messages
from tests.support.constants import settings_of
from tests.support.kafka import create_topic
from tests.support.polling import poll_until

HOUR_MS = 3_600_000
# Years ago.
REPLAYED_MS = 1_000_000_000_000
# The smallest segments there are, of a dozen values; their bytes can't be compressed.
SMALL = {"segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.001"}
VALUE_BYTES = 80_000
ANY_TIMESTAMP = {name: str(2**63 - 1) for name in ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")}
CLEANED_S = 30.0

Entry = tuple[bytes, int]
"""A record's key and timestamp."""


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedKafka]:
    config = {
        "log.retention.check.interval.ms": "200",
        "log.cleaner.backoff.ms": "200",
        "log.segment.delete.delay.ms": "0",
    }
    with EmbeddedKafka(config=config) as broker:
        yield broker


class Segment(NamedTuple):
    """A log segment on the broker's disk."""

    base_offset: int
    newest_ms: int


def segments(broker: EmbeddedKafka, topic: str) -> list[Segment]:
    """Return the segments of a topic's partition 0 that hold anything; the last one is being written."""
    found = []
    for path in sorted((broker.data_dir / LOG_DIR / f"{topic}-0").glob("*.log")):
        newest_ms = newest_timestamp(path)
        if newest_ms is not None:
            found.append(Segment(int(path.stem), newest_ms))
    return found


def newest_timestamp(path: Path) -> int | None:
    """Read the headers of a segment's record batches (magic 2)."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:  # deleted meanwhile
        return None
    newest, at = None, 0
    while at + 61 <= len(data):
        (length,) = struct.unpack_from(">i", data, at + 8)
        if length <= 0:  # room taken in advance
            break
        (largest,) = struct.unpack_from(">q", data, at + 35)
        newest = max(newest or 0, largest)
        at += 12 + length
    return newest


def declared(application: str) -> Application:
    app = Application(application, lambda _source: None)
    app.stream("events")
    return app


def frame(time_column: str) -> SimpleNamespace:
    types = {"key": "string", "value": "string", time_column: "timestamp"}
    return SimpleNamespace(dtypes=list(types.items()), columns=list(types))


def created(broker: EmbeddedKafka, app: Application, **constants: int) -> str:
    """Create the topics of an application with one store, of one partition; return the store's topic."""
    constants["min_compaction_lag_ms"] = 0
    given = settings_of(ProcessorSettings, bootstrap=broker.bootstrap, checkpoint_dir="unused", **constants)
    create_topics(admin(broker.bootstrap, "tests"), app, {"events": 1}, given)
    (store,) = app.stores
    return store.declaration.changelog_topic


def write(broker: EmbeddedKafka, topic: str, entries: Sequence[Entry], *, transaction: int = 0) -> None:
    """Write entries with values of no meaning, in transactions of so many if there is to be any."""
    # Without idempotence a retry could change the order of the records.
    conf: dict[str, str | int | bool] = {
        "bootstrap.servers": broker.bootstrap,
        "linger.ms": 0,
        "enable.idempotence": True,
    }
    producer = Producer(conf | ({"transactional.id": topic} if transaction else {}))
    if transaction:
        producer.init_transactions(30.0)
    for number, (key, timestamp_ms) in enumerate(entries):
        if transaction and number % transaction == 0:
            producer.begin_transaction()
        producer.produce(topic, key=key, value=os.urandom(VALUE_BYTES), partition=0, timestamp=timestamp_ms)
        if transaction and (number + 1) % transaction == 0:
            producer.commit_transaction(30.0)
        else:
            producer.poll(0)
    assert producer.flush(30.0) == 0


def keys_of(broker: EmbeddedKafka, topic: str) -> list[bytes]:
    return [message.key() for message in messages(broker.bootstrap, topic)]


def windows(first_ms: int, last_ms: int, count: int) -> list[Entry]:
    """Return entries of windows that cover a time evenly, stamped with their starts as a processor's are."""
    starts = [first_ms + (last_ms - first_ms) * number // (count - 1) for number in range(count)]
    return [(WindowKey(b"key", start).to_bytes(), start) for start in starts]


@pytest.mark.feature("topics-kept-long")
@pytest.mark.long
def test_windows_past_their_retention_leave_the_log(broker: EmbeddedKafka, unique_name: Callable[[str], str]):
    retention_ms = 5_000
    app = declared(unique_name("app"))
    retention = timedelta(milliseconds=retention_ms)
    app.window_store("windows", frame("window_start"), timedelta(seconds=1), retention=retention, config=SMALL)
    topic = created(broker, app, changelog_additional_retention_ms=0)
    now_ms = int(time.time() * 1000)
    # Windows are written again, so that there is something to compact, too.
    write(broker, topic, [*windows(now_ms - 24 * HOUR_MS, now_ms, 60), *windows(now_ms - HOUR_MS, now_ms, 20)])
    first = segments(broker, topic)
    assert len(first) > 4, "several closed segments"

    def expired() -> bool:
        checked_ms = int(time.time() * 1000)
        closed = segments(broker, topic)[:-1]
        return all(segment.newest_ms >= checked_ms - retention_ms for segment in closed) and not (
            {segment.base_offset for segment in first} & {segment.base_offset for segment in closed}
        )

    poll_until(expired, CLEANED_S, "the closed segments of the past to go")


@pytest.mark.feature("events-age-replayed")
def test_windows_of_a_replay_stay_for_their_retention_from_when_they_were_written(
    broker: EmbeddedKafka, unique_name: Callable[[str], str]
):
    app = declared(unique_name("app"))
    app.window_store("windows", frame("window_start"), timedelta(seconds=1), retention=timedelta(hours=1), config=SMALL)
    topic = created(broker, app)
    entries = windows(REPLAYED_MS, REPLAYED_MS + HOUR_MS // 2, 60)
    write(broker, topic, entries)
    (store,) = app.stores
    retention = {"retention.ms": str(store.declaration.retention_ms + 24 * HOUR_MS)}
    by_event_time = {"cleanup.policy": "compact,delete", **retention, **ANY_TIMESTAMP, **SMALL}

    def deleted(control: str) -> None:
        create_topic(broker.bootstrap, control, 1, by_event_time)
        write(broker, control, entries)
        poll_until(lambda: len(keys_of(broker, control)) < len(entries), CLEANED_S, "windows lost by their event times")

    # The round that a control was deleted in may have begun before; the next one began after all was written.
    deleted(unique_name("control"))
    deleted(unique_name("second-control"))
    assert keys_of(broker, topic) == [key for key, _ in entries]


@pytest.mark.feature("events-age-replayed")
def test_versions_of_a_replay_stay_for_their_history(broker: EmbeddedKafka, unique_name: Callable[[str], str]):
    app = declared(unique_name("app"))
    app.versioned_store("versions", frame("timestamp"), timedelta(hours=1), config=SMALL)
    topic = created(broker, app)
    entries = [(b"key", REPLAYED_MS + number * 1_000) for number in range(60)]
    # As the processor writes: in transactions, each smaller than a segment.
    write(broker, topic, entries, transaction=3)
    assert len(segments(broker, topic)) > 4
    (store,) = app.stores
    lag = {"min.compaction.lag.ms": str(store.declaration.retention_ms + 24 * HOUR_MS)}

    def compacted(control: str, **unlike: str) -> None:
        create_topic(
            broker.bootstrap, control, 1, {"cleanup.policy": "compact", **lag, **ANY_TIMESTAMP, **SMALL, **unlike}
        )
        write(broker, control, entries, transaction=0 if not unlike else 3)
        poll_until(
            lambda: len(keys_of(broker, control)) < len(entries), CLEANED_S, "versions lost by their event times"
        )

    # Without transactions nothing in the log says when it was written.
    compacted(unique_name("control"))
    # With them, a segment rolled for its event times has none of their markers.
    compacted(unique_name("second-control"), **{"segment.ms": str(7 * 24 * HOUR_MS)})
    found = [(message.key(), message.timestamp()[1]) for message in messages(broker.bootstrap, topic)]
    assert found == entries
